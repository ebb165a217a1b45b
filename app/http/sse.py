"""Responses that are sent while they are generated: server-sent events (WHATWG HTML, section 9.2) or lines of JSON."""

import asyncio
import time
from asyncio import CancelledError
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from starlette.types import Send

from app.http.disconnects import WatchedRequest
from app.http.responses import map_error, own_headers
from app.inference.contract import Pieces
from app.observability.metrics import RequestRecord, server_timing
from app.protocols.shared.codec import Header, NamedEvent, Payload, StreamWriter
from app.protocols.shared.errors import ClientGone
from frameworks.core.errors import Draining
from frameworks.engine.generating.stream import read_in_time

LAST_EVENT_S = 5.0
"""Seconds for a slow reader to take the event of an error; then the connection is closed."""
SILENCE_S = 10.0
"""Seconds without an event until a comment is sent: proxies close connections that are silent for a minute or less."""
_COMMENT = b": keep-alive\n\n"


class EventStream:
    """One streamed response. Nothing is sent before the first piece exists, or `SILENCE_S` have passed."""

    def __init__(
        self,
        send: Send,
        record: RequestRecord,
        request: WatchedRequest,
        writer: StreamWriter,
        headers: Sequence[Header] = (),
        has_lines: bool = False,
        is_slow: bool = False,
    ) -> None:
        """`request`: cancelled if its client disconnects. `headers`: further ones of the response. `has_lines`: each
        payload is a line, not an event. `is_slow`: the writer encodes pieces on a thread.
        """
        self._send = send
        self._record = record
        self._request = request
        self._writer = writer
        self._headers = headers
        self._content_type = b"application/x-ndjson" if has_lines else b"text/event-stream"
        self._frame = _line if has_lines else _event
        self._last: Sequence[Payload] = ()
        self._is_slow = is_slow
        self._has_begun = False
        self._has_failed = False
        self._deadline_s: float | None = None
        self._sent_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None
        # A comment and an event may be due at the same time.
        self._lock = asyncio.Lock()

    async def send_pieces(self, generation: Pieces) -> None:
        """Send all pieces, and comments while there are none; the end of the response is left to `finish`.

        Raises what fails before anything is sent, which an ordinary response can report; ClientGone.
        """
        self._deadline_s = generation.deadline_s
        self._begin_comments()
        try:
            first = await anext(generation, None)
            async with self._lock:
                await self._begin()
            payloads = list(self._writer.begin(generation.usage))
            if first is not None:
                payloads += await self._payloads([first, *generation.ready()])
            async with read_in_time(generation.deadline_s):
                await self._send_events(payloads)
                async for piece in generation:
                    await self._send_events(await self._payloads([piece, *generation.ready()]))
            latency_ms = (time.perf_counter() - self._record.started_s) * 1e3
            self._last = self._writer.end(generation.usage, latency_ms)
        except CancelledError:
            if self._request.is_gone or not self._has_begun:
                raise
            # Only the end of the drain time cancels a request.
            self._fail(Draining(Draining.UNANSWERED))
        except ClientGone:
            raise
        except Exception as error:
            if not self._has_begun:
                raise
            # A part of the response is sent, so the error becomes an event.
            self._fail(error)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._comment is not None:
                self._comment.cancel()
                await asyncio.wait([self._comment])

    def _begin_comments(self) -> None:
        """From now on send a comment whenever nothing was sent for a while. Lines of JSON have no comments."""
        if self._frame is not _line:
            self._sent_s = asyncio.get_running_loop().time()
            self._await_silence()

    def _await_silence(self) -> None:
        self._timer = asyncio.get_running_loop().call_at(self._sent_s + SILENCE_S, self._break_silence)

    def _break_silence(self) -> None:
        if asyncio.get_running_loop().time() < self._sent_s + SILENCE_S:
            self._await_silence()
        else:
            self._comment = asyncio.create_task(self._send_comment())

    async def _send_comment(self) -> None:
        # Where the client is gone, its request is cancelled.
        with suppress(ClientGone, OSError):
            async with self._lock:
                await self._begin()
                await self._write(_COMMENT)
            self._await_silence()

    async def finish(self) -> None:
        """Send the end of the response or of its failure. A reader that does not take it loses the connection."""
        deadline_s = asyncio.get_running_loop().time() + LAST_EVENT_S if self._has_failed else self._deadline_s
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._send_events(self._last, is_last=True)
        except (TimeoutError, CancelledError):
            self._record.abort()

    async def _payloads(self, pieces: list[Any]) -> list[Payload]:
        """Return the payloads of pieces that exist together, which are sent in one write."""
        payloads: list[Payload] = []
        for piece in pieces:
            payloads += (
                await asyncio.to_thread(self._writer.piece, piece) if self._is_slow else self._writer.piece(piece)
            )
        return payloads

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        self._last = self._writer.error(map_error(error, self._record))

    async def _begin(self) -> None:
        """Send the head of the response, once."""
        if self._has_begun:
            return
        self._has_begun = True
        record = self._record
        await self._send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", self._content_type),
                    (b"cache-control", b"no-store"),
                    (b"x-request-id", record.request_id.encode()),
                    (b"server-timing", server_timing(record.timings).encode()),
                    *own_headers(record),
                    *self._headers,
                ],
            }
        )
        record.status = 200

    async def _send_events(self, payloads: Sequence[Payload], is_last: bool = False) -> None:
        """Send events in one write; waits while the reader is slow. Raises ClientGone."""
        if not payloads and not is_last:
            return
        async with self._lock:
            await self._write(b"".join(map(self._frame, payloads)), is_last)

    async def _write(self, body: bytes, is_last: bool = False) -> None:
        self._record.response_bytes += len(body)
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
        except OSError:
            raise ClientGone from None
        self._sent_s = asyncio.get_running_loop().time()


def _event(payload: Payload) -> bytes:
    if isinstance(payload, NamedEvent):
        return b"event: %b\ndata: %b\n\n" % (payload.name, payload.data)
    return b"data: %b\n\n" % payload


def _line(payload: Payload) -> bytes:
    assert isinstance(payload, bytes), "lines have no names"
    return payload + b"\n"
