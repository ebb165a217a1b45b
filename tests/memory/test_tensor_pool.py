"""Buffers are leased to one at a time, used again, and let go of at the thresholds."""

import gc
import threading

import numpy as np
import pytest

from memory.buffers import ALIGNMENT_BYTES, Array, size_classes
from memory.lease import LeaseEnded
from memory.settings import MemorySettings
from memory.tensor_pool import HOST, PoolStats, TensorPool, TensorTooLarge

FLOAT32 = np.dtype(np.float32)
KIB = 1024


def pool_of(checks: bool = True, **settings: object) -> TensorPool:
    """Of classes from 1 KiB to 8 KiB, and at most 32 KiB in all, unless the settings say otherwise."""
    given = {"pool_size": 4, "max_tensor_size": 8 * KIB, "max_allocated": 32 * KIB, "gc_threshold": 1.0} | settings
    return TensorPool(MemorySettings.model_validate(given), checks)


def of_host(pool: TensorPool) -> PoolStats:
    return pool.stats()[HOST]


def bytes_of(size_bytes: int) -> tuple[tuple[int, ...], np.dtype[np.uint8]]:
    return (size_bytes,), np.dtype(np.uint8)


class TestSizes:
    def test_each_class_is_half_of_the_next(self) -> None:
        assert size_classes(4, 8 * KIB) == [KIB, 2 * KIB, 4 * KIB, 8 * KIB]

    def test_none_is_less_than_a_cache_line_and_none_stands_twice(self) -> None:
        assert size_classes(64, 256) == [64, 128, 256]
        assert size_classes(2, 1) == [64]

    def test_the_largest_holds_the_largest_tensor_whatever_its_size(self) -> None:
        assert size_classes(2, 1000)[-1] == 1024

    @pytest.mark.parametrize("size_bytes", [0, 1, KIB, KIB + 1, 8 * KIB])
    def test_a_tensor_fits_its_class(self, size_bytes: int) -> None:
        pool = pool_of()
        with pool.lease(*bytes_of(size_bytes)) as lease:
            assert lease.array.nbytes == size_bytes
            leased = of_host(pool).leased_bytes
        assert size_bytes <= leased <= max(KIB, 2 * size_bytes)

    def test_larger_ones_are_refused_with_both_sizes(self) -> None:
        pool = pool_of()
        with pytest.raises(TensorTooLarge, match=r"8\.5 KiB; memory\.max_tensor_size is 8 KiB"):
            pool.lease(*bytes_of(8 * KIB + 512))
        assert of_host(pool) == PoolStats(0, 0, 0, 0, 0, 0, 0)

    def test_objects_have_no_bytes_to_lease(self) -> None:
        with pytest.raises(ValueError, match="object"):
            pool_of().lease((1,), np.dtype(object))


class TestLeases:
    @pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16", "uint8"])
    def test_an_array_is_as_it_was_asked_for_and_can_be_written(self, dtype: str) -> None:
        lease = pool_of().lease((3, 0x10, 5), np.dtype(dtype))
        array = lease.array
        assert (array.shape, array.dtype) == ((3, 16, 5), np.dtype(dtype))
        assert array.ctypes.data % ALIGNMENT_BYTES == 0
        assert array.flags.c_contiguous
        array[:] = 1
        assert (lease.array == 1).all()

    def test_what_was_released_is_leased_again(self) -> None:
        pool = pool_of()
        lease = pool.lease((16, 16), FLOAT32)
        address = lease.array.ctypes.data
        assert of_host(pool) == PoolStats(KIB, 0, 1, 0, 1, 0, 0)
        lease.release()
        assert of_host(pool) == PoolStats(0, KIB, 0, 0, 1, 0, 0)
        with pool.lease((2, 100), FLOAT32) as again:
            assert again.array.ctypes.data == address
            assert of_host(pool) == PoolStats(KIB, 0, 1, 1, 1, 0, 0)
        assert of_host(pool) == PoolStats(0, KIB, 0, 1, 1, 0, 0)

    def test_two_leases_are_two_buffers(self) -> None:
        pool = pool_of()
        one, other = (pool.lease((16, 16), FLOAT32) for _ in range(2))
        assert not np.shares_memory(one.array, other.array)

    def test_a_block_ends_its_lease_also_by_an_error(self) -> None:
        pool = pool_of()
        with pytest.raises(ZeroDivisionError), pool.lease((1,), FLOAT32):
            raise ZeroDivisionError
        assert of_host(pool).leases == 0

    def test_a_second_release_is_an_error(self) -> None:
        pool = pool_of(checks=True)
        lease = pool.lease((1,), FLOAT32)
        lease.release()
        with pytest.raises(LeaseEnded, match="released before"):
            lease.release()
        assert of_host(pool).idle_bytes == KIB

    def test_without_checks_a_second_release_harms_nobody(self) -> None:
        pool = pool_of(checks=False)
        lease = pool.lease((1,), FLOAT32)
        lease.release()
        other = pool.lease((1,), FLOAT32)
        lease.release()
        assert of_host(pool) == PoolStats(KIB, 0, 1, 1, 1, 0, 0)
        other.release()

    def test_an_ended_lease_gives_no_array(self) -> None:
        lease = pool_of(checks=False).lease((1,), FLOAT32)
        lease.release()
        with pytest.raises(LeaseEnded):
            _ = lease.array

    def test_a_block_may_end_its_lease_before_its_end(self) -> None:
        pool = pool_of()
        with pool.lease((1,), FLOAT32) as lease:
            lease.release()
        assert of_host(pool).leases == 0

    def test_of_many_threads_that_release_one_lease_one_does(self) -> None:
        pool = pool_of(checks=False)
        for _ in range(200):
            lease = pool.lease((1,), FLOAT32)
            threads = [threading.Thread(target=lease.release) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert of_host(pool)[:3] == (0, KIB, 0)


class TestViews:
    def test_the_buffer_goes_back_with_the_last_view(self) -> None:
        pool = pool_of()
        array = pool.lease((4, 16), FLOAT32).array
        rows = [array[:2], array[2:].reshape(-1)]
        array[:] = 7
        del array
        assert of_host(pool).leased_bytes == KIB
        rows.pop()
        assert of_host(pool).leased_bytes == KIB
        assert (rows[0] == 7).all()
        rows.pop()
        assert of_host(pool) == PoolStats(0, KIB, 0, 0, 1, 0, 0)

    def test_it_goes_back_in_whatever_thread_that_is(self) -> None:
        pool = pool_of()
        held = [pool.lease((4, 16), FLOAT32).array]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert of_host(pool).leases == 0

    def test_a_view_that_dies_in_a_garbage_collection_while_the_lock_is_held(self) -> None:
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
        assert of_host(pool) == PoolStats(0, KIB, 0, 0, 1, 0, 0)

    def test_the_memory_outlives_a_lease_that_ended_too_early(self) -> None:
        pool = pool_of(max_tensor_size=32 * 1024 * KIB, max_allocated=32 * 1024 * KIB, gc_threshold=0.1)
        lease = pool.lease((8 * 1024 * KIB,), FLOAT32)
        array = lease.array
        lease.release()
        assert of_host(pool).idle_bytes == 0
        array[:] = 1  # would end the process


class TestThresholds:
    def test_past_the_threshold_the_least_recently_used_go_down_to_half(self) -> None:
        pool = pool_of(gc_threshold=0.5, max_allocated=16 * KIB)
        leases = [pool.lease(*bytes_of(size)) for size in (KIB, 2 * KIB, 4 * KIB)]
        addresses = [lease.array.ctypes.data for lease in leases]
        for i in (1, 0, 2):
            leases[i].release()
        assert of_host(pool)[:2] == (0, 7 * KIB)
        # 7 idle and 4 more are past 8 of 16; that which was released first goes, then the next.
        first, second = pool.lease(*bytes_of(4 * KIB)), pool.lease(*bytes_of(4 * KIB))
        assert first.array.ctypes.data == addresses[2]
        assert of_host(pool) == PoolStats(8 * KIB, 0, 2, 1, 4, 1, 3 * KIB)
        second.release()
        first.release()
        assert of_host(pool) == PoolStats(0, 8 * KIB, 0, 1, 4, 1, 3 * KIB)

    def test_of_all_sizes_the_oldest_goes_first_and_no_more_than_down_to_half(self) -> None:
        pool = pool_of(max_allocated=16 * KIB, gc_threshold=0.75)
        for lease in [pool.lease(*bytes_of(size * KIB)) for size in (1, 4, 1, 4, 1)]:
            lease.release()
        lease = pool.lease(*bytes_of(2 * KIB))
        # 13 are past 12; without the first two there are 8 of 16.
        assert of_host(pool) == PoolStats(2 * KIB, 6 * KIB, 1, 0, 6, 1, 5 * KIB)
        lease.release()

    def test_of_idle_buffers_the_latest_is_leased_and_the_oldest_dropped(self) -> None:
        pool = pool_of(max_allocated=4 * KIB, gc_threshold=0.75)
        leases = [pool.lease(*bytes_of(KIB)) for _ in range(3)]
        addresses = [lease.array.ctypes.data for lease in leases]
        for lease in leases:
            lease.release()
        held = pool.lease(*bytes_of(KIB))
        assert held.array.ctypes.data == addresses[2]
        other = pool.lease(*bytes_of(2 * KIB))
        assert of_host(pool) == PoolStats(3 * KIB, 0, 2, 1, 4, 1, 2 * KIB)
        del other

    def test_below_the_threshold_nothing_goes(self) -> None:
        pool = pool_of(gc_threshold=0.5)
        for lease in [pool.lease(*bytes_of(8 * KIB)) for _ in range(2)]:
            lease.release()
        assert of_host(pool) == PoolStats(0, 16 * KIB, 0, 0, 2, 0, 0)

    def test_past_the_ceiling_a_lease_is_plain_memory(self) -> None:
        pool = pool_of(max_allocated=8 * KIB)
        one, other = (pool.lease(*bytes_of(8 * KIB)) for _ in range(2))
        assert of_host(pool) == PoolStats(8 * KIB, 0, 2, 0, 2, 0, 0)
        other.array[:] = 1
        other.release()
        assert of_host(pool) == PoolStats(8 * KIB, 0, 1, 0, 2, 0, 0)
        one.release()
        assert of_host(pool) == PoolStats(0, 8 * KIB, 0, 0, 2, 0, 0)

    def test_an_idle_buffer_makes_room_first(self) -> None:
        pool = pool_of(max_allocated=8 * KIB)
        pool.lease(*bytes_of(4 * KIB)).release()
        lease = pool.lease(*bytes_of(8 * KIB))
        assert of_host(pool) == PoolStats(8 * KIB, 0, 1, 0, 2, 1, 4 * KIB)
        lease.release()


class TestDevices:
    def test_each_has_buffers_figures_and_a_ceiling_of_its_own(self) -> None:
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

    def test_a_device_without_memory_leaves_no_trace(self) -> None:
        class Full:
            def make(self, size_bytes: int) -> Array:
                raise MemoryError(size_bytes)

        pool = pool_of()
        pool.add_device("full", Full())
        with pytest.raises(MemoryError):
            pool.lease((1,), FLOAT32, "full")
        assert pool.stats()["full"] == PoolStats(0, 0, 0, 0, 1, 0, 0)
