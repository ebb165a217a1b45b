"""Map memory that two processes share and that has no name in the file system."""

import fcntl
import mmap
import os
import secrets
import sys
from collections.abc import Iterable
from typing import Self

import numpy as np

from memory.buffers import Array

CHUNK_BYTES = 256 * 1024
"""Pages are given back in chunks: a multiple of every page size."""


class SharedMemoryError(Exception):
    """The memory of the other process is not as large as expected."""


class SharedMemory:
    """Zeros that take memory once they are written. It ends with the last process that maps it. Used with a lock.

    `fd`: the descriptor; only a child that lists it in `pass_fds` inherits it. `array`: uint8 [max_bytes], None after
    `close`. Views of the array keep the mapping.
    """

    def __init__(self, fd: int, max_bytes: int) -> None:
        """Use `create` or `attach`. Takes over the descriptor, also if it raises."""
        self.fd = fd
        self.max_bytes = max_bytes
        try:
            os.set_inheritable(fd, False)
            if (size := os.fstat(fd).st_size) < max_bytes:
                raise SharedMemoryError(f"fd: expected memory of {max_bytes} bytes, got {size}")
            self._mapping = mmap.mmap(fd, max_bytes)
        except BaseException:
            os.close(fd)
            raise
        self.array: Array | None = np.frombuffer(self._mapping, np.uint8)
        # One byte per chunk: whether this process used it since its pages were given back.
        self._used = bytearray(-(-max_bytes // CHUNK_BYTES))

    @classmethod
    def create(cls, max_bytes: int) -> Self:
        """Create memory of `max_bytes`, rounded up to a page. Raises OSError."""
        fd = _anonymous_memory()
        try:
            os.ftruncate(fd, _whole_pages(max_bytes))
            if sys.platform == "linux":
                # A process that reads beyond the end is killed: the other one must not be able to shrink the memory.
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, _whole_pages(max_bytes))

    @classmethod
    def attach(cls, fd: int, max_bytes: int) -> Self:
        """Map memory that another process created with this `max_bytes`. Raises SharedMemoryError, OSError."""
        return cls(fd, _whole_pages(max_bytes))

    def resident_bytes(self) -> int:
        """Return the size of the pages in memory, written by any process. 0 where the system does not count them."""
        return 0 if self.array is None else os.fstat(self.fd).st_blocks * 512

    def mark_used(self, start: int, end: int) -> None:
        """Note that this process may write from `start` to `end`, both in bytes."""
        first, last = start // CHUNK_BYTES, -(-end // CHUNK_BYTES)
        self._used[first:last] = b"\1" * (last - first)

    def give_back(self, ranges: Iterable[tuple[int, int]], max_bytes: int) -> None:
        """Give used chunks back to the kernel until `max_bytes` are reached. Their content becomes zero.

        `ranges`: start and size; of each the whole chunks in it, highest first. Does nothing but on Linux.
        """
        if sys.platform == "linux" and self.array is not None:
            for start, size in ranges:
                last = (start + size) // CHUNK_BYTES
                while (last := self._used.rfind(1, -(-start // CHUNK_BYTES), last)) >= 0:
                    if max_bytes <= 0:
                        return
                    self._mapping.madvise(mmap.MADV_REMOVE, last * CHUNK_BYTES, CHUNK_BYTES)
                    self._used[last] = 0
                    max_bytes -= CHUNK_BYTES

    def close(self) -> None:
        """Close the descriptor. The memory is unmapped with the last view of it. A second call does nothing."""
        if self.array is not None:
            os.close(self.fd)
            # The mapping is not closed, only dropped: arrays may be in use, which keep it.
            self.array = None
            del self._mapping


def _whole_pages(max_bytes: int) -> int:
    return max(1, -(-max_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE


def _anonymous_memory() -> int:
    if sys.platform == "linux":
        fd = os.memfd_create("roundhouse", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        import _posixshmem  # type: ignore[import-not-found]  # a part of multiprocessing.shared_memory

        name = f"/rh-{secrets.token_hex(8)}"
        fd: int = _posixshmem.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
        _posixshmem.shm_unlink(name)
    return fd
