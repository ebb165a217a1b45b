"""The middleware around FastAPI's routes: request id, Server-Timing, log line, and no traceback in a response."""

import time
from asyncio import CancelledError

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.digests import receive_checked
from app.http.origins import OriginPolicy
from app.http.request import HttpRequest
from app.observability.audit import log_action
from app.observability.metrics import Observer, RequestRecord, server_timing
from app.protocols.shared.errors import STATUS_CLIENT_GONE, ClientGone
from app.protocols.shared.routes import RouteTable
from frameworks.core.errors import Draining
from frameworks.scheduling.byte_limit import ByteLimit


class AdminMiddleware:
    """ASGI middleware. Handlers find the RequestRecord, which the endpoint began, under `scope["record"]`."""

    def __init__(
        self,
        app: ASGIApp,
        observer: Observer,
        table: RouteTable,
        origins: OriginPolicy,
        byte_limit: ByteLimit,
    ) -> None:
        """`byte_limit`: counts the bodies of signed requests."""
        self._app = app
        self._observer = observer
        self._error_codec = table.error_codec
        self._origins = origins
        self._access = table.access
        self._byte_limit = byte_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record: HttpRequest = scope["record"]
        path = scope["path"]
        # The connection leaves out the body of a response to HEAD.
        method = "GET" if record.method == "HEAD" else record.method
        scope = {**scope, "method": method, "path": path.removesuffix("/") or path}
        head: Message | None = None
        started = False

        async def send_with_headers(message: Message) -> None:
            """Hold the head until the body follows, so that a whole response is one write.

            A client that looks only at the status has then read everything, and its connection is free.
            """
            nonlocal head, started
            if message["type"] == "http.response.start":
                head = _with_headers(message, record)
                return
            started = True
            if head is not None:
                first, head = head, None
                if _sent_at_once(record, first, message):
                    return
                await send(first)
            await send(message)

        try:
            await self._answer(scope, receive, send_with_headers)
        except (Exception, CancelledError) as error:  # noqa: BLE001 - the last handler before the client
            if not started:
                await self._refuse(record, error)
        finally:
            self._observer.log_request(record, time.perf_counter() - record.started_s)
            log_action(record, self._access.find(path))

    async def _refuse(self, record: HttpRequest, error: BaseException) -> None:
        if isinstance(error, ClientGone):
            record.status, record.code = STATUS_CLIENT_GONE, "client_gone"
            return
        if isinstance(error, CancelledError):
            # Only the end of the drain time cancels a request, which is answered all the same.
            error = Draining(Draining.UNANSWERED)
        await record.refuse(error, self._error_codec(record.path))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        record: RequestRecord = scope["record"]
        record.headers = self._origins.check(scope)
        preflight = self._origins.preflight(scope["headers"]) if scope["method"] == "OPTIONS" else None
        if preflight is not None:
            record.headers = preflight
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        receive = await receive_checked(scope, receive, record, self._observer, self._byte_limit)
        await self._app(scope, receive, send)


def _with_headers(message: Message, record: RequestRecord) -> Message:
    """Return the head of a response with the headers that every response carries."""
    record.status = message["status"]
    # These routes have one stage only, which is reported as compute.
    record.timings.compute_s = time.perf_counter() - record.started_s
    names = {name for name, _ in message["headers"]}
    extra = [
        (b"x-request-id", record.request_id.encode()),
        (b"server-timing", server_timing(record.timings).encode()),
    ]
    missing = [pair for pair in extra if pair[0] not in names]
    return {**message, "headers": [*message["headers"], *missing, *record.headers]}


def _sent_at_once(record: HttpRequest, head: Message, body: Message) -> bool:
    if record.fast_path is None or body.get("more_body", False):
        return False
    lines = b"".join([b"%b: %b\r\n" % pair for pair in head["headers"]])
    return record.fast_path.respond(head["status"], lines, body.get("body", b""))
