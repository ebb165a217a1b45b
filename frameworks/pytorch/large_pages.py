"""Memory in large pages of the system.

With pages of 4 KiB a core that reads through more memory than its cache holds reaches two thirds of the bandwidth.
"""

import math
import mmap
from contextlib import suppress
from typing import Any

import numpy as np
import torch

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_LARGE_PAGE = 2 * 1024 * 1024
_LEAST_BYTES = 2 * _LARGE_PAGE


def has_large_pages(size: int) -> bool:
    """Return whether `size` bytes of memory are in large pages on this system."""
    return size >= _LEAST_BYTES and hasattr(mmap, "MADV_HUGEPAGE")


def empty_bytes(size: int) -> Bytes:
    """Return undefined memory, uint8 [size], in large pages where the system has them and `size` is several pages.

    Raises RuntimeError, as torch does, without memory.
    """
    found = _in_large_pages(size)
    # torch's memory begins at a multiple of a vector, numpy's does not.
    return torch.empty(size, dtype=torch.uint8).numpy() if found is None else found


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros of a shape and dtype on the CPU. Memory becomes resident when it is written. Raises RuntimeError."""
    found = _in_large_pages(math.prod(shape) * dtype.itemsize)
    return torch.zeros(shape, dtype=dtype) if found is None else torch.from_numpy(found).view(dtype).view(shape)


def _in_large_pages(size: int) -> Bytes | None:
    """Return zeros, uint8 [size]; None where the system has no large pages."""
    if not has_large_pages(size):
        return None
    try:
        memory = mmap.mmap(-1, size + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return None
    whole = np.frombuffer(memory, dtype=np.uint8)
    start = -whole.ctypes.data % _LARGE_PAGE
    pages = size // _LARGE_PAGE * _LARGE_PAGE
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE, start, pages)
        # The last part of a page would be resident as a whole where the system uses large pages everywhere.
        memory.madvise(mmap.MADV_NOHUGEPAGE, start + pages)
    return whole[start : start + size]
