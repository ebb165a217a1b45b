"""Exchange blocks of shared memory between two processes: one leases them, the other one reads them."""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, Self
from weakref import WeakSet

import numpy as np

from memory.buffers import ALIGNMENT_BYTES, Array
from memory.shared_blocks import FreeRanges
from memory.shared_memory import SharedMemory
from memory.sizes import format_size

KEPT_BYTES = 64 * 1024**2
"""Pages up to this size stay in memory. Measured on an AMD EPYC: 1 MiB takes 1 ms in new pages, else 0.1 ms."""

_TRIM_INTERVAL_S = 0.05
# The lock is held meanwhile, for 0.4 ms.
_TRIM_BYTES = 2 * 1024**2


class ArenaError(Exception):
    """The other process sent a number that is not leased, or a range that is not within the arena."""


class ArenaStats(NamedTuple):
    """Counters of one process. `leases`: its blocks in use; `peak_bytes`: the maximum of `leased_bytes`.

    `reads`: its arrays of `read` in use. `resident_bytes`: pages in memory, written by any process.
    """

    leased_bytes: int
    leases: int
    peak_bytes: int
    reads: int
    resident_bytes: int
    mapped_bytes: int


@dataclass(slots=True, eq=False)
class Block:
    """A leased range. `offset`: in bytes from the arena's start. `array`: uint8 [nbytes], not for use after `free`."""

    number: int
    offset: int
    array: Array


@dataclass(slots=True, eq=False)
class _Range:
    """A leased range. `others`: an entry for each lease beside one."""

    offset: int
    size: int
    others: list[int] = field(default_factory=list)


class SharedArena:
    """Blocks of memory that two processes map. Thread-safe.

    One process leases and frees blocks, the other one reads them. Numbers are never used twice. Neither `free` nor the
    end of a read blocks: both may run in a garbage collection of a thread that holds the lock.
    """

    def __init__(self, memory: SharedMemory, clock: Callable[[], float] = time.monotonic) -> None:
        """Take over the memory, all of which is free."""
        self._memory = memory
        self._clock = clock
        assert memory.array is not None, "the memory is closed"
        self._address = memory.array.ctypes.data
        self._lock = threading.Lock()
        self._free = FreeRanges(memory.max_bytes)
        self._numbers = count(1)
        self._leased: dict[int, _Range] = {}
        # Freed ranges that do not count as free yet: see _merge_returned.
        self._returned: deque[_Range] = deque()
        self._reads: set[int] = set()
        self._peak_bytes = 0
        # A decaying maximum of the bytes in use: as many are soon used again.
        self._recent_bytes = 0
        self._trim_at_s = 0.0
        _arenas.add(self)

    @classmethod
    def create(cls, max_bytes: int) -> Self:
        """Create memory of `max_bytes`, rounded up to a page; pages count once they are written. Raises OSError."""
        return cls(SharedMemory.create(max_bytes))

    @classmethod
    def attach(cls, fd: int, max_bytes: int) -> Self:
        """Map memory that another process created with this `max_bytes`. Takes over the descriptor.

        Raises SharedMemoryError, OSError.
        """
        return cls(SharedMemory.attach(fd, max_bytes))

    @property
    def fd(self) -> int:
        """Return the descriptor. Only a child that lists it in `pass_fds` inherits it."""
        return self._memory.fd

    @property
    def max_bytes(self) -> int:
        return self._memory.max_bytes

    def lease(self, nbytes: int, most_bytes: int | None = None) -> Block | None:
        """Lease a block with any content, aligned to ALIGNMENT_BYTES. None where too little is free, or after `close`.

        `most_bytes`: no room is left beyond so many leased bytes; None: beyond `max_bytes`.
        """
        size = max(1, -(-nbytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES
        with self._lock:
            self._merge_returned()
            memory = self._memory.array
            if most_bytes is not None and self._used_bytes() + size > most_bytes:
                return None
            offset = None if memory is None else self._free.take(size)
            if memory is None or offset is None:
                return None
            number = next(self._numbers)
            self._leased[number] = _Range(offset, size)
            self._memory.mark_used(offset, offset + size)
            used = self._used_bytes()
            if used > self._recent_bytes:
                self._recent_bytes = used
                self._peak_bytes = max(self._peak_bytes, used)
            return Block(number, offset, memory[offset : offset + nbytes])

    def share(self, number: int) -> int | None:
        """Lease the range of a leased block once more; return the number. It is free after both leases have ended.

        The peer may then get several references to one block, and frees each. None after `close`.
        """
        with self._lock:
            block = self._leased.get(number)
            if block is None:
                return None
            other = next(self._numbers)
            block.others.append(other)
            self._leased[other] = block
            return other

    def free(self, number: int) -> None:
        """End a lease. Raises ArenaError for a number that is not leased. `close` has ended all leases.

        Gives idle pages back to the kernel at times: see `trim`.
        """
        block = self._leased.pop(number, None)
        if block is None and self._memory.array is None:
            return
        if block is None:
            raise ArenaError(f"block: expected the number of a leased block, got {number}")
        if block.others:
            with suppress(IndexError):  # another thread ends the lease before the last one
                block.others.pop()
                return
        self._returned.append(block)
        # If another thread holds the lock, its next call merges the block.
        if self._lock.acquire(blocking=False):
            try:
                self._merge_returned()
                if self._clock() >= self._trim_at_s:
                    self._trim()
            finally:
                self._lock.release()

    def read(self, number: int, offset: int, nbytes: int, on_unused: Callable[[int], None]) -> Array:
        """Return uint8 [nbytes], read-only, without a copy. Raises ArenaError; `on_unused` is not called then.

        `on_unused`: called once with `number`, after the last view of the array was deleted. It is called in any
        thread, also during a garbage collection: it must not raise, block or acquire a lock.
        """
        if nbytes < 0 or not 0 <= offset <= self.max_bytes - nbytes or offset % ALIGNMENT_BYTES:
            raise ArenaError(
                f"block {number}: expected a range of an arena of {self.max_bytes} bytes, aligned to "
                f"{ALIGNMENT_BYTES}, got {nbytes} bytes at {offset}"
            )
        memory = self._memory.array
        if memory is None:
            raise ArenaError(f"block {number}: expected an open arena, got a closed one")
        return np.asarray(_Read(memory, self._address + offset, nbytes, number, on_unused, self._reads))

    def trim(self) -> int:
        """Give idle pages back to the kernel, at most 2 MiB, the oldest first. Returns the bytes given back.

        As many pages stay as were recently used, and at least KEPT_BYTES. `free` does the same under load: call `trim`
        regularly while no block is leased or freed.
        """
        with self._lock:
            self._merge_returned()
            return self._trim()

    def stats(self) -> ArenaStats:
        """Return the current counters. After `close` no memory is counted."""
        with self._lock:
            self._merge_returned()
            return ArenaStats(
                self._used_bytes(),
                len(self._leased),
                self._peak_bytes,
                len(self._reads),
                self._memory.resident_bytes(),
                0 if self._memory.array is None else self.max_bytes,
            )

    def check_integrity(self) -> None:
        """Raise AssertionError if a lease or a read is in use. Call it while no request runs."""
        stats = self.stats()
        used = f"{stats.leases} leases of {format_size(stats.leased_bytes)} and {stats.reads} reads are in use"
        assert (stats.leases, stats.leased_bytes, stats.reads) == (0, 0, 0), f"{used}, and no request runs"

    def close(self) -> None:
        """End all leases and close the descriptor. A second call does nothing.

        The memory is unmapped with the last array on it.
        """
        with self._lock:
            self._memory.close()
            self._leased.clear()

    def _merge_returned(self) -> None:
        """Needs the lock."""
        while self._returned:
            block = self._returned.popleft()
            self._free.give_back(block.offset, block.size)

    def _used_bytes(self) -> int:
        """Needs the lock."""
        return 0 if self._memory.array is None else self._free.size - self._free.free

    def _trim(self) -> int:
        """Needs the lock."""
        self._trim_at_s = self._clock() + _TRIM_INTERVAL_S
        resident = self._memory.resident_bytes()
        excess = resident - max(self._recent_bytes, KEPT_BYTES)
        self._recent_bytes = max(self._used_bytes(), self._recent_bytes - self._recent_bytes // 16)
        if excess <= 0:
            return 0
        # Blocks are taken from the low ends of ranges: the highest pages are the oldest.
        self._memory.give_back(self._free.ranges(), min(excess, _TRIM_BYTES))
        return resident - self._memory.resident_bytes()


_arenas: "WeakSet[SharedArena]" = WeakSet()


def shared_memory_in_use() -> ArenaStats:
    """Return the sums of the counters of all arenas of this process. Call it in the thread that creates them."""
    stats = [arena.stats() for arena in _arenas]
    return ArenaStats(*map(sum, zip(ArenaStats(0, 0, 0, 0, 0, 0), *stats, strict=True)))


class _Read:
    """Keeps the mapping for the arrays of a read, and reports their end. numpy's views keep a reference to it."""

    __slots__ = ("__array_interface__", "_memory", "_number", "_on_unused", "_reads")

    def __init__(
        self,
        memory: Array,
        address: int,
        nbytes: int,
        number: int,
        on_unused: Callable[[int], None],
        reads: set[int],
    ) -> None:
        self._memory = memory
        self._number = number
        self._on_unused = on_unused
        self._reads = reads
        reads.add(id(self))
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, True), "version": 3}

    def __del__(self) -> None:
        self._reads.discard(id(self))
        self._on_unused(self._number)
