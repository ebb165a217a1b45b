"""Responses with the headers that every response carries, and errors mapped to them."""

import time
from collections.abc import Sequence

import orjson
import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.auth.authenticator import CREDENTIAL_HEADERS
from app.http.listener.protocol import FAST_PATH
from app.http.rate_limit_headers import rate_limit_headers
from app.observability.metrics import RequestRecord, checked_id, server_timing, shown_path
from app.protocols.shared.codec import JSON_HEADER, Codec, Header
from app.protocols.shared.errors import ErrorReply, TooLarge, extra_headers, to_http
from frameworks.core.errors import RoundhouseError
from frameworks.scheduling.admission import Permit
from frameworks.scheduling.byte_limit import UNCOUNTED_BYTES

log = structlog.get_logger(__name__)

PAGE_HEADERS = (b"origin", b"sec-fetch-site")
"""Headers by which a browser says which page sends a request."""

_OPENAI_PATHS = "/v1/"
_CLOSE = (b"connection", b"close")
_BODY_HEADERS = (b"content-type", b"content-encoding")
_READ_HEADERS = frozenset({b"host", b"x-request-id", *_BODY_HEADERS, *PAGE_HEADERS, *CREDENTIAL_HEADERS})


class AsgiResponse(Response):
    """A response that an ASGI application sends."""

    def __init__(self, answer: ASGIApp) -> None:
        self._answer = answer
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope, receive, send)


def begin_record(scope: Scope) -> RequestRecord:
    """Return the record of a request that has just arrived."""
    given_id = host = b""
    is_plain = is_json = True
    credentials: tuple[Header, ...] = ()
    for name, value in scope["headers"]:
        if name not in _READ_HEADERS:
            continue
        if name == b"host":
            is_plain = is_plain and not host
            host = value
        elif name == b"x-request-id":
            given_id = given_id or value
        elif name in _BODY_HEADERS:
            is_json = is_json and (name, value) == JSON_HEADER
        elif name in PAGE_HEADERS:
            is_plain = False
        elif len(credentials) <= len(CREDENTIAL_HEADERS):
            # One more than there are names shows that one is repeated.
            credentials = (*credentials, (name, value))
    record = RequestRecord(checked_id(given_id), scope["method"], scope["path"], time.perf_counter())
    record.is_json = is_json
    if is_plain:
        record.plain_host = host
    if credentials:
        record.credentials = credentials
    record.fast_path = (scope.get("extensions") or {}).get(FAST_PATH)
    return record


def own_headers(record: RequestRecord) -> Sequence[Header]:
    """Return the headers of the response that the record knows: those for web pages, and OpenAI's rate limits."""
    if record.limits is None or not record.path.startswith(_OPENAI_PATHS):
        return record.headers
    return [*record.headers, *rate_limit_headers(record.limits)]


def id_headers(codec: Codec, record: RequestRecord) -> list[Header]:
    """Return the header of the codec's own that names the request; none for most codecs."""
    return [(codec.id_header, record.request_id.encode())] if codec.id_header else []


async def send_body(
    send: Send,
    record: RequestRecord,
    status: int,
    body: bytes,
    content_type: bytes = b"application/json",
    headers: list[Header] | None = None,
    permit: Permit | None = None,
) -> None:
    """Send a whole response, over the connection's fast path if it has one.

    `permit`: counts a body that cannot be sent at once; the connection counts what its reader has not taken.
    """
    record.status, record.response_bytes = status, len(body)
    timing = server_timing(record.timings)
    if record.headers or record.limits is not None:
        headers = [*(headers or ()), *own_headers(record)]
    if record.fast_path is not None and (not headers or _CLOSE not in headers):
        lines = (
            f"content-type: {content_type.decode()}\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {record.request_id}\r\nserver-timing: {timing}\r\n"
        )
        for name, value in headers or ():
            lines += f"{name.decode()}: {value.decode()}\r\n"
        if record.fast_path.respond(status, lines.encode("ascii"), body):
            return
    if permit is not None and len(body) > UNCOUNTED_BYTES:
        hold = permit.hold_bytes()
        hold.add(len(body) - hold.held_bytes)
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", content_type),
                (b"content-length", str(len(body)).encode()),
                (b"x-request-id", record.request_id.encode()),
                (b"server-timing", timing.encode()),
                *(headers or ()),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


def json_response(content: object, status: int = 200) -> Response:
    """Return the response of a FastAPI route: JSON written by orjson."""
    return Response(orjson.dumps(content), status, media_type="application/json")


def map_error(error: BaseException, record: RequestRecord) -> ErrorReply:
    """Return the reply to an error, and note its code and its public text on the record, which other keys may see.

    An internal error (500) is logged with its traceback, which no response contains.
    """
    reply = to_http(error, record.principal.sees_paths)
    if reply.status == 500:
        log.error(
            "internal error",
            request_id=record.request_id,
            trace_id=record.trace_id,
            path=shown_path(record.path),
            exc_info=error,
        )
    record.code, record.error = reply.code, error.public if isinstance(error, RoundhouseError) else reply.message
    return reply


def error_body(error: BaseException, record: RequestRecord, codec: Codec) -> tuple[int, bytes]:
    """Return the status and the body of an error response; see `map_error`."""
    reply = map_error(error, record)
    return reply.status, codec.error_body(reply, record.request_id)


async def send_error(
    send: Send, record: RequestRecord, error: BaseException, codec: Codec, is_unread: bool = False
) -> None:
    """Send an error response, and close the connection if the request's body was not read to the end.

    `is_unread`: a part of the body is not read.
    """
    status, body = error_body(error, record, codec)
    headers = [*extra_headers(error), *id_headers(codec, record)]
    if is_unread or isinstance(error, TooLarge):
        headers.append(_CLOSE)
    await send_body(send, record, status, body, headers=headers)
