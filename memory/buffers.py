"""Where a pool's buffers come from, and in which sizes: the host's by numpy, other devices' by who knows them."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

ALIGNMENT_BYTES = 64
"""A cache line, and what the widest vector instructions want."""

Array = np.ndarray[Any, np.dtype[Any]]


class BufferSource(Protocol):
    """Makes a device's buffers. Called by several threads at once."""

    def make(self, size_bytes: int) -> Array:
        """uint8 [size_bytes], aligned to ALIGNMENT_BYTES; what is in it does not matter. Raises MemoryError."""
        ...


class HostBuffers:
    """Ordinary memory of the host."""

    def make(self, size_bytes: int) -> Array:
        """See BufferSource. Pages that are never written to take no memory."""
        room = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
        start = -room.ctypes.data % ALIGNMENT_BYTES
        return room[start : start + size_bytes]


@dataclass(slots=True, eq=False)
class Buffer:
    """Bytes of a device. `size_class` is None for one that is beyond the pool's ceiling and not kept."""

    device: str
    size_class: int | None
    content: Array
    address: int
    released: int = 0
    """When it was released last: of two the one with the higher number later."""


def size_classes(count: int, largest_bytes: int) -> list[int]:
    """Ascending: the largest, half of it, a quarter, …: at most `count`.

    Finer steps would waste less of a buffer, 9 % of it instead of 28 % in the mean over all sizes; but what is not
    written to is no memory yet, and batches of five to eight rows use each other's buffers.
    """
    largest = _aligned(largest_bytes)
    return sorted({_aligned(largest >> halvings) for halvings in range(count)})


def _aligned(size_bytes: int) -> int:
    return max(1, -(-size_bytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES
