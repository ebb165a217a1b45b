"""Bound streams: how many of one kind are open, in all and on each connection, and how long they are idle."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from app.grpc.call import Call, GrpcError


class OpenStreams:
    """The open streams of one method. Owned by the event loop."""

    def __init__(self, owner: str, in_all: int, on_one_connection: int) -> None:
        """`owner`: named in the error message."""
        self._owner = owner
        self._in_all = in_all
        self._on_one_connection = on_one_connection
        self._open: Counter[str] = Counter()
        self.num_open = 0

    @contextmanager
    def count(self, call: Call) -> Iterator[None]:
        """Count a stream within the block. Raises GrpcError if as many are open as may be."""
        peer = call.peer
        if self._open[peer] >= self._on_one_connection:
            raise self._refusal(self._on_one_connection, "on one connection")
        if self.num_open >= self._in_all:
            raise self._refusal(self._in_all, "in all")
        self.num_open += 1
        self._open[peer] += 1
        try:
            yield
        finally:
            self.num_open -= 1
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]

    def _refusal(self, bound: int, where: str) -> GrpcError:
        reason = f"expected at most {bound} open streams {where}, got one more; end another first"
        return GrpcError("RESOURCE_EXHAUSTED", f"{self._owner}: {reason}")


async def next_request(requests: AsyncIterator[bytes], idle_s: float) -> bytes | None:
    """Return the next request, None at the end. Raises GrpcError if the client sends none for `idle_s`."""
    try:
        async with asyncio.timeout(idle_s):
            return await anext(requests, None)
    except TimeoutError:
        raise GrpcError("DEADLINE_EXCEEDED", f"the stream had no request for {idle_s:g} s; call again") from None
