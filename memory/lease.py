"""A lease of a buffer: ends by order, or with the last array that shows the buffer."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np

from memory.buffers import Array, Buffer


class LeaseEnded(Exception):
    """A lease was released twice, or asked for its array after its end: somebody else may have the buffer by now."""


class Lease:
    """Exclusive use of a buffer, until `release`, the end of a `with` block, or the death of the lease itself.

    Every array that it gives, and every view of one, keeps the lease alive: who only passes arrays on need not know
    of leases at all. After `release` no such array may be used; its memory is still there, but perhaps not its content.
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
        """`give_back` may be called by any thread, also from within a garbage collection. `checks`: a second release
        is an error.
        """
        # Popped to end the lease: of two threads that release at the same time one gets it.
        self._held = [buffer]
        self._buffer = buffer
        self._give_back = give_back
        self._checks = checks
        # How numpy takes an object for an array's memory and keeps a reference to it, whatever view is made of it.
        self.__array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (buffer.address, False),
            "version": 3,
        }

    @property
    def array(self) -> Array:
        """The buffer as an array of the shape and dtype that were asked for. Raises LeaseEnded."""
        if not self._held:
            raise LeaseEnded("the lease has ended; its buffer may be somebody else's")
        return np.asarray(self)

    def release(self) -> None:
        """Ends the lease. Raises LeaseEnded the second time, if there are checks; else that does nothing."""
        if not self._end() and self._checks:
            raise LeaseEnded("the lease was released before")

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
