"""Bound the memory of a collection by the server's budget: its threads compare, and the event loop reserves."""

import asyncio
import math
import threading

from frameworks.core.errors import Draining
from frameworks.models.residency.ledger import Holding

_STEP_BYTES = 1024 * 1024
"""Reservations are multiples of it, so that few changes have to wait for a larger one."""


class MemoryNeeded(Exception):
    """A change needs `size_bytes` in all, more than is reserved. It is made again after a reservation."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"expected a reservation of {size_bytes} bytes")
        self.size_bytes = size_bytes


class Grant:
    """The bytes that a collection, or the rebuild of its index, may use. Construct it on the event loop.

    `granted` is never more than the reservation: the event loop raises it after the reservation, and it is lowered
    before. The threads read and lower it while they hold the lock `writing` of the collection.
    """

    def __init__(self, reservation: Holding | None) -> None:
        """`reservation`: None without a bound."""
        self._reservation = reservation
        self._loop = asyncio.get_running_loop()
        self._growing = asyncio.Lock()
        self.granted: float = math.inf if reservation is None else 0
        self._is_closed = False

    @property
    def is_bounded(self) -> bool:
        return self._reservation is not None

    async def grow(self, size_bytes: int, *, may_evict: bool = True) -> None:
        """Reserve at least so many bytes in all. Raises OutOfMemory, and Draining after `close`."""
        async with self._growing:
            if self._reservation is not None and size_bytes > self.granted:
                wanted = _in_steps(size_bytes)
                await self._reservation.resize(wanted, may_evict=may_evict)
                if self._is_closed:
                    self._reservation.release()
                    raise Draining(Draining.REFUSED)
                self.granted = wanted

    def grow_from_thread(self, size_bytes: int, *, may_evict: bool = True) -> None:
        """As `grow`, from another thread, which waits for it."""
        if size_bytes > self.granted:
            asyncio.run_coroutine_threadsafe(self.grow(size_bytes, may_evict=may_evict), self._loop).result()

    def lower(self, size_bytes: int) -> None:
        """Have no more than `size_bytes`. Called from another thread, which does not wait for the reservation."""
        if self._reservation is not None and _in_steps(size_bytes) < self.granted:
            self.granted = _in_steps(size_bytes)
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        if self._reservation is not None and self.granted:
            self._reservation.settle(int(self.granted))

    def take_over(self, other: "Grant", size_bytes: int) -> None:
        """Have `size_bytes`, and free the other grant, at once. Called from another thread, which waits.

        The bytes are there if both together have as many.
        """
        if self._reservation is None:
            return
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._take_over, other, size_bytes, done)
        done.wait()

    def _take_over(self, other: "Grant", size_bytes: int, done: threading.Event) -> None:
        assert self._reservation is not None
        try:
            other.release()
            self.granted = _in_steps(size_bytes)
            self._reservation.settle(_in_steps(size_bytes))
        finally:
            done.set()

    def release(self) -> None:
        """Free the reservation."""
        if self._reservation is not None:
            self.granted = 0
            self._reservation.release()

    def close(self) -> None:
        """Free the reservation, and refuse further ones."""
        self._is_closed = True
        self.release()

    def release_from_thread(self) -> None:
        """As `release`, from another thread, which does not wait."""
        if self._reservation is not None:
            self._loop.call_soon_threadsafe(self.release)


def _in_steps(size_bytes: int) -> int:
    return math.ceil(size_bytes / _STEP_BYTES) * _STEP_BYTES
