"""One request over HTTP: read from ASGI's scope, and answered over its connection."""

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from starlette.types import Receive, Scope, Send

from app.auth.authenticator import CREDENTIAL_HEADERS
from app.auth.quotas import TenantLimits
from app.http.bodies import BodyBytes, LeaseBody, check_body, declared_length, read_body, read_body_into
from app.http.disconnects import DisconnectWatcher, WatchedRequest
from app.http.listener.cycle import Cycle
from app.http.listener.parsing import LONG_BODY_BYTES
from app.http.responses import error_body, id_headers, own_headers
from app.http.sse import EventStream
from app.inference.context import RequestContext
from app.inference.contract import NamedRequest
from app.observability.metrics import checked_id, new_ids, server_timing
from app.protocols.shared.codec import (
    JSON_HEADER,
    NEVER_LONG_BYTES,
    AnswerContext,
    Codec,
    EncodedResponse,
    Header,
    Target,
)
from app.protocols.shared.compression import Encoding, decompress
from app.protocols.shared.errors import TooLarge, extra_headers
from frameworks.core.timings import Timings
from frameworks.scheduling.admission import Permit
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES
from frameworks.tasks.types import TaskRequest

PAGE_HEADERS = (b"origin", b"sec-fetch-site")
"""Headers by which a browser says which page sends a request."""

_CLOSE = (b"connection", b"close")
_JSON = JSON_HEADER[1]
_READ_HEADERS = frozenset(
    {b"host", b"x-request-id", b"content-type", b"content-encoding", *PAGE_HEADERS, *CREDENTIAL_HEADERS}
)
_MODEL_NAME = re.compile(rb'"model(?:_name)?"\s*:\s*"([^"\\]{1,128})"')
_EARLY_REJECT_BYTES = 4096


class RequestHead:
    """The method, the path and the headers of a request, as far as each inference request needs them."""

    __slots__ = ("credentials", "is_encoded", "is_json", "method", "path", "plain_host", "request_id")

    def __init__(self, scope: Scope) -> None:
        given_id = host = b""
        is_plain = True
        is_json: bool | None = None
        is_encoded = False
        credentials: tuple[Header, ...] = ()
        for name, value in scope["headers"]:
            if name not in _READ_HEADERS:
                continue
            if name == b"host":
                is_plain = is_plain and not host
                host = value
            elif name == b"x-request-id":
                given_id = given_id or value
            elif name == b"content-type":
                is_json = is_json is not False and value == _JSON
            elif name == b"content-encoding":
                is_encoded = True
            elif name in PAGE_HEADERS:
                is_plain = False
            elif len(credentials) <= len(CREDENTIAL_HEADERS):
                # One more than there are names shows that one is repeated.
                credentials = (*credentials, (name, value))
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.request_id = checked_id(given_id) if given_id else ""
        """The valid id that the client gave; empty for none."""
        self.is_json = is_json is True and not is_encoded
        """Whether the headers say that the body is uncompressed JSON."""
        self.is_encoded = is_encoded
        """Whether a header names a content-encoding."""
        self.plain_host = host if is_plain else b""
        """The only Host header, if no header says that a web page sends the request."""
        self.credentials = credentials


class HttpRequest(WatchedRequest, RequestContext):
    """A request of any route, from its head to its response. Code in front of an ASGI application has it as
    `scope["record"]`.

    The attributes from `codec` on are those of inference requests.
    """

    codec: Codec
    """That of the path, until the headers and the body tell more. It writes the errors."""

    def __init__(
        self, watcher: DisconnectWatcher, head: RequestHead, receive: Receive, send: Send, fast_path: Cycle | None
    ) -> None:
        """Other attributes of the base classes have their defaults in the class."""
        self.request_id = head.request_id or next(new_ids.ids)
        self.method = head.method
        self.path = head.path
        self.started_s = time.perf_counter()
        self.timings = Timings(started_s=self.started_s)
        self.watcher = watcher
        self.receive = receive
        self.send = send
        self.fast_path: Cycle | None = fast_path
        self.head = head
        if head.credentials:
            self.credentials = head.credentials

    def set_limits(self, limits: TenantLimits) -> None:
        """Note the limits of the request's tenant, which count the bytes of its response until they are read."""
        self.limits = limits
        if self.fast_path is not None:
            self.fast_path.count_unread(limits.byte_limit)

    def abort(self) -> None:
        if self.fast_path is not None:
            self.fast_path.abort()

    async def complete_body(
        self, body: bytes | None, scope: Scope, target: Target, encoding: Encoding | None, max_body_bytes: int
    ) -> bytes:
        """Return the whole body as sent, an uncompressed one behind the `lead_bytes` of the codec.

        `body` None: it has not arrived yet.

        Raises TooLarge, EmptyBody, ClientGone, RequestTimeout; Overloaded before a long body is read that the model
        would refuse, when its bytes are too many for the server, and after that if the server is full.
        """
        hold = self.permit.hold_bytes()
        lead_bytes = self.codec.lead_bytes if encoding is None else 0
        if body is not None:
            check_body(body, max_body_bytes)
            if len(body) > UNCOUNTED_BYTES:
                hold.grow(len(body))
            return bytes(lead_bytes) + body if lead_bytes else body
        fast_path, model = self.fast_path, target.model
        self.permit.suspend()
        length = None
        if encoding is None and fast_path is not None and fast_path.receives_into:
            length = declared_length(scope["headers"], max_body_bytes, hold)
        names_model = model is None and target.resource is None and encoding is None
        early_reject = self._early_reject if names_model else None
        if length is None or length < LONG_BODY_BYTES:
            whole = await read_body(scope, self.receive, max_body_bytes, hold, early_reject, fast_path, lead_bytes)
        else:
            assert fast_path is not None
            memory = BodyBytes()
            lease: LeaseBody = memory.lease
            if self.codec.views_body and model is not None:
                lease = partial(self.lease_body, model, target.version)
            view = await read_body_into(self.receive, fast_path, hold, lease, lead_bytes, length, early_reject)
            whole = memory.content or cast("bytes", view)  # as `views_body` says
        self.permit.resume()
        return whole

    def _early_reject(self, beginning: bytes) -> None:
        """Refuse a long body for a model that has no room, before all of it is read. Raises Overloaded.

        The bytes `"model"` cannot stand inside a JSON string, where quotes are escaped.
        """
        named = _MODEL_NAME.search(beginning[:_EARLY_REJECT_BYTES])
        if named is not None:
            self.check_queue_of(named[1].decode("utf-8", "replace"))

    def open_body(self, body: bytes, target: Target) -> None:
        """Set how the request is decoded and its response encoded. `codec`: by the headers."""
        codec = self.codec
        if codec.reads_body:
            codec = self.codec = codec.for_body(body)
        self.read = partial(codec.read, body, target)
        self.is_long_to_decode = len(body) >= NEVER_LONG_BYTES and codec.is_long_to_read(body)
        self.is_long_to_encode = codec.is_long_to_write

    def open_compressed(self, body: bytes, target: Target, encoding: Encoding, max_body_bytes: int) -> None:
        """As `open_body`, for a compressed body: it is decompressed when it is read, within the bounds of bodies."""
        # The decompressed body may be a thousand times as long as the one that was sent.
        self.is_long_to_decode = True
        grow = self.permit.hold_bytes().grow
        inflate = partial(decompress, body, encoding, max_body_bytes, grow, self.codec.lead_bytes)
        self.read = partial(self._read_inflated, target, inflate)

    def _read_inflated(self, target: Target, inflate: Callable[[], bytes]) -> NamedRequest:
        try:
            body = inflate()
        finally:
            del self.read  # it refers to this object and to the compressed body
        # Once: a request that waits for a load is read again.
        self.open_body(body, target)
        return self.read()

    def encode(self, decoded: Any, answer: Any) -> bytes | EncodedResponse:
        latency_ms = (time.perf_counter() - self.started_s) * 1e3
        context = AnswerContext(self.answered_name, self.version, self.request_id, latency_ms, int(time.time()))
        return self.codec.encode(decoded, answer, context)

    def open_stream(self, decoded: Any) -> EventStream:
        latency_ms = (time.perf_counter() - self.started_s) * 1e3
        context = AnswerContext(self.answered_name, self.version, self.request_id, latency_ms, int(time.time()))
        writer = self.codec.stream_writer(decoded, context)
        headers = [*id_headers(self.codec, self), *self.codec.headers_of(decoded)]
        is_slow = type(decoded.request) is TaskRequest
        return EventStream(self.send, self, self, writer, headers, self.codec.streams_lines, is_slow)

    async def respond(
        self,
        status: int,
        body: bytes,
        content_type: bytes = b"application/json",
        headers: list[Header] | None = None,
        permit: Permit | None = None,
    ) -> None:
        """Send a whole response, over the connection's fast path if it has one.

        `permit`: counts a body that cannot be sent at once; the connection counts what its reader has not taken.
        """
        self.status, self.response_bytes = status, len(body)
        timing = server_timing(self.timings)
        if self.headers or self.limits is not None:
            headers = [*(headers or ()), *own_headers(self)]
        if self.fast_path is not None and (not headers or _CLOSE not in headers):
            lines = (
                f"content-type: {content_type.decode()}\r\ncontent-length: {len(body)}\r\n"
                f"x-request-id: {self.request_id}\r\nserver-timing: {timing}\r\n"
            )
            for name, value in headers or ():
                lines += f"{name.decode()}: {value.decode()}\r\n"
            if self.fast_path.respond(status, lines.encode("ascii"), body):
                return
        if permit is not None and len(body) > UNCOUNTED_BYTES:
            hold = permit.hold_bytes()
            hold.add(len(body) - hold.held_bytes)
        await self.send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", content_type),
                    (b"content-length", str(len(body)).encode()),
                    (b"x-request-id", self.request_id.encode()),
                    (b"server-timing", timing.encode()),
                    *(headers or ()),
                ],
            }
        )
        await self.send({"type": "http.response.body", "body": body})

    async def refuse(self, error: BaseException, codec: Codec, is_unread: bool = False) -> None:
        """Send an error response, and close the connection if the request's body was not read to the end.

        `is_unread`: a part of the body is not read.
        """
        status, body = error_body(error, self, codec)
        headers = [*extra_headers(error), *id_headers(codec, self)]
        if is_unread or isinstance(error, TooLarge):
            headers.append(_CLOSE)
        await self.respond(status, body, headers=headers)
