"""The ASGI endpoint of inference requests. It runs in front of FastAPI's router, which costs 150 µs a request."""

import re
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.bodies import check_body, declared_length, read_body, read_body_into
from app.http.digests import check_digest
from app.http.disconnects import DisconnectWatcher, WatchedRequest
from app.http.gate import HttpGate
from app.http.listener.parsing import LONG_BODY_BYTES
from app.http.origins import OriginPolicy, is_preflight
from app.http.prefixes import PathPrefixes
from app.http.responses import begin_record, id_headers, send_body, send_error
from app.http.sse import EventStream
from app.inference.context import RequestContext
from app.inference.pipeline import DecodedRequest, FindSpec, Pipeline
from app.observability.metrics import RequestRecord
from app.protocols.shared.codec import NEVER_LONG_BYTES, AnswerContext, Codec, EncodedResponse, Target
from app.protocols.shared.compression import Encoding, body_encoding, decompress
from app.protocols.shared.errors import STATUS_CLIENT_GONE, ClientGone, MethodNotAllowed
from app.protocols.shared.routes import ResolvedRoute, RouteTable
from frameworks.core.errors import Draining
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES

_MODEL_NAME = re.compile(rb'"model(?:_name)?"\s*:\s*"([^"\\]{1,128})"')
_EARLY_REJECT_BYTES = 4096


class HttpExchange(WatchedRequest):
    """One inference request over HTTP, as the pipeline's Exchange."""

    __slots__ = ("_send", "codec", "decode", "is_long_to_decode", "is_long_to_encode")

    keeps_body = False
    codec: Codec
    """That of the path, until the headers and the body tell more. It writes the errors."""
    decode: Callable[[FindSpec], DecodedRequest]

    def open(self, codec: Codec, target: Target, body: bytes, send: Send) -> None:
        """Set how the request is decoded and its response encoded and sent. `codec`: by the headers."""
        self.codec = codec = codec.for_body(body) if codec.reads_body else codec
        self._send = send
        self.decode = partial(codec.decode, body, target)
        self.is_long_to_decode = len(body) >= NEVER_LONG_BYTES and codec.is_long_to_read(body)
        self.is_long_to_encode = codec.is_long_to_write

    def open_compressed(self, target: Target, inflate: Callable[[], bytes], send: Send) -> None:
        """As `open`, for a body that `inflate` returns."""
        self._send = send
        # The decompressed body may be a thousand times as long as the one that was sent.
        self.is_long_to_decode = True
        self.decode = partial(self._decode_inflated, target, inflate)

    def _decode_inflated(self, target: Target, inflate: Callable[[], bytes], find_spec: FindSpec) -> DecodedRequest:
        body = inflate()
        # Once: a request that waits for a load is decoded again.
        self.open(self.codec, target, body, self._send)
        return self.decode(find_spec)

    def drop_body(self) -> None:
        del self.decode

    def encode(self, decoded: Any, answer: Any) -> bytes | EncodedResponse:
        return self.codec.encode(decoded, answer, self._answer_context())

    def open_stream(self, decoded: Any) -> EventStream:
        writer = self.codec.stream_writer(decoded, self._answer_context())
        headers = [*id_headers(self.codec, self.record), *self.codec.headers_of(decoded)]
        return EventStream(self._send, self, writer, headers, self.codec.streams_lines)

    def _answer_context(self) -> AnswerContext:
        record = self.record
        latency_ms = (time.perf_counter() - record.started_s) * 1e3
        return AnswerContext(record.answered_name, record.version, record.request_id, latency_ms, int(time.time()))


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
        record = begin_record(scope)
        gate, tracer = self._gate, self._tracer
        if gate is not None and gate.keys.required:
            refusal = gate.check(scope, record)
            if tracer is not None:
                record.trace = tracer.begin(scope["headers"])
            if refusal is not None:
                return gate.refuse(refusal, scope, record, send)
            if record.digest is not None and gate.shares_nonces:
                return self._answer_signed(gate, record, scope, receive, send)
        elif tracer is not None:
            record.trace = tracer.begin(scope["headers"])
        route = self._find_route(scope["path"])
        if (
            route is None
            or scope["method"] in route.others
            or (scope["method"] == "OPTIONS" and is_preflight(scope["headers"]))
        ):
            scope["record"] = record
            return self._admin(scope, receive, send)
        return self._answer(route, record, scope, receive, send)

    async def _answer_signed(
        self, gate: HttpGate, record: RequestRecord, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a signed request after its nonce was noted. It is no preflight, which no gate verifies."""
        refusal = await gate.use_nonce(scope, record)
        route = self._find_route(scope["path"])
        if refusal is not None:
            await gate.refuse(refusal, scope, record, send)
        elif route is None or scope["method"] in route.others:
            scope["record"] = record
            await self._admin(scope, receive, send)
        else:
            await self._answer(route, record, scope, receive, send)

    async def _answer(
        self, route: ResolvedRoute, record: RequestRecord, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer an inference request."""
        observer = self._observer
        exchange = HttpExchange(self._watcher, receive, record)
        codec = exchange.codec = route.codec
        observer.inflight += 1
        try:
            # Most requests need no more than this: the same host as before, and no web page.
            is_known = record.plain_host in self._known_hosts
            record.headers = self._origins.plain if is_known else self._origins.check(scope)
            if scope["method"] != "POST":
                raise MethodNotAllowed(scope["method"], scope["path"], route.allowed)
            is_usual = record.is_json and not codec.reads_headers
            codec, encoding = (codec, None) if is_usual else _read_headers(codec, scope)
            exchange.codec = codec
            context = self._pipeline.admit(record)
            try:
                if route.target.model is not None or route.target.resource is not None:
                    self._check_available(context, route.target)
                body = record.fast_path.take_body() if record.fast_path is not None else None
                lead_bytes = codec.lead_bytes if encoding is None else 0
                if body is None or lead_bytes or not 0 < len(body) <= self._uncounted_bytes:
                    body = await self._complete_body(body, scope, exchange, context, route.target, encoding)
                record.request_bytes = len(body) - lead_bytes
                if record.digest is not None:
                    await check_digest(record, body, observer, lead_bytes)
                if encoding is None:
                    exchange.open(codec, route.target, body, send)
                else:
                    self._open_compressed(exchange, context, route.target, body, encoding, send)
                del body
                encoded = await self._pipeline.run(context, exchange)
                if isinstance(encoded, EncodedResponse):
                    await send_body(
                        send, record, 200, encoded.body, encoded.content_type, encoded.headers, context.permit
                    )
                elif encoded is not None:
                    await send_body(send, record, 200, encoded, permit=context.permit)
            finally:
                context.permit.release()
        except ClientGone:
            record.status, record.code = STATUS_CLIENT_GONE, "client_gone"
        except (Exception, CancelledError) as error:  # noqa: BLE001 - the last handler before the client
            # No other name may hold the error: its traceback holds this frame, and with it the body.
            await send_error(send, record, _reported(error), exchange.codec)
        finally:
            observer.inflight -= 1
            observer.record_inference(record, time.perf_counter() - record.started_s)

    def _open_compressed(
        self,
        exchange: HttpExchange,
        context: RequestContext,
        target: Target,
        body: bytes,
        encoding: Encoding,
        send: Send,
    ) -> None:
        """Let the exchange decompress the body when it is decoded, within the bounds of bodies."""
        grow, lead_bytes = context.permit.hold_bytes().grow, exchange.codec.lead_bytes
        inflate = partial(decompress, body, encoding, self._max_body_bytes, grow, lead_bytes)
        exchange.open_compressed(target, inflate, send)

    def _check_available(self, context: RequestContext, target: Target) -> None:
        """Raise what keeps the model or the resource of the path from answering, before the body is read."""
        if target.model is not None:
            context.check_available(target.model, target.version)
        elif target.resource is not None:
            self._pipeline.resources[target.kind](context.record, target.resource)

    async def _complete_body(
        self,
        body: bytes | None,
        scope: Scope,
        exchange: HttpExchange,
        context: RequestContext,
        target: Target,
        encoding: Encoding | None,
    ) -> bytes:
        """Return the whole body as sent, an uncompressed one behind the `lead_bytes` of the codec.

        `body` None: it has not arrived yet.

        Raises TooLarge, EmptyBody, ClientGone, RequestTimeout; Overloaded before a long body is read that the model
        would refuse, when its bytes are too many for the server, and after that if the server is full.
        """
        codec, hold = exchange.codec, context.permit.hold_bytes()
        lead_bytes = codec.lead_bytes if encoding is None else 0
        if body is not None:
            check_body(body, self._max_body_bytes)
            if len(body) > UNCOUNTED_BYTES:
                hold.grow(len(body))
            return bytes(lead_bytes) + body if lead_bytes else body
        names_model = target.model is None and target.resource is None and encoding is None
        early_reject = partial(_early_reject, context) if names_model else None
        fast_path = exchange.record.fast_path
        permit, model = context.permit, target.model
        permit.suspend()
        length = None
        is_viewed = codec.views_body and encoding is None
        if is_viewed and model is not None and fast_path is not None and fast_path.receives_into:
            length = declared_length(scope["headers"], self._max_body_bytes, hold)
        if length is None or length < LONG_BODY_BYTES:
            whole = await read_body(
                scope, exchange.receive, self._max_body_bytes, hold, early_reject, fast_path, lead_bytes
            )
        else:
            assert fast_path is not None
            assert model is not None
            lease = partial(context.lease_body, model, target.version)
            view = await read_body_into(exchange.receive, fast_path, hold, lease, lead_bytes, length)
            whole = cast("bytes", view)  # as `views_body` says
        permit.resume()
        return whole


def _read_headers(codec: Codec, scope: Scope) -> tuple[Codec, Encoding | None]:
    """Return the codec for a request with these headers and this query, and the encoding of its body.

    Raises UnsupportedMediaType, InvalidInput.
    """
    codec = codec.for_headers(scope["headers"])
    query = scope["query_string"]
    codec = codec.for_query(query) if query and codec.reads_query else codec
    return codec, body_encoding(scope["headers"])


def _reported(error: Exception | CancelledError) -> Exception:
    """Return the error that is sent. Only the end of the drain time cancels a request, which is answered too."""
    return Draining(Draining.UNANSWERED) if isinstance(error, CancelledError) else error


def _early_reject(context: RequestContext, beginning: bytes) -> None:
    """Refuse a long body for a model that has no room, before all of it is read. Raises Overloaded.

    The bytes `"model"` cannot stand inside a JSON string, where quotes are escaped.
    """
    named = _MODEL_NAME.search(beginning[:_EARLY_REJECT_BYTES])
    if named is not None:
        context.check_queue_of(named[1].decode("utf-8", "replace"))
