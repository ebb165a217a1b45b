"""Request bodies: read whole, within a bound on their size."""

from collections.abc import Callable

from starlette.types import Receive, Scope

from app.observability.metrics import FastPath
from app.protocols.codec import Header
from app.protocols.errors import ClientGone, EmptyBody, TooLarge

_EMPTY = "body: expected a JSON object, got an empty body; send the request as JSON"


def check_body(body: bytes, max_body_bytes: int) -> None:
    """Raise TooLarge or EmptyBody."""
    if len(body) > max_body_bytes:
        raise TooLarge(max_body_bytes)
    if not body:
        raise EmptyBody(_EMPTY)


async def read_body(
    scope: Scope,
    receive: Receive,
    max_body_bytes: int,
    early_reject: Callable[[bytes], None] | None = None,
    fast_path: FastPath | None = None,
    lead_bytes: int = 0,
) -> bytes:
    """Return the whole body behind `lead_bytes` bytes of padding.

    `early_reject` gets the first part of a body that arrives in several parts, before the rest is read; it may raise.
    Raises TooLarge (before reading, if content-length says so), EmptyBody, ClientGone.
    """
    _check_length(scope["headers"], max_body_bytes)
    parts: list[bytes] = []
    collected: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size + sum(map(len, collected)) > max_body_bytes:
            raise TooLarge(max_body_bytes)
        parts.append(part)
        if not message.get("more_body"):
            break
        if len(parts) == 1:
            if early_reject is not None:
                early_reject(part)
            if fast_path is not None:
                collected = fast_path.collect_body(max_body_bytes - size)
    if not size and not collected:
        raise EmptyBody(_EMPTY)
    if len(parts) == 1 and not lead_bytes:
        return parts[0]
    return b"".join([bytes(lead_bytes), *parts, *collected])


def _check_length(headers: list[Header], max_body_bytes: int) -> None:
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and int(value) > max_body_bytes:
            raise TooLarge(max_body_bytes)
