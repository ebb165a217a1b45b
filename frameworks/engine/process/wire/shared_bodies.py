"""Bodies of requests that are received into shared memory: their tensors are not copied on the way to the process."""

from collections.abc import Callable
from typing import Any

import numpy as np

from frameworks.types import Array
from memory.shared_arena import Block, SharedArena


class SharedBody:
    """A leased block, until the last array on it is deleted. numpy's views keep a reference to it."""

    __slots__ = ("__array_interface__", "_block", "_on_unused", "arena")

    def __init__(self, arena: SharedArena, block: Block, on_unused: Callable[[int], None]) -> None:
        """`on_unused`: called once with the block's number, in any thread, also during a garbage collection."""
        self.arena = arena
        self._block = block
        self._on_unused = on_unused
        interface: dict[str, Any] = block.array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False), "version": 3}

    @property
    def array(self) -> Array:
        """Return uint8 [nbytes], writable."""
        return np.asarray(self)

    def place_of(self, array: Array) -> tuple[int, int]:
        """Return the number of the block and the offset in the arena of an array on it."""
        start: int = self.__array_interface__["data"][0]
        address: int = array.__array_interface__["data"][0]
        return self._block.number, self._block.offset + address - start

    def __del__(self) -> None:
        self._on_unused(self._block.number)


def body_under(array: Array) -> SharedBody | None:
    """Return the body that an array is a view of; None for another array."""
    base: object = array.base
    while base is not None and not isinstance(base, SharedBody):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return base
