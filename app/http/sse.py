"""An answer that is sent while it is made: server-sent events (WHATWG HTML, section 9.2) in HTTP's chunks."""

import asyncio
import time
from asyncio import CancelledError

from starlette.types import Send

from app.http.wire import HttpCaller, map_error
from app.observability.metrics import RequestRecord, server_timing
from app.protocols.codec import StreamWriter
from app.protocols.errors import ClientGone
from frameworks.errors import Draining
from frameworks.generation.types import Generation, Piece

LAST_WORD_S = 5.0
"""An error that a reader is too far behind to be told in this time is not told: the connection ends."""


class EventStream:
    """One answer on its way. Nothing of it is sent before its first piece is there."""

    def __init__(self, send: Send, record: RequestRecord, writer: StreamWriter) -> None:
        self._send = send
        self._record = record
        self._writer = writer
        self._last: list[bytes] = []
        self._has_failed = False

    async def send_pieces(self, generation: Generation, caller: HttpCaller) -> None:
        """Sends all that comes; what is to be said at the end of it is left to `finish`.

        `caller`: whose leaving cancels this. Raises what keeps the first piece from coming, which an
        ordinary answer can tell; ClientGone.
        """
        first = await anext(generation, None)
        await self._begin()
        try:
            payloads = self._writer.begin()
            if first is not None:
                payloads += self._payloads([first, *generation.ready()])
            await self._events(payloads)
            async for piece in generation:
                await self._events(self._payloads([piece, *generation.ready()]))
            latency_ms = (time.perf_counter() - self._record.started_s) * 1e3
            self._last = self._writer.end(generation.usage, latency_ms)
        except CancelledError:
            if caller.is_gone:
                raise
            # Only the end of the drain's time cancels a request.
            self._fail(Draining("the server went down before this was at its end; ask another"))
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - the caller has a part of the answer, and is told here or never
            self._fail(error)

    async def finish(self) -> None:
        """Sends the end, of an answer or of its failure. A reader that does not take it loses the connection."""
        try:
            async with asyncio.timeout(LAST_WORD_S if self._has_failed else None):
                await self._events(self._last, is_last=True)
        except (TimeoutError, CancelledError):
            if self._record.fast_path is not None:
                self._record.fast_path.abort()

    def _payloads(self, pieces: list[Piece]) -> list[bytes]:
        """Of pieces that are there together, and so go in one write."""
        return [payload for piece in pieces for payload in self._writer.piece(piece)]

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        self._last = self._writer.error(*map_error(error, self._record))

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
                ],
            }
        )
        record.status = 200

    async def _events(self, payloads: list[bytes], is_last: bool = False) -> None:
        """Waits while the reader is behind. Raises ClientGone."""
        if not payloads and not is_last:
            return
        body = b"".join([b"data: %b\n\n" % payload for payload in payloads])
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
        except OSError:
            raise ClientGone from None
