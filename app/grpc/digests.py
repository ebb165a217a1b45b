"""Check signed calls before anything of them is executed: the nonce, then the only message that a signature covers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple, cast

from app.auth.digests import LONG_BYTES, BodyDigest, parse_digest
from app.auth.errors import Unauthenticated
from app.grpc.call import Call, GrpcError, Stream, Unary

_DIGEST = b"content-digest"


class SignedChecks(NamedTuple):
    """How a signed call is checked.

    `use_nonce`: note its nonce; raises GrpcError for a replay. `refuse`: count and log a call that is refused; return
    the error that ends it.
    """

    use_nonce: Callable[[Call], Awaitable[None]]
    refuse: Callable[[Unauthenticated, Call], Awaitable[GrpcError]]


async def answer_signed(handler: Unary, checks: SignedChecks, request: bytes, call: Call) -> bytes:
    """Answer the request of a signed call. Raises GrpcError."""
    await checks.use_nonce(call)
    await _SignedRequests(checks, call).check(request)
    return await handler(request, call)


async def answer_signed_stream(
    handler: Stream, checks: SignedChecks, requests: AsyncIterator[bytes], call: Call
) -> AsyncIterator[bytes]:
    """Answer the only request of a signed stream. Raises GrpcError, also for a second request."""
    await checks.use_nonce(call)
    responses = cast(Any, handler(_SignedRequests(checks, call, requests), call))
    async with aclosing(responses):
        async for response in responses:
            yield response


class _SignedRequests:
    """Iterate the requests of a signed stream: one that agrees with the digest of the signature."""

    def __init__(self, checks: SignedChecks, call: Call, requests: AsyncIterator[bytes] | None = None) -> None:
        """`call`: its signature was verified, with the digest among its metadata."""
        self._refuse = checks.refuse
        self._call = call
        self._requests = requests
        self._is_read = False

    def __aiter__(self) -> "_SignedRequests":
        return self

    async def __anext__(self) -> bytes:
        assert self._requests is not None
        request = await anext(self._requests)
        if self._is_read:
            error = Unauthenticated(
                "signature: expected one request in a stream of a signed key, got another; call again for each"
            )
            raise await self._refuse(error, self._call)
        self._is_read = True
        await self.check(request)
        return request

    async def check(self, request: bytes) -> None:
        """Raise GrpcError unless the request agrees with the digest."""
        try:
            digest = self._digest()
            if len(request) < LONG_BYTES:
                digest.check(request)
            else:
                await asyncio.to_thread(digest.check, request)
        except Unauthenticated as error:
            raise await self._refuse(error, self._call) from None

    def _digest(self) -> BodyDigest:
        return parse_digest(next(value for name, value in self._call.headers if name == _DIGEST))
