"""The ASGI endpoint of inference requests. It runs in front of FastAPI's router, which costs 150 µs a request."""

import time
from asyncio import CancelledError, current_task, to_thread
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.digests import check_digest
from app.http.disconnects import DisconnectWatcher
from app.http.gate import HttpGate
from app.http.listener.cycle import FAST_PATH
from app.http.origins import OriginPolicy, is_preflight
from app.http.prefixes import PathPrefixes
from app.http.request import HttpRequest, RequestHead
from app.inference.pipeline import Pipeline
from app.protocols.shared.codec import EncodedResponse, Target
from app.protocols.shared.compression import Encoding, body_encoding
from app.protocols.shared.errors import STATUS_CLIENT_GONE, ClientGone, MethodNotAllowed
from app.protocols.shared.routes import NotImported, ResolvedRoute, RouteTable
from frameworks.core.errors import Draining
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES


class Endpoint:
    """The ASGI application: inference requests are answered here, all others by `admin`.

    Every outcome of an inference request is sent, counted and logged here.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        table: RouteTable,
        admin: ASGIApp,
        origins: OriginPolicy,
        gate: HttpGate | None = None,
        prefixes: PathPrefixes | None = None,
    ) -> None:
        """`gate`: decides on every request before it is routed; None: all may call. `prefixes`: of the paths."""
        self._pipeline = pipeline
        self._observer = pipeline.observer
        self._tracer = pipeline.observer.tracer
        self._max_body_bytes = pipeline.bounds.max_body_bytes
        self._uncounted_bytes = min(UNCOUNTED_BYTES, self._max_body_bytes)
        self._watcher = DisconnectWatcher()
        self._table = table
        self._find_route = table.find
        self._origins = origins
        self._known_hosts = origins.known_hosts
        self._admin = admin
        self._gate = gate
        self._prefixes = prefixes

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._admin(scope, receive, send)
        if self._prefixes is not None:
            self._prefixes.set_prefix(scope)
        head, fast_path = RequestHead(scope), (scope.get("extensions") or {}).pop(FAST_PATH, None)
        request = HttpRequest(self._watcher, head, receive, send, fast_path)
        return self._begin(request, scope)

    def _repeat(self, head: RequestHead, cycle: Any) -> Coroutine[Any, Any, None]:
        """Answer another request with this head on its connection, which was one for inference. `cycle`: its Cycle."""
        request = HttpRequest(self._watcher, head, cycle.receive, cycle.send, cycle)
        return cast("Coroutine[Any, Any, None]", self._begin(request, cycle.scope))

    def _begin(self, request: HttpRequest, scope: Scope) -> Awaitable[None]:
        """Check the key, and answer a request for inference, or let `admin` answer the others."""
        gate, tracer = self._gate, self._tracer
        if gate is not None and gate.keys.required:
            refusal = gate.check(scope, request)
            if tracer is not None:
                request.trace = tracer.begin(scope["headers"])
            if refusal is not None:
                return gate.refuse(refusal, scope, request)
            if request.digest is not None and gate.shares_nonces:
                return self._answer_signed(gate, request, scope)
        elif tracer is not None:
            request.trace = tracer.begin(scope["headers"])
        try:
            route = self._find_route(scope["path"])
        except NotImported:
            return self._dispatch(request, scope)
        if (
            route is None
            or scope["method"] in route.others
            or (scope["method"] == "OPTIONS" and is_preflight(scope["headers"]))
        ):
            scope["record"] = request
            return self._admin(scope, request.receive, request.send)
        return self._answer(route, request, scope)

    async def _dispatch(self, request: HttpRequest, scope: Scope) -> None:
        """As the end of `_begin`, for a route that may have to be imported first."""
        try:
            route = self._find_route(scope["path"])
        except NotImported:
            await to_thread(self._table.import_others)
            route = self._find_route(scope["path"])
        is_preflighted = scope["method"] == "OPTIONS" and is_preflight(scope["headers"])
        if route is None or scope["method"] in route.others or is_preflighted:
            scope["record"] = request
            await self._admin(scope, request.receive, request.send)
        else:
            await self._answer(route, request, scope)

    async def _answer_signed(self, gate: HttpGate, request: HttpRequest, scope: Scope) -> None:
        """Answer a signed request after its nonce was noted."""
        refusal = await gate.use_nonce(scope, request)
        if refusal is not None:
            await gate.refuse(refusal, scope, request)
        else:
            await self._dispatch(request, scope)

    async def _answer(self, route: ResolvedRoute, request: HttpRequest, scope: Scope) -> None:
        """Answer an inference request."""
        observer = self._observer
        codec = request.codec = route.codec
        observer.inflight += 1
        try:
            # Most requests need no more than this: the same host as before, and no web page.
            is_known = request.head.plain_host in self._known_hosts
            request.headers = self._origins.plain if is_known else self._origins.check(scope)
            if scope["method"] != "POST":
                raise MethodNotAllowed(scope["method"], scope["path"], route.allowed)
            encoding = None
            if not request.head.is_json or codec.reads_headers:
                codec = request.codec = codec.for_head(scope["headers"], scope["query_string"])
                encoding = body_encoding(scope["headers"]) if request.head.is_encoded else None
            self._pipeline.admit(request)
            try:
                await self._receive(request, route.target, encoding, scope)
                # As DisconnectWatcher.add, whose call would be one more for each request.
                fast_path, watcher = request.fast_path, self._watcher
                if fast_path is None:
                    request.task = current_task()
                else:
                    request.task = fast_path.task
                    if fast_path.repeat is None:
                        fast_path.repeat = partial(self._repeat, request.head)
                watcher.young[request] = None
                if watcher.timer is None:
                    watcher.start_timer()
                encoded = await self._pipeline.run(request)
                if isinstance(encoded, EncodedResponse):
                    await request.respond(200, encoded.body, encoded.content_type, encoded.headers, request.permit)
                elif encoded is not None:
                    await request.respond(200, encoded, permit=request.permit)
            finally:
                request.permit.release()
        except ClientGone:
            request.status, request.code = STATUS_CLIENT_GONE, "client_gone"
        except (Exception, CancelledError) as error:  # noqa: BLE001 - the last handler before the client
            # No other name may hold the error: its traceback holds this frame, and with it the body.
            await request.refuse(_reported(error), request.codec)
        finally:
            self._watcher.young.pop(request, None)
            observer.inflight -= 1
            observer.record_inference(request, time.perf_counter() - request.started_s)

    async def _receive(self, request: HttpRequest, target: Target, encoding: Encoding | None, scope: Scope) -> None:
        """Receive the body, and set how it is decoded. First raise what keeps the model or the resource of the path
        from answering.
        """
        codec, fast_path = request.codec, request.fast_path
        if target.model is not None:
            request.check_available(target.model, target.version)
        elif target.resource is not None:
            self._pipeline.resources[target.kind](request, target.resource)
        body = fast_path.take_body() if fast_path is not None else None
        lead_bytes = codec.lead_bytes if encoding is None else 0
        if body is None or lead_bytes or not 0 < len(body) <= self._uncounted_bytes:
            body = await request.complete_body(body, scope, target, encoding, self._max_body_bytes)
        request.request_bytes = len(body) - lead_bytes
        if request.digest is not None:
            await check_digest(request, body, self._observer, lead_bytes)
        if encoding is None:
            request.open_body(body, target)
        else:
            request.open_compressed(body, target, encoding, self._max_body_bytes)


def _reported(error: Exception | CancelledError) -> Exception:
    """Return the error that is sent. Only the end of the drain time cancels a request, which is answered too."""
    return Draining(Draining.UNANSWERED) if isinstance(error, CancelledError) else error
