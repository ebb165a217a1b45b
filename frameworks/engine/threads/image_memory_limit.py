"""A bound on the bytes of prepared images, over all requests of a process."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MAX_ROW_BYTES = 256 * 1024**2
"""The rows of about 440 images of 224 x 224 in float32: more batches than any device has in its queue."""


class ImageMemoryLimit:
    """Bytes that requests hold from the decoding of their images to their answer. Owned by the event loop.

    Requests wait for them in the order of their arrival. A request above the bound runs alone.
    """

    def __init__(self, max_bytes: int = MAX_ROW_BYTES) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.held_bytes = 0

    @asynccontextmanager
    async def hold(self, nbytes: int) -> AsyncIterator[None]:
        """Reserve bytes within the block. Waits until they are available."""
        if self._waiting or not self._fits(nbytes):
            await self._wait(nbytes)
        else:
            self.held_bytes += nbytes
        try:
            yield
        finally:
            self._release(nbytes)

    async def _wait(self, nbytes: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = nbytes, granted
        self._waiting.append(entry)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._release(nbytes)
            else:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                self._grant()
            raise

    def _release(self, nbytes: int) -> None:
        self.held_bytes -= nbytes
        if self._waiting:
            self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            nbytes, granted = self._waiting.popleft()
            if not granted.cancelled():
                self.held_bytes += nbytes
                granted.set_result(None)

    def _fits(self, nbytes: int) -> bool:
        return not self.held_bytes or self.held_bytes + nbytes <= self._max_bytes
