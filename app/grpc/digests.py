"""Check the messages of signed calls before anything of them is executed. A signature covers one message."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

from app.auth.digests import LONG_BYTES, BodyDigest, parse_digest
from app.auth.errors import Unauthenticated
from app.grpc.call import Call, GrpcError, Stream, Unary

_DIGEST = b"content-digest"

Refuse = Callable[[Unauthenticated, Call], Awaitable[GrpcError]]
"""Count and log a call that is refused; return the error that ends it."""


async def answer_signed(handler: Unary, refuse: Refuse, request: bytes, call: Call) -> bytes:
    """Answer the request of a signed call. Raises GrpcError."""
    await _SignedRequests(refuse, call).check(request)
    return await handler(request, call)


async def answer_signed_stream(
    handler: Stream, refuse: Refuse, requests: AsyncIterator[bytes], call: Call
) -> AsyncIterator[bytes]:
    """Answer the only request of a signed stream. Raises GrpcError, also for a second request."""
    responses = cast(Any, handler(_SignedRequests(refuse, call, requests), call))
    async with aclosing(responses):
        async for response in responses:
            yield response


class _SignedRequests:
    """Iterate the requests of a signed stream: one that agrees with the digest of the signature."""

    def __init__(self, refuse: Refuse, call: Call, requests: AsyncIterator[bytes] | None = None) -> None:
        """`call`: its signature was verified, with the digest among its metadata."""
        self._refuse = refuse
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
