"""Responses that are sent while they are generated: server-sent events (WHATWG HTML, section 9.2)."""

import asyncio
import time
from asyncio import CancelledError
from collections.abc import Sequence

from starlette.types import Send

from app.http.disconnects import WatchedRequest
from app.http.responses import anthropic_headers, map_error, own_headers
from app.observability.metrics import server_timing
from app.protocols.codec import Header, NamedEvent, Payload, StreamWriter
from app.protocols.errors import ClientGone
from frameworks.engine.stream import read_in_time
from frameworks.errors import Draining
from frameworks.generation.types import Generation, TextDelta

LAST_EVENT_S = 5.0
"""Seconds for a slow reader to take the event of an error; then the connection is closed."""


class EventStream:
    """One streamed response. Nothing is sent before the first piece exists."""

    def __init__(
        self, send: Send, request: WatchedRequest, writer: StreamWriter, headers: Sequence[Header] = ()
    ) -> None:
        """`request`: cancelled if its client disconnects. `headers`: further ones of the response."""
        self._send = send
        self._record = request.record
        self._request = request
        self._writer = writer
        self._headers = headers
        self._last: Sequence[Payload] = ()
        self._has_failed = False
        self._deadline_s: float | None = None

    async def send_pieces(self, generation: Generation) -> None:
        """Send all pieces; the end of the response is left to `finish`.

        Raises what fails before the first piece, which an ordinary response can report; ClientGone.
        """
        self._deadline_s = generation.deadline_s
        first = await anext(generation, None)
        await self._begin()
        try:
            payloads = list(self._writer.begin(generation.usage))
            if first is not None:
                payloads += self._payloads([first, *generation.ready()])
            async with read_in_time(generation):
                await self._send_events(payloads)
                async for piece in generation:
                    await self._send_events(self._payloads([piece, *generation.ready()]))
            latency_ms = (time.perf_counter() - self._record.started_s) * 1e3
            self._last = self._writer.end(generation.usage, latency_ms)
        except CancelledError:
            if self._request.is_gone:
                raise
            # Only the end of the drain time cancels a request.
            self._fail(Draining(Draining.UNANSWERED))
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - a part of the response is sent, so the error becomes an event
            self._fail(error)

    async def finish(self) -> None:
        """Send the end of the response or of its failure. A reader that does not take it loses the connection."""
        deadline_s = asyncio.get_running_loop().time() + LAST_EVENT_S if self._has_failed else self._deadline_s
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._send_events(self._last, is_last=True)
        except (TimeoutError, CancelledError):
            if self._record.fast_path is not None:
                self._record.fast_path.abort()

    def _payloads(self, pieces: list[TextDelta]) -> list[Payload]:
        """Return the payloads of pieces that exist together, which are sent in one write."""
        return [payload for piece in pieces for payload in self._writer.piece(piece)]

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        self._last = self._writer.error(map_error(error, self._record))

    async def _begin(self) -> None:
        record = self._record
        await self._send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", b"text/event-stream"),
                    (b"cache-control", b"no-store"),
                    (b"x-request-id", record.request_id.encode()),
                    (b"server-timing", server_timing(record.timings).encode()),
                    *own_headers(record),
                    *anthropic_headers(record),
                    *self._headers,
                ],
            }
        )
        record.status = 200

    async def _send_events(self, payloads: Sequence[Payload], is_last: bool = False) -> None:
        """Send events in one write; waits while the reader is slow. Raises ClientGone."""
        if not payloads and not is_last:
            return
        body = b"".join(map(_event, payloads))
        self._record.response_bytes += len(body)
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
        except OSError:
            raise ClientGone from None


def _event(payload: Payload) -> bytes:
    if isinstance(payload, NamedEvent):
        return b"event: %b\ndata: %b\n\n" % (payload.name, payload.data)
    return b"data: %b\n\n" % payload
