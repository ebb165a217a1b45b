"""The frame around FastAPI's routes: request id, Server-Timing, log line, and no traceback to anybody."""

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.wire import begin, send_error
from app.observability.metrics import Observer, RequestRecord, server_timing
from app.protocols.codec import ErrorWriter


class AdminMiddleware:
    """ASGI middleware. Handlers find the RequestRecord under `scope["record"]`."""

    def __init__(self, app: ASGIApp, observer: Observer, error_writer: Callable[[str], ErrorWriter]) -> None:
        """`error_writer`: of a path."""
        self._app = app
        self._observer = observer
        self._error_writer = error_writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = scope["record"] = begin(scope)
        head: Message | None = None
        started = False

        async def send_framed(message: Message) -> None:
            """The head waits for what follows it: a whole answer leaves in one piece. A client that looks at the status
            alone has then read all of it, and its connection is free.
            """
            nonlocal head, started
            if message["type"] == "http.response.start":
                head = _framed(message, record)
                return
            started = True
            if head is not None:
                first, head = head, None
                if _was_sent_at_once(record, first, message):
                    return
                await send(first)
            await send(message)

        try:
            await self._app(scope, receive, send_framed)
        except Exception as error:  # noqa: BLE001 - the last place before the caller
            if not started:
                await send_error(send, record, error, self._error_writer(record.path))
        finally:
            self._observer.answered(record, time.perf_counter() - record.started_s)


def _framed(message: Message, record: RequestRecord) -> Message:
    """The head of an answer, with the headers that every answer carries."""
    record.status = message["status"]
    # These routes have one step only; it is shown as what it is, computing.
    record.timings.compute_s = time.perf_counter() - record.started_s
    names = {name for name, _ in message["headers"]}
    extra = [
        (b"x-request-id", record.request_id.encode()),
        (b"server-timing", server_timing(record.timings).encode()),
    ]
    return {**message, "headers": [*message["headers"], *(pair for pair in extra if pair[0] not in names)]}


def _was_sent_at_once(record: RequestRecord, head: Message, body: Message) -> bool:
    if record.fast_path is None or record.method == "HEAD" or body.get("more_body", False):
        return False
    lines = b"".join([b"%b: %b\r\n" % pair for pair in head["headers"]])
    return record.fast_path.respond(head["status"], lines, body.get("body", b""))
