"""Buffers for tensors, leased and used again: memory that is warm instead of the kernel's pages one by one."""

import math
import threading
from bisect import bisect_left
from collections import deque
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from memory.buffers import Buffer, BufferSource, HostBuffers, size_classes
from memory.lease import Lease
from memory.settings import MemorySettings
from memory.sizes import format_size

HOST = "cpu"


class TensorTooLarge(Exception):
    """A tensor of more than max_tensor_size; the message has both sizes."""


class PoolStats(NamedTuple):
    """Of one device. `hits` and `misses`: leases that found an idle buffer, and that did not. `leases`: in force now,
    those included that are beyond the ceiling, whose bytes count nowhere. `freed_bytes`: dropped in `gc_runs` runs.
    """

    leased_bytes: int
    idle_bytes: int
    leases: int
    hits: int
    misses: int
    gc_runs: int
    freed_bytes: int


class TensorPool:
    """Leases of buffers by size class, for each device. Any thread leases and releases.

    The lock is held for some dictionary work only: buffers are made and freed outside of it. A release never waits:
    it may happen within a garbage collection, which may happen while this very thread holds the lock.
    """

    def __init__(self, settings: MemorySettings, checks: bool = __debug__) -> None:
        """`checks`: whether a double release is an error. Only the host is known as a device yet."""
        self.max_tensor_bytes = settings.max_tensor_size
        self._classes = size_classes(settings.pool_size, settings.max_tensor_size)
        self._max_allocated = settings.max_allocated
        self._gc_from_bytes = settings.gc_threshold * settings.max_allocated
        self._checks = checks
        self._lock = threading.Lock()
        self._shelves: dict[str, _Shelf] = {}
        # Leases that ended and whose buffers are not on their shelf yet.
        self._returned: deque[Buffer] = deque()
        self.add_device(HOST, HostBuffers())

    def add_device(self, device: str, source: BufferSource) -> None:
        """From now on there are leases for this device, too; a device that is known stays as it is."""
        with self._lock:
            self._shelves.setdefault(device, _Shelf(source, len(self._classes)))

    def lease(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: str = HOST) -> Lease:
        """A buffer for a tensor, whatever its last user left in it. Raises TensorTooLarge, MemoryError.

        Past the ceiling it is a plain allocation, freed at its release.
        """
        size_bytes = math.prod(shape) * dtype.itemsize
        if dtype.hasobject:
            raise ValueError(f"a tensor of {dtype} has no bytes of its own to lease")
        if size_bytes > self.max_tensor_bytes:
            raise TensorTooLarge(
                f"a tensor of {format_size(size_bytes)}; memory.max_tensor_size is {format_size(self.max_tensor_bytes)}"
            )
        size_class = bisect_left(self._classes, size_bytes)
        buffer, kept = self._take(device, size_class)
        if buffer is None:
            buffer = self._make(device, size_class, size_bytes, kept)
        return Lease(buffer, shape, dtype, self._give_back, self._checks)

    def check_integrity(self) -> None:
        """For when nothing runs: raises AssertionError, with what is wrong, where a lease is in force."""
        for device, stats in self.stats().items():
            leased = f"{stats.leases} leases of {format_size(stats.leased_bytes)} are in force on {device}"
            assert (stats.leases, stats.leased_bytes) == (0, 0), f"{leased}, and nothing runs"

    def stats(self) -> dict[str, PoolStats]:
        """The counters of every device, as they stand now."""
        self._settle()
        with self._lock:
            return {device: shelf.stats() for device, shelf in self._shelves.items()}

    def _take(self, device: str, size_class: int) -> tuple[Buffer | None, bool]:
        """An idle buffer, or None and whether there was room for a new one; it is accounted for already."""
        class_bytes = self._classes[size_class]
        with self._lock:
            dropped = self._shelve()
            shelf = self._shelves[device]
            shelf.leases += 1
            if shelf.idle[size_class]:
                shelf.hits += 1
                return shelf.pop_idle(size_class, class_bytes, latest=True), True
            shelf.misses += 1
            dropped += self._collect(shelf, class_bytes)
            kept = shelf.held_bytes + class_bytes <= self._max_allocated
            shelf.leased_bytes += class_bytes if kept else 0
        del dropped  # not before the lock is free
        self._settle()
        return None, kept

    def _make(self, device: str, size_class: int, size_bytes: int, kept: bool) -> Buffer:
        shelf, class_bytes = self._shelves[device], self._classes[size_class]
        try:
            content = shelf.source.make(class_bytes if kept else max(1, size_bytes))
        except BaseException:
            with self._lock:
                shelf.leased_bytes -= class_bytes if kept else 0
                shelf.leases -= 1
            raise
        return Buffer(device, size_class if kept else None, content, content.ctypes.data)

    def _give_back(self, buffer: Buffer) -> None:
        self._returned.append(buffer)
        self._settle()

    def _settle(self) -> None:
        """Puts what was returned on its shelf, or leaves that to whoever holds the lock: they look once more after."""
        while self._returned and self._lock.acquire(blocking=False):
            try:
                dropped = self._shelve()
            finally:
                self._lock.release()
            del dropped

    def _shelve(self) -> list[Buffer]:
        """With the lock: the buffers that went too far, to be let go of without it."""
        dropped: list[Buffer] = []
        touched: dict[str, _Shelf] = {}
        while self._returned:
            buffer = self._returned.popleft()
            shelf = touched[buffer.device] = self._shelves[buffer.device]
            shelf.leases -= 1
            if buffer.size_class is None:
                dropped.append(buffer)
            else:
                shelf.add_idle(buffer, self._classes[buffer.size_class])
        for shelf in touched.values():
            dropped += self._collect(shelf)
        return dropped

    def _collect(self, shelf: "_Shelf", coming_bytes: int = 0) -> list[Buffer]:
        """With the lock: past the threshold idle buffers go, least recently used first, until half of the ceiling."""
        dropped: list[Buffer] = []
        if shelf.held_bytes + coming_bytes <= self._gc_from_bytes or not shelf.idle_bytes:
            return dropped
        shelf.gc_runs += 1
        while shelf.idle_bytes and shelf.held_bytes + coming_bytes > self._max_allocated // 2:
            oldest = min((c for c, idle in enumerate(shelf.idle) if idle), key=lambda c: shelf.idle[c][0].released)
            dropped.append(shelf.pop_idle(oldest, self._classes[oldest], latest=False))
        return dropped


class _Shelf:
    """One device's buffers. Whoever holds the pool's lock uses it."""

    def __init__(self, source: BufferSource, num_classes: int) -> None:
        self.source = source
        # Per class, by time of release. Leased is the latest: it is still in the caches.
        self.idle: list[deque[Buffer]] = [deque() for _ in range(num_classes)]
        self.leased_bytes = self.idle_bytes = self.leases = self.hits = self.misses = self.gc_runs = 0
        self.freed_bytes = 0
        self._releases = count()

    @property
    def held_bytes(self) -> int:
        return self.leased_bytes + self.idle_bytes

    def pop_idle(self, size_class: int, size_bytes: int, latest: bool) -> Buffer:
        """The latest to be leased, or the oldest to be dropped."""
        self.idle_bytes -= size_bytes
        if latest:
            self.leased_bytes += size_bytes
            return self.idle[size_class].pop()
        self.freed_bytes += size_bytes
        return self.idle[size_class].popleft()

    def add_idle(self, buffer: Buffer, size_bytes: int) -> None:
        assert buffer.size_class is not None
        buffer.released = next(self._releases)
        self.idle[buffer.size_class].append(buffer)
        self.leased_bytes -= size_bytes
        self.idle_bytes += size_bytes

    def stats(self) -> PoolStats:
        return PoolStats(
            self.leased_bytes,
            self.idle_bytes,
            self.leases,
            self.hits,
            self.misses,
            self.gc_runs,
            self.freed_bytes,
        )
