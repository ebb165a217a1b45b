"""The headers of responses beside those of their bodies, and the bodies of errors."""

from collections.abc import Sequence
from math import ceil

import structlog

from app.auth.quotas import TenantLimits
from app.auth.token_bucket import TokenBucket
from app.observability.metrics import RequestRecord, shown_path
from app.protocols.shared.codec import Codec, Header
from app.protocols.shared.errors import ErrorReply, to_http
from frameworks.core.errors import RoundhouseError

log = structlog.get_logger(__name__)

_OPENAI_PATHS = "/v1/"


def own_headers(record: RequestRecord) -> Sequence[Header]:
    """Return the headers of the response that the record knows: those for web pages, and OpenAI's rate limits."""
    if record.limits is None or not record.path.startswith(_OPENAI_PATHS):
        return record.headers
    return [*record.headers, *rate_limit_headers(record.limits)]


def id_headers(codec: Codec, record: RequestRecord) -> list[Header]:
    """Return the header of the codec's own that names the request; none for most codecs."""
    return [(codec.id_header, record.request_id.encode())] if codec.id_header else []


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


def rate_limit_headers(limits: TenantLimits) -> list[tuple[bytes, bytes]]:
    """Return OpenAI's `x-ratelimit-*` headers of the limits that the tenant has: of requests and of tokens."""
    headers: list[tuple[bytes, bytes]] = []
    for bucket, unit in ((limits.requests, b"requests"), (limits.tokens, b"tokens")):
        if bucket is not None:
            headers += _headers_of(bucket, unit)
    return headers


def _headers_of(bucket: TokenBucket, unit: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-ratelimit-limit-%b" % unit, b"%d" % bucket.per_minute),
        (b"x-ratelimit-remaining-%b" % unit, b"%d" % bucket.left()),
        (b"x-ratelimit-reset-%b" % unit, format_duration(bucket.reset_s()).encode()),
    ]


def format_duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it, rounded up to milliseconds: `0s`, `12ms`, `7.66s`, `6m0s`, `1h0m2s`."""
    # A rounding error of the seconds is no millisecond.
    total_ms = ceil(round(seconds * 1000, 6))
    if total_ms < 1000:
        return f"{total_ms}ms" if total_ms else "0s"
    minutes, ms = divmod(total_ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    left = f"{ms / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{left}"
    return f"{minutes}m{left}" if minutes else left
