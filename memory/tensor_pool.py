"""Pool buffers for tensors: reused memory avoids the page faults of new memory."""

import math
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from memory.buffers import Array, Buffer, BufferSource, HostBuffers, size_classes
from memory.settings import MemorySettings
from memory.sizes import format_size


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


HOST = "cpu"


class TensorTooLarge(Exception):
    """A tensor is larger than max_tensor_size; the message has both sizes."""


class PoolStats(NamedTuple):
    """Counters of one device. `hits` and `misses`: leases with and without an idle buffer. `leases`: in use now, also
    those beyond the maximum, whose bytes are not counted. `freed_bytes`: of the buffers freed in `gc_runs` collections.
    """

    leased_bytes: int
    idle_bytes: int
    leases: int
    hits: int
    misses: int
    gc_runs: int
    freed_bytes: int


class TensorPool:
    """Leases buffers by size class, for each device. Thread-safe.

    The lock is held for dictionary work only; buffers are allocated and freed outside of it. A release never blocks:
    it may run in a garbage collection of a thread that holds the lock.
    """

    def __init__(self, settings: MemorySettings, checks: bool = __debug__) -> None:
        """Create the pool with the host as its only device. `checks`: whether a second release raises."""
        self.max_tensor_bytes = settings.max_tensor_size
        self._classes = size_classes(settings.pool_size, settings.max_tensor_size)
        self._max_allocated = settings.max_allocated
        self._gc_threshold_bytes = settings.gc_threshold * settings.max_allocated
        self._checks = checks
        self._lock = threading.Lock()
        self._devices: dict[str, _DeviceBuffers] = {}
        # Buffers of ended leases that are not idle yet: see _collect_returned.
        self._returned: deque[Buffer] = deque()
        self.add_device(HOST, HostBuffers())

    def add_device(self, device: str, source: BufferSource) -> None:
        """Add a device. A known device is not changed."""
        with self._lock:
            self._devices.setdefault(device, _DeviceBuffers(source, len(self._classes)))

    def lease(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: str = HOST) -> Lease:
        """Lease a buffer for a tensor, with any content. Raises TensorTooLarge, MemoryError.

        Beyond `max_allocated` the buffer is not pooled: it is freed at its release.
        """
        size_bytes = math.prod(shape) * dtype.itemsize
        if dtype.hasobject:
            raise ValueError(f"dtype: expected numbers, got {dtype}")
        if size_bytes > self.max_tensor_bytes:
            raise TensorTooLarge(
                f"expected at most {format_size(self.max_tensor_bytes)} (memory.max_tensor_size), got a tensor of "
                f"{format_size(size_bytes)}"
            )
        size_class = bisect_left(self._classes, size_bytes)
        buffer, is_pooled = self._take(device, size_class)
        if buffer is None:
            buffer = self._make(device, size_class, size_bytes, is_pooled)
        return Lease(buffer, shape, dtype, self._give_back, self._checks)

    def check_integrity(self) -> None:
        """Raise AssertionError if a lease is in use. Call it while no request runs."""
        for device, stats in self.stats().items():
            leased = f"{stats.leases} leases of {format_size(stats.leased_bytes)} are in use on {device}"
            assert (stats.leases, stats.leased_bytes) == (0, 0), f"{leased}, and no request runs"

    def stats(self) -> dict[str, PoolStats]:
        """Return the current counters of each device."""
        self._collect_returned()
        with self._lock:
            return {device: buffers.stats() for device, buffers in self._devices.items()}

    def _take(self, device: str, size_class: int) -> tuple[Buffer | None, bool]:
        """Return an idle buffer, or None and whether a new one is pooled. The lease is counted in both cases."""
        class_bytes = self._classes[size_class]
        with self._lock:
            dropped = self._make_idle()
            buffers = self._devices[device]
            buffers.leases += 1
            if buffers.idle[size_class]:
                buffers.hits += 1
                return buffers.pop_idle(size_class, class_bytes, latest=True), True
            buffers.misses += 1
            dropped += self._free_idle(buffers, class_bytes)
            is_pooled = buffers.held_bytes + class_bytes <= self._max_allocated
            buffers.leased_bytes += class_bytes if is_pooled else 0
        del dropped  # freed after the lock is released
        self._collect_returned()
        return None, is_pooled

    def _make(self, device: str, size_class: int, size_bytes: int, is_pooled: bool) -> Buffer:
        buffers, class_bytes = self._devices[device], self._classes[size_class]
        try:
            content = buffers.source.make(class_bytes if is_pooled else max(1, size_bytes))
        except BaseException:
            with self._lock:
                buffers.leased_bytes -= class_bytes if is_pooled else 0
                buffers.leases -= 1
            raise
        return Buffer(device, size_class if is_pooled else None, content, content.ctypes.data)

    def _give_back(self, buffer: Buffer) -> None:
        self._returned.append(buffer)
        self._collect_returned()

    def _collect_returned(self) -> None:
        """Make returned buffers idle. If another thread holds the lock, that thread does it after its own work."""
        while self._returned and self._lock.acquire(blocking=False):
            try:
                dropped = self._make_idle()
            finally:
                self._lock.release()
            del dropped

    def _make_idle(self) -> list[Buffer]:
        """Make returned buffers idle and return the buffers to free outside the lock, which the caller holds."""
        dropped: list[Buffer] = []
        changed: dict[str, _DeviceBuffers] = {}
        while self._returned:
            buffer = self._returned.popleft()
            buffers = changed[buffer.device] = self._devices[buffer.device]
            buffers.leases -= 1
            if buffer.size_class is None:
                dropped.append(buffer)
            else:
                buffers.add_idle(buffer, self._classes[buffer.size_class])
        for buffers in changed.values():
            dropped += self._free_idle(buffers)
        return dropped

    def _free_idle(self, buffers: "_DeviceBuffers", new_bytes: int = 0) -> list[Buffer]:
        """Past the threshold remove idle buffers, oldest first, down to half of the maximum. Needs the lock."""
        dropped: list[Buffer] = []
        if buffers.held_bytes + new_bytes <= self._gc_threshold_bytes or not buffers.idle_bytes:
            return dropped
        buffers.gc_runs += 1
        while buffers.idle_bytes and buffers.held_bytes + new_bytes > self._max_allocated // 2:
            oldest = min((c for c, idle in enumerate(buffers.idle) if idle), key=lambda c: buffers.idle[c][0].released)
            dropped.append(buffers.pop_idle(oldest, self._classes[oldest], latest=False))
        return dropped


class _DeviceBuffers:
    """Buffers of one device. Used only with the pool's lock."""

    def __init__(self, source: BufferSource, num_classes: int) -> None:
        self.source = source
        # Per class, by time of release. The latest is leased first: it is still in the CPU's caches.
        self.idle: list[deque[Buffer]] = [deque() for _ in range(num_classes)]
        self.leased_bytes = self.idle_bytes = self.leases = self.hits = self.misses = self.gc_runs = 0
        self.freed_bytes = 0
        self._releases = count()

    @property
    def held_bytes(self) -> int:
        return self.leased_bytes + self.idle_bytes

    def pop_idle(self, size_class: int, size_bytes: int, latest: bool) -> Buffer:
        """Remove the latest buffer for a lease, or the oldest to free it."""
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
