"""Lease a buffer: the lease ends by its release, or with the last array on the buffer."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np

from memory.buffers import Array, Buffer


class LeaseEnded(Exception):
    """A lease was used after its release. Another lease may use the buffer now."""


class Lease:
    """Exclusive use of a buffer until `release`, the end of a `with` block, or the deletion of the lease.

    Each array of the lease, and each view of one, keeps the lease alive, so code that only passes arrays on needs no
    lease. After `release` no such array may be used: its memory stays valid, its content may change.
    """

    __slots__ = ("__array_interface__", "_buffer", "_checks", "_give_back", "_held")

    def __init__(
        self,
        buffer: Buffer,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        give_back: Callable[[Buffer], None],
        checks: bool,
    ) -> None:
        """`give_back`: called in any thread, also during a garbage collection. `checks`: a second release raises."""
        # Popped at the release: of two threads that release at once, one gets the buffer.
        self._held = [buffer]
        self._buffer = buffer
        self._give_back = give_back
        self._checks = checks
        # numpy builds arrays on the object with this attribute, and every view keeps a reference to that object.
        self.__array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (buffer.address, False),
            "version": 3,
        }

    @property
    def array(self) -> Array:
        """Return the buffer as an array of the leased shape and dtype. Raises LeaseEnded."""
        if not self._held:
            raise LeaseEnded("expected a lease in use, got one after its release")
        return np.asarray(self)

    def release(self) -> None:
        """End the lease. With checks a second call raises LeaseEnded; without, it does nothing."""
        if not self._end() and self._checks:
            raise LeaseEnded("expected one release of the lease, got two")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def __del__(self) -> None:
        self._end()

    def _end(self) -> bool:
        try:
            buffer = self._held.pop()
        except IndexError:
            return False
        self._give_back(buffer)
        return True
