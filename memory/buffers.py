"""Allocate the buffers of a pool, and choose their sizes."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

ALIGNMENT_BYTES = 64
"""Size of a cache line, and the alignment of the widest vector instructions."""

Array = np.ndarray[Any, np.dtype[Any]]


class BufferSource(Protocol):
    """Allocates the buffers of a device. Thread-safe."""

    def make(self, size_bytes: int) -> Array:
        """Return uint8 [size_bytes] with any content, aligned to ALIGNMENT_BYTES. Raises MemoryError."""
        ...


class HostBuffers:
    """Pageable memory of the host."""

    def make(self, size_bytes: int) -> Array:
        """Allocate as BufferSource describes. Pages that are never written take no memory."""
        memory = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT_BYTES
        return memory[start : start + size_bytes]


@dataclass(slots=True, eq=False)
class Buffer:
    """Bytes of a device. `size_class`: None for a buffer beyond the pool's maximum, which is not reused."""

    device: str
    size_class: int | None
    content: Array
    address: int
    released: int = 0
    """Order of the last release: a higher number is later."""


def size_classes(count: int, largest_bytes: int) -> list[int]:
    """Return at most `count` sizes, ascending: the largest, half of it, a quarter, and so on.

    Finer steps would waste 9 % of a buffer instead of 28 % on average over all sizes. But unwritten pages take no
    memory, and with these steps batches of five to eight rows reuse the same buffers.
    """
    largest = _aligned(largest_bytes)
    return sorted({_aligned(largest >> halvings) for halvings in range(count)})


def _aligned(size_bytes: int) -> int:
    return max(1, -(-size_bytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES
