"""Calls with any number of requests and responses. Each side waits for the other: the client, and the handler."""

import asyncio
from collections import deque
from typing import Any

from app.grpc.call import Stream
from app.grpc.transport.calls import CallStream, as_call_error, send_nothing, unfinished_message
from app.grpc.transport.framing import ReceivedMessage
from app.http.listener.http2.connection import MAX_UNSENT_BYTES


class StreamCall(CallStream):
    """A call in which either side may send any number of messages."""

    __slots__ = ("_arrived", "_handler", "_is_ended", "_space", "_unread", "_unread_bytes")

    def __init__(self, handler: Stream, *parts: Any) -> None:
        """`parts`: of CallStream."""
        super().__init__(*parts)
        self._handler = handler
        self._unread: deque[ReceivedMessage] = deque()
        # Bytes that the client may not replace by others yet: it waits for the handler.
        self._unread_bytes = 0
        self._arrived = asyncio.Event()
        self._space = asyncio.Event()
        self._is_ended = False
        self._call.send = self._send_in_time
        self._start(self._answer())

    def receive(self, data: bytes, is_end: bool) -> None:
        if self._is_answered:
            self._connection.consumed(self._stream_id, len(data))
            return
        is_waiting = not self._unread
        messages = self._read(data)
        if messages is None:
            return
        if is_waiting:
            # The handler takes the next message at once, or the message is not whole yet.
            self._connection.consumed(self._stream_id, len(data))
        else:
            self._unread_bytes += len(data)
        self._unread += messages
        if is_end and self._reader.unfinished_bytes:
            self._fail(unfinished_message())
        self._is_ended = is_end
        if messages or is_end:
            self._arrived.set()

    def closed(self) -> None:
        super().closed()
        self._connection.consumed(self._stream_id, self._unread_bytes)
        self._unread_bytes = 0
        self._space.set()

    def has_space(self) -> None:
        self._space.set()

    def __aiter__(self) -> "StreamCall":
        return self

    async def __anext__(self) -> bytes:
        """Return the next request. A handler that stops waiting, after a timeout for example, may ask again. Raises
        GrpcError for a request that cannot be decompressed.
        """
        while not self._unread:
            if self._is_ended:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        content = await self._content(self._unread[0])
        self._queued_bytes -= len(self._unread.popleft().content)
        self._count_received()
        if not self._unread:
            self._connection.consumed(self._stream_id, self._unread_bytes)
            self._unread_bytes = 0
        return content

    async def _answer(self) -> None:
        try:
            await self._handler(self, self._call)
            self._succeed()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the status and the log have it
            self._fail(as_call_error(error, self._path))
        finally:
            # It refers to this object, and this to the call.
            self._call.send = send_nothing

    async def _send_in_time(self, response: bytes) -> None:
        """Implement StreamingCall.send."""
        self._send(response)
        await self._wait_for_space()

    async def _wait_for_space(self) -> None:
        """Return at once, or when the client has taken the responses."""
        if self._connection.unsent_bytes(self._stream_id) > MAX_UNSENT_BYTES:
            self._space.clear()
            self._connection.call_when_sent(self._stream_id)
            await self._space.wait()
        if self._unsent is not None:
            self._unsent.resize(min(self._unsent.held_bytes, self._connection.unsent_bytes(self._stream_id)))
