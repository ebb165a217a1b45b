"""Check the bodies of signed requests before anything of them is executed."""

import asyncio

from starlette.types import Message, Receive, Scope

from app.auth.digests import LONG_BYTES
from app.auth.errors import Unauthenticated
from app.http.bodies import read_body
from app.observability.metrics import Observer, RequestRecord
from app.protocols.shared.errors import MAX_MANAGEMENT_BYTES, EmptyBody, TooLarge
from frameworks.scheduling.byte_limit import ByteLimit


async def check_digest(record: RequestRecord, body: bytes, observer: Observer, lead_bytes: int = 0) -> None:
    """Compare a body, as sent behind `lead_bytes` bytes of padding, with the digest of its signed request.

    Raises Unauthenticated.
    """
    if record.digest is None:
        return
    sent = memoryview(body)[lead_bytes:]
    try:
        if len(sent) < LONG_BYTES:
            record.digest.check(sent)
        else:
            await asyncio.to_thread(record.digest.check, sent)
    except Unauthenticated as error:
        observer.auth_failures[error.reason] += 1
        raise


async def receive_checked(
    scope: Scope, receive: Receive, record: RequestRecord, observer: Observer, byte_limit: ByteLimit
) -> Receive:
    """Return a `receive` whose body agrees with the digest of a signed request; without a signature `receive` itself.

    For routes that read short bodies. Raises Unauthenticated, TooLarge, ClientGone, RequestTimeout.
    """
    if record.digest is None:
        return receive
    try:
        with byte_limit.hold() as hold:
            body = await read_body(scope, receive, MAX_MANAGEMENT_BYTES, hold)
    except EmptyBody:
        body = b""
    except TooLarge:
        raise TooLarge.for_management() from None
    await check_digest(record, body, observer)
    is_read = False

    async def receive_again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
