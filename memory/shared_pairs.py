"""Share pairs of numbers that several processes change, such as an amount and the time it was valid at."""

import fcntl
import mmap
import os
import sys
import tempfile
from types import TracebackType

# Cells of a pair: which of the two copies is valid, then the copies.
_CELLS = 8
_CELL_BYTES = 8


class SharedPair:
    """Two floats that change together. Any process may read them; a process that holds the lock may write them.

    Used as a context manager, it holds the lock. The kernel releases the lock of a process that is killed, and the pair
    then has its values of before or after the write. Owned by one thread of each process.
    """

    def __init__(self, cells: memoryview, lock_fd: int, lock_byte: int) -> None:
        """`cells`: bytes. `lock_byte`: of the file; it belongs to this pair alone."""
        self._version = cells.cast("q")
        self._values = cells.cast("d")
        self._lock_fd = lock_fd
        self._lock_byte = lock_byte

    def __enter__(self) -> None:
        fcntl.lockf(self._lock_fd, fcntl.LOCK_EX, 1, self._lock_byte)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        fcntl.lockf(self._lock_fd, fcntl.LOCK_UN, 1, self._lock_byte)

    def read(self) -> tuple[float, float]:
        """Return both numbers, of the same write. Takes no lock."""
        version, values = self._version, self._values
        while True:
            valid = version[0]
            copy = 1 + 2 * (valid & 1)
            pair = values[copy], values[copy + 1]
            # The copy is overwritten only after the other one became valid.
            if version[0] == valid:
                return pair

    def write(self, first: float, second: float) -> None:
        """Replace both numbers. Called with the lock."""
        changed = self._version[0] + 1
        copy = 1 + 2 * (changed & 1)
        self._values[copy], self._values[copy + 1] = first, second
        self._version[0] = changed


class SharedPairs:
    """Pairs in memory that a process and its forked children share. Create them before the fork."""

    def __init__(self, pairs: int) -> None:
        """All numbers are zero. Raises OSError."""
        self._cells = memoryview(mmap.mmap(-1, max(1, pairs) * _CELLS * _CELL_BYTES))
        # Locks of this kind belong to a process, not to the descriptor: a child does not inherit them.
        self._lock_fd = _create_file()

    def pair(self, number: int) -> SharedPair:
        """Return a pair by its number, from 0."""
        size = _CELLS * _CELL_BYTES
        return SharedPair(self._cells[number * size : (number + 1) * size], self._lock_fd, number)


def _create_file() -> int:
    """Return the descriptor of a file without a name."""
    if sys.platform == "linux":
        fd = os.memfd_create("roundhouse-locks", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    return fd
