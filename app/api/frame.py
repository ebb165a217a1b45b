"""The frame around FastAPI's routes: request id, Server-Timing, log line, and no traceback to anybody."""

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.wire import begin, send_error
from app.api.wire_format import ErrorWriter
from app.observe import Observer, server_timing


class Frame:
    """ASGI middleware. Handlers find the RequestRecord under `scope["record"]`."""

    def __init__(self, app: ASGIApp, observer: Observer, error_writer: Callable[[str], ErrorWriter]) -> None:
        """`error_writer`: of a path."""
        self._app = app
        self._observer = observer
        self._error_writer = error_writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = scope["record"] = begin(scope)
        started = False

        async def send_framed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                record.status = message["status"]
                # These routes have one step only; it is shown as what it is, computing.
                record.timings.compute_s = time.perf_counter() - record.started_s
                names = {name for name, _ in message["headers"]}
                extra = [
                    (b"x-request-id", record.request_id.encode()),
                    (b"server-timing", server_timing(record.timings).encode()),
                ]
                message["headers"] = [*message["headers"], *(pair for pair in extra if pair[0] not in names)]
            await send(message)

        try:
            await self._app(scope, receive, send_framed)
        except Exception as error:  # noqa: BLE001 - the last place before the caller
            if not started:
                await send_error(send, record, error, self._error_writer(record.path))
        finally:
            self._observer.answered(record, time.perf_counter() - record.started_s)
