"""Leases, views, thresholds and devices of the tensor pool."""

import gc
import threading

import numpy as np
import pytest

from memory.buffers import ALIGNMENT_BYTES, Array, size_classes
from memory.settings import MemorySettings
from memory.tensor_pool import HOST, LeaseEnded, PoolStats, TensorPool, TensorTooLarge

FLOAT32 = np.dtype(np.float32)
KIB = 1024


def pool_of(checks: bool = True, **settings: object) -> TensorPool:
    """Return a pool with classes from 1 KiB to 8 KiB and at most 32 KiB, but for the given settings."""
    given = {"pool_size": 4, "max_tensor_size": 8 * KIB, "max_allocated": 32 * KIB, "gc_threshold": 1.0} | settings
    return TensorPool(MemorySettings.model_validate(given), checks)


def host_stats(pool: TensorPool) -> PoolStats:
    return pool.stats()[HOST]


def bytes_of(size_bytes: int) -> tuple[tuple[int, ...], np.dtype[np.uint8]]:
    return (size_bytes,), np.dtype(np.uint8)


class TestSizes:
    def test_each_class_is_half_of_next(self) -> None:
        assert size_classes(4, 8 * KIB) == [KIB, 2 * KIB, 4 * KIB, 8 * KIB]

    def test_classes_are_distinct_and_at_least_aligned(self) -> None:
        assert size_classes(64, 256) == [64, 128, 256]
        assert size_classes(2, 1) == [64]

    def test_largest_class_holds_largest_tensor(self) -> None:
        assert size_classes(2, 1000)[-1] == 1024

    @pytest.mark.parametrize("size_bytes", [0, 1, KIB, KIB + 1, 8 * KIB])
    def test_tensor_fits_its_class(self, size_bytes: int) -> None:
        pool = pool_of()
        with pool.lease(*bytes_of(size_bytes)) as lease:
            assert lease.array.nbytes == size_bytes
            leased = host_stats(pool).leased_bytes
        assert size_bytes <= leased <= max(KIB, 2 * size_bytes)

    def test_too_large_tensor_raises_with_both_sizes(self) -> None:
        pool = pool_of()
        with pytest.raises(TensorTooLarge, match=r"at most 8 KiB .*, got a tensor of 8\.5 KiB"):
            pool.lease(*bytes_of(8 * KIB + 512))
        assert host_stats(pool) == PoolStats(0, 0, 0, 0, 0, 0, 0)

    def test_lease_of_objects_is_refused(self) -> None:
        with pytest.raises(ValueError, match="object"):
            pool_of().lease((1,), np.dtype(object))


class TestLeases:
    @pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16", "uint8"])
    def test_lease_array_has_shape_dtype_and_is_writable(self, dtype: str) -> None:
        lease = pool_of().lease((3, 0x10, 5), np.dtype(dtype))
        array = lease.array
        assert (array.shape, array.dtype) == ((3, 16, 5), np.dtype(dtype))
        assert array.ctypes.data % ALIGNMENT_BYTES == 0
        assert array.flags.c_contiguous
        array[:] = 1
        assert (lease.array == 1).all()

    def test_released_buffer_is_leased_again(self) -> None:
        pool = pool_of()
        lease = pool.lease((16, 16), FLOAT32)
        address = lease.array.ctypes.data
        assert host_stats(pool) == PoolStats(KIB, 0, 1, 0, 1, 0, 0)
        lease.release()
        assert host_stats(pool) == PoolStats(0, KIB, 0, 0, 1, 0, 0)
        with pool.lease((2, 100), FLOAT32) as again:
            assert again.array.ctypes.data == address
            assert host_stats(pool) == PoolStats(KIB, 0, 1, 1, 1, 0, 0)
        assert host_stats(pool) == PoolStats(0, KIB, 0, 1, 1, 0, 0)

    def test_two_leases_have_two_buffers(self) -> None:
        pool = pool_of()
        one, other = (pool.lease((16, 16), FLOAT32) for _ in range(2))
        assert not np.shares_memory(one.array, other.array)

    def test_with_block_releases_after_error(self) -> None:
        pool = pool_of()
        with pytest.raises(ZeroDivisionError), pool.lease((1,), FLOAT32):
            raise ZeroDivisionError
        assert host_stats(pool).leases == 0

    def test_second_release_raises(self) -> None:
        pool = pool_of(checks=True)
        lease = pool.lease((1,), FLOAT32)
        lease.release()
        with pytest.raises(LeaseEnded, match="expected one release"):
            lease.release()
        assert host_stats(pool).idle_bytes == KIB

    def test_second_release_without_checks_does_nothing(self) -> None:
        pool = pool_of(checks=False)
        lease = pool.lease((1,), FLOAT32)
        lease.release()
        other = pool.lease((1,), FLOAT32)
        lease.release()
        assert host_stats(pool) == PoolStats(KIB, 0, 1, 1, 1, 0, 0)
        other.release()

    def test_ended_lease_array_raises(self) -> None:
        lease = pool_of(checks=False).lease((1,), FLOAT32)
        lease.release()
        with pytest.raises(LeaseEnded):
            _ = lease.array

    def test_release_within_with_block_is_allowed(self) -> None:
        pool = pool_of()
        with pool.lease((1,), FLOAT32) as lease:
            lease.release()
        assert host_stats(pool).leases == 0

    def test_concurrent_releases_return_buffer_once(self) -> None:
        pool = pool_of(checks=False)
        for _ in range(200):
            lease = pool.lease((1,), FLOAT32)
            threads = [threading.Thread(target=lease.release) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert host_stats(pool)[:3] == (0, KIB, 0)


class TestViews:
    def test_buffer_returns_with_last_view(self) -> None:
        pool = pool_of()
        array = pool.lease((4, 16), FLOAT32).array
        rows = [array[:2], array[2:].reshape(-1)]
        array[:] = 7
        del array
        assert host_stats(pool).leased_bytes == KIB
        rows.pop()
        assert host_stats(pool).leased_bytes == KIB
        assert (rows[0] == 7).all()
        rows.pop()
        assert host_stats(pool) == PoolStats(0, KIB, 0, 0, 1, 0, 0)

    def test_buffer_returns_from_any_thread(self) -> None:
        pool = pool_of()
        held = [pool.lease((4, 16), FLOAT32).array]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert host_stats(pool).leases == 0

    def test_view_deleted_while_lock_is_held_returns_later(self) -> None:
        pool = pool_of()
        circle: list[object] = [pool.lease((4, 16), FLOAT32).array]
        circle.append(circle)
        gc.disable()
        try:
            del circle
            with pool._lock:
                gc.collect()
        finally:
            gc.enable()
        assert host_stats(pool) == PoolStats(0, KIB, 0, 0, 1, 0, 0)

    def test_array_memory_outlives_early_release(self) -> None:
        pool = pool_of(max_tensor_size=32 * 1024 * KIB, max_allocated=32 * 1024 * KIB, gc_threshold=0.1)
        lease = pool.lease((8 * 1024 * KIB,), FLOAT32)
        array = lease.array
        lease.release()
        assert host_stats(pool).idle_bytes == 0
        array[:] = 1  # freed memory would crash the process


class TestThresholds:
    def test_past_threshold_oldest_are_freed_to_half(self) -> None:
        pool = pool_of(gc_threshold=0.5, max_allocated=16 * KIB)
        leases = [pool.lease(*bytes_of(size)) for size in (KIB, 2 * KIB, 4 * KIB)]
        addresses = [lease.array.ctypes.data for lease in leases]
        for i in (1, 0, 2):
            leases[i].release()
        assert host_stats(pool)[:2] == (0, 7 * KIB)
        # 7 idle and 4 new are past 8 of 16: the oldest is freed, then the next.
        first, second = pool.lease(*bytes_of(4 * KIB)), pool.lease(*bytes_of(4 * KIB))
        assert first.array.ctypes.data == addresses[2]
        assert host_stats(pool) == PoolStats(8 * KIB, 0, 2, 1, 4, 1, 3 * KIB)
        second.release()
        first.release()
        assert host_stats(pool) == PoolStats(0, 8 * KIB, 0, 1, 4, 1, 3 * KIB)

    def test_collection_frees_oldest_of_all_sizes(self) -> None:
        pool = pool_of(max_allocated=16 * KIB, gc_threshold=0.75)
        for lease in [pool.lease(*bytes_of(size * KIB)) for size in (1, 4, 1, 4, 1)]:
            lease.release()
        lease = pool.lease(*bytes_of(2 * KIB))
        # 13 are past 12; without the oldest two 8 of 16 remain.
        assert host_stats(pool) == PoolStats(2 * KIB, 6 * KIB, 1, 0, 6, 1, 5 * KIB)
        lease.release()

    def test_latest_idle_is_leased_oldest_is_freed(self) -> None:
        pool = pool_of(max_allocated=4 * KIB, gc_threshold=0.75)
        leases = [pool.lease(*bytes_of(KIB)) for _ in range(3)]
        addresses = [lease.array.ctypes.data for lease in leases]
        for lease in leases:
            lease.release()
        held = pool.lease(*bytes_of(KIB))
        assert held.array.ctypes.data == addresses[2]
        other = pool.lease(*bytes_of(2 * KIB))
        assert host_stats(pool) == PoolStats(3 * KIB, 0, 2, 1, 4, 1, 2 * KIB)
        del other

    def test_below_threshold_nothing_is_freed(self) -> None:
        pool = pool_of(gc_threshold=0.5)
        for lease in [pool.lease(*bytes_of(8 * KIB)) for _ in range(2)]:
            lease.release()
        assert host_stats(pool) == PoolStats(0, 16 * KIB, 0, 0, 2, 0, 0)

    def test_lease_beyond_maximum_is_not_pooled(self) -> None:
        pool = pool_of(max_allocated=8 * KIB)
        one, other = (pool.lease(*bytes_of(8 * KIB)) for _ in range(2))
        assert host_stats(pool) == PoolStats(8 * KIB, 0, 2, 0, 2, 0, 0)
        other.array[:] = 1
        other.release()
        assert host_stats(pool) == PoolStats(8 * KIB, 0, 1, 0, 2, 0, 0)
        one.release()
        assert host_stats(pool) == PoolStats(0, 8 * KIB, 0, 0, 2, 0, 0)

    def test_idle_buffer_is_freed_before_maximum_applies(self) -> None:
        pool = pool_of(max_allocated=8 * KIB)
        pool.lease(*bytes_of(4 * KIB)).release()
        lease = pool.lease(*bytes_of(8 * KIB))
        assert host_stats(pool) == PoolStats(8 * KIB, 0, 1, 0, 2, 1, 4 * KIB)
        lease.release()


class TestDevices:
    def test_devices_have_separate_buffers_and_stats(self) -> None:
        made: list[int] = []

        class Source:
            def make(self, size_bytes: int) -> Array:
                made.append(size_bytes)
                return np.empty(size_bytes, np.uint8)

        pool = pool_of(max_allocated=8 * KIB)
        pool.add_device("other", Source())
        host, other = (pool.lease(*bytes_of(8 * KIB), device) for device in (HOST, "other"))
        assert made == [8 * KIB]
        assert {device: stats.leased_bytes for device, stats in pool.stats().items()} == {
            HOST: 8 * KIB,
            "other": 8 * KIB,
        }
        pool.add_device("other", Source())
        other.release()
        host.release()
        with pool.lease(*bytes_of(8 * KIB), "other"):
            assert made == [8 * KIB]

    def test_failed_allocation_changes_no_stats(self) -> None:
        class NoMemory:
            def make(self, size_bytes: int) -> Array:
                raise MemoryError(size_bytes)

        pool = pool_of()
        pool.add_device("full", NoMemory())
        with pytest.raises(MemoryError):
            pool.lease((1,), FLOAT32, "full")
        assert pool.stats()["full"] == PoolStats(0, 0, 0, 0, 1, 0, 0)
