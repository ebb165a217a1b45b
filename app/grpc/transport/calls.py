"""Calls on streams of HTTP/2: requests arrive, the call's handler runs in a task, its response leaves."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from app.auth.principal import ANONYMOUS
from app.grpc.call import GrpcError, Header, Unary
from app.grpc.transport.framing import (
    OK_TRAILERS,
    RESPONSE_HEADERS,
    MessageReader,
    ReceivedMessage,
    decompress,
    framed,
    metadata_of,
    status_fields,
)
from app.http.listener.http2.connection import Http2Connection
from app.observability.traces.traces import KeyCheck
from app.protocols.shared.errors import grpc_code
from frameworks.core.errors import RoundhouseError
from frameworks.core.tenants import Tenant
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES, ByteHold, ByteLimit

log = structlog.get_logger(__name__)

# A message of this size, compressed, is decompressed on the event loop: in about a millisecond at the most.
_SHORT_COMPRESSED_BYTES = 1024
_CANCELLED = GrpcError("CANCELLED", "the call was cancelled")


Send = Callable[[bytes], Awaitable[None]]


async def send_nothing(response: bytes) -> None:
    """Stand for `send` outside of the life of a call with several responses."""


class ReceivedCall:
    """Implement Call of app/grpc/call.py."""

    __slots__ = ("_headers", "_metadata", "checked", "deadline_s", "peer", "principal", "send")

    def __init__(self, headers: tuple[Header, ...], peer: str) -> None:
        """`headers`: of the stream."""
        self._headers = headers
        self._metadata: list[Header] | None = None
        self.peer = peer
        self.deadline_s: float | None = None
        """On the monotonic clock; None: the call has no deadline."""
        self.principal = ANONYMOUS
        self.checked: KeyCheck | None = None
        self.send: Send = send_nothing
        """Of StreamingCall; a unary call has none."""

    @property
    def left_s(self) -> float | None:
        return None if self.deadline_s is None else self.deadline_s - time.monotonic()

    @property
    def headers(self) -> list[Header]:
        if self._metadata is None:
            self._metadata = metadata_of(self._headers)
        return self._metadata


class OpenCalls:
    """The state that the calls of a server share. Owned by the event loop."""

    def __init__(self, max_message_bytes: int, request_s: float) -> None:
        """`max_message_bytes`: of one request, compressed or not. `request_s`: until a unary call has its request."""
        self.max_message_bytes = max_message_bytes
        self.request_s = request_s
        self.num_open = 0
        self.tasks: set[asyncio.Task[None]] = set()
        unlimited = ByteLimit(None)
        self.byte_limit_of: Callable[[Tenant], ByteLimit] = lambda _: unlimited
        """Returns the limit that counts a tenant's requests that are not whole, and responses that are not sent."""


class CallStream(ABC):
    """Implement Http2Stream for one call. It is open until its stream is closed and its handler has ended."""

    __slots__ = (
        "_begun_s",
        "_call",
        "_calls",
        "_connection",
        "_encoding",
        "_has_headers",
        "_is_answered",
        "_is_closed",
        "_path",
        "_queued_bytes",
        "_reader",
        "_received",
        "_stream_id",
        "_task",
        "_unsent",
    )

    def __init__(
        self,
        calls: OpenCalls,
        connection: Http2Connection,
        stream_id: int,
        path: str,
        call: ReceivedCall,
        encoding: bytes,
    ) -> None:
        """`path`: `/package.Service/Method`. `encoding`: grpc-encoding."""
        self._calls = calls
        self._connection = connection
        self._stream_id = stream_id
        self._path = path
        self._call = call
        self._encoding = encoding
        self._reader = MessageReader(calls.max_message_bytes)
        self._begun_s = time.monotonic()
        self._queued_bytes = 0
        self._task: asyncio.Task[None] | None = None
        # Of the tenant's bytes: requests that no handler has, and responses that are not sent. None while nothing was
        # large enough to be counted.
        self._received: ByteHold | None = None
        self._unsent: ByteHold | None = None
        self._has_headers = self._is_answered = self._is_closed = False
        calls.num_open += 1

    @abstractmethod
    def receive(self, data: bytes, is_end: bool) -> None: ...

    def closed(self) -> None:
        """The handler is cancelled, if it still runs."""
        self._is_closed = self._is_answered = True
        for hold in (self._received, self._unsent):
            if hold is not None:
                hold.release()
        if self._task is not None:
            self._task.cancel()
        else:
            self._calls.num_open -= 1

    @abstractmethod
    def has_space(self) -> None: ...

    def check(self, now_s: float) -> None:
        deadline_s = self._call.deadline_s
        if deadline_s is not None and now_s > deadline_s:
            self._fail(GrpcError("DEADLINE_EXCEEDED", "the deadline of the call has passed"))

    def _start(self, handling: Any) -> None:
        task = asyncio.get_running_loop().create_task(handling)
        self._task = task
        self._calls.tasks.add(task)
        # Not in the coroutine: a task that is cancelled before its first step never enters it.
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        """Note the end of the handler's task."""
        self._calls.tasks.discard(task)
        self._task = None
        if self._is_closed:
            self._calls.num_open -= 1
        elif task.cancelled():
            self._fail(_CANCELLED)

    def _read(self, data: bytes) -> list[ReceivedMessage] | None:
        """Return the messages that end with `data`; None if the call was ended with an error."""
        try:
            messages = self._reader.read(data)
            for message in messages:
                self._queued_bytes += len(message.content)
            self._count_received()
        except (GrpcError, RoundhouseError) as error:
            self._fail(as_call_error(error, self._path))
            return None
        return messages

    def _count_received(self) -> None:
        """Count the requests that no handler has. Raises Overloaded if they do not fit."""
        num_bytes = self._queued_bytes + self._reader.unfinished_bytes
        if self._received is None:
            if num_bytes <= UNCOUNTED_BYTES:
                return
            self._received = self._new_hold()
        self._received.resize(num_bytes)

    def _new_hold(self) -> ByteHold:
        return self._calls.byte_limit_of(self._call.principal.tenant).hold()

    async def _content(self, message: ReceivedMessage) -> bytes:
        """Return the content of a message, without its compression. Raises GrpcError."""
        if not message.is_compressed:
            return message.content
        arguments = message.content, self._encoding, self._calls.max_message_bytes
        if len(message.content) <= _SHORT_COMPRESSED_BYTES:
            return decompress(*arguments)
        return await asyncio.to_thread(decompress, *arguments)

    def _send(self, response: bytes) -> None:
        """Send one response; the first one with the headers."""
        connection, stream_id = self._connection, self._stream_id
        if self._is_answered:
            return
        if not self._has_headers:
            self._has_headers = True
            connection.send_headers(stream_id, RESPONSE_HEADERS)
        connection.send_data(stream_id, framed(response))
        self._count_unsent(response)

    def _respond(self, response: bytes) -> None:
        """Send the only response, and end the call."""
        if not self._is_answered:
            self._is_answered = True
            self._connection.respond(self._stream_id, RESPONSE_HEADERS, framed(response), OK_TRAILERS)
            self._count_unsent(response)

    def _count_unsent(self, response: bytes) -> None:
        if len(response) > UNCOUNTED_BYTES:
            if self._unsent is None:
                self._unsent = self._new_hold()
            self._unsent.add(len(response))

    def _succeed(self) -> None:
        if not self._is_answered:
            self._is_answered = True
            if not self._has_headers:
                self._connection.send_headers(self._stream_id, RESPONSE_HEADERS)
            self._connection.end(self._stream_id, OK_TRAILERS)

    def _fail(self, error: GrpcError) -> None:
        """End the call with an error. Its handler is cancelled, if it still runs."""
        if not self._is_answered:
            self._is_answered = True
            if self._has_headers:
                self._connection.end(self._stream_id, status_fields(error))
            else:
                fields = [*RESPONSE_HEADERS, *status_fields(error)]
                self._connection.send_headers(self._stream_id, fields, is_end=True)
            if self._task is not None and self._task is not asyncio.current_task():
                self._task.cancel()


class UnaryCall(CallStream):
    """A call with one request and one response."""

    __slots__ = ("_handler",)

    def __init__(self, handler: Unary, *parts: Any) -> None:
        """`parts`: of CallStream."""
        super().__init__(*parts)
        self._handler = handler

    def receive(self, data: bytes, is_end: bool) -> None:
        self._connection.consumed(self._stream_id, len(data))
        if self._task is not None or self._is_answered:
            return
        messages = self._read(data)
        if messages:
            self._start(self._answer(messages[0]))
        elif is_end and messages is not None:
            if self._reader.unfinished_bytes:
                self._fail(unfinished_message())
            else:
                self._fail(GrpcError("UNIMPLEMENTED", "expected one request, got none"))

    def has_space(self) -> None:
        """A call with one response does not wait for space."""

    def check(self, now_s: float) -> None:
        super().check(now_s)
        if self._task is None and not self._is_answered and now_s - self._begun_s > self._calls.request_s:
            self._connection.reset(self._stream_id)

    async def _answer(self, message: ReceivedMessage) -> None:
        try:
            request = await self._content(message) if message.is_compressed else message.content
            # The handler counts the request itself, from here on without a pause.
            self._queued_bytes = 0
            self._count_received()
            self._respond(await self._handler(request, self._call))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the status and the log have it
            self._fail(as_call_error(error, self._path))


def as_call_error(error: BaseException, path: str) -> GrpcError:
    """Return the status of a handler's error. `path`: of its method, for the log."""
    if isinstance(error, GrpcError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return _CANCELLED
    if isinstance(error, RoundhouseError):
        return GrpcError(grpc_code(error), str(error))
    log.error("gRPC handler failed", path=path, exc_info=error)
    return GrpcError("INTERNAL", "internal error; see the server's log")


def unfinished_message() -> GrpcError:
    """Return the error of a stream that ends within a message."""
    return GrpcError("INVALID_ARGUMENT", "message: expected its whole content, got the end of the stream within it")
