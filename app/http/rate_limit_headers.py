"""OpenAI's `x-ratelimit-*` headers: what a tenant may use, and when all of it is there again."""

from math import ceil

from app.auth.quotas import TenantLimits
from app.auth.token_bucket import TokenBucket


def rate_limit_headers(limits: TenantLimits) -> list[tuple[bytes, bytes]]:
    """Return the headers of the tenant's limits of requests and of tokens; none for a limit that it does not have."""
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
