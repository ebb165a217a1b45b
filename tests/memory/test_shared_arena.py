"""Leases, reads and the end of an arena in one process."""

import gc
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from memory.buffers import ALIGNMENT_BYTES, Array
from memory.shared_arena import ArenaError, Block, SharedArena, shared_memory_in_use
from memory.shared_memory import SharedMemory

MIB = 1024**2


@pytest.fixture
def arena() -> Iterator[SharedArena]:
    arena = SharedArena.create(8 * MIB)
    yield arena
    arena.close()


def leased(arena: SharedArena, nbytes: int) -> Block:
    """Lease a block that fits."""
    block = arena.lease(nbytes)
    assert block is not None
    return block


def unexpected(number: int) -> None:
    raise AssertionError(number)


def test_memory_in_use_is_sum_of_arenas(arena: SharedArena) -> None:
    before = shared_memory_in_use()
    other = SharedArena.create(MIB)
    for each in (arena, other):
        leased(each, 64).array[:] = 1
    after = shared_memory_in_use()
    assert (after.leased_bytes, after.leases) == (before.leased_bytes + 128, before.leases + 2)
    assert after.resident_bytes > before.resident_bytes
    assert after.mapped_bytes == before.mapped_bytes + MIB
    other.close()
    del other
    assert shared_memory_in_use().mapped_bytes == before.mapped_bytes


class TestLeases:
    @pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 602_112, 8 * MIB])
    def test_block_has_size_and_alignment(self, arena: SharedArena, nbytes: int) -> None:
        leased(arena, 1) if nbytes < MIB else None
        block = leased(arena, nbytes)
        assert (block.array.shape, block.array.dtype) == ((nbytes,), np.dtype(np.uint8))
        assert block.offset % ALIGNMENT_BYTES == block.array.ctypes.data % ALIGNMENT_BYTES == 0
        block.array[:] = 1

    def test_full_arena_leases_none(self, arena: SharedArena) -> None:
        assert arena.lease(8 * MIB + 1) is None
        whole = leased(arena, 8 * MIB)
        assert arena.lease(1) is None
        arena.free(whole.number)
        assert arena.lease(1) is not None

    def test_freed_range_is_leased_again(self, arena: SharedArena) -> None:
        blocks = [leased(arena, 602_112) for _ in range(3)]
        arena.free(blocks[1].number)
        again = leased(arena, 602_112)
        assert again.offset == blocks[1].offset
        assert again.number not in {block.number for block in blocks}

    @pytest.mark.parametrize("number", [-1, 0, 2, 2**70])
    def test_unknown_number_raises(self, arena: SharedArena, number: int) -> None:
        leased(arena, 1)
        with pytest.raises(ArenaError, match=rf"expected the number of a leased block, got {number}"):
            arena.free(number)

    def test_second_free_raises(self, arena: SharedArena) -> None:
        block = leased(arena, 100)
        arena.free(block.number)
        other = leased(arena, 100)
        with pytest.raises(ArenaError):
            arena.free(block.number)
        assert arena.stats().leases == 1
        arena.free(other.number)
        arena.check_integrity()

    def test_stats_count_leases_and_peak(self, arena: SharedArena) -> None:
        blocks = [leased(arena, nbytes) for nbytes in (1, 65, MIB)]
        arena.free(blocks[2].number)
        stats = arena.stats()
        assert (stats.leased_bytes, stats.leases, stats.peak_bytes) == (192, 2, MIB + 192)
        assert stats.mapped_bytes == arena.max_bytes == 8 * MIB

    def test_integrity_with_lease_raises(self, arena: SharedArena) -> None:
        block = leased(arena, 3 * MIB)
        with pytest.raises(AssertionError, match="1 leases of 3 MiB and 0 reads are in use"):
            arena.check_integrity()
        arena.free(block.number)
        arena.check_integrity()

    def test_threads_share_no_byte(self, arena: SharedArena) -> None:
        failures: list[int] = []

        def end(block: Block, mark: int) -> None:
            failures.extend([] if (block.array == mark).all() else [block.number])
            arena.free(block.number)

        def work(seed: int) -> None:
            random = np.random.default_rng(seed)
            held: list[tuple[Block, int]] = []
            for turn in range(400):
                block = arena.lease(int(random.integers(1, 500_000)))
                if block is not None:
                    mark = (seed * 61 + turn) % 251
                    block.array[:] = mark
                    held.append((block, mark))
                if held and (block is None or random.random() < 0.5):
                    end(*held.pop(int(random.integers(len(held)))))
            for each in held:
                end(*each)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        arena.check_integrity()
        assert leased(arena, 8 * MIB).offset == 0


class TestReads:
    def test_read_sees_block_without_copy(self, arena: SharedArena) -> None:
        block = leased(arena, 1000)
        array = arena.read(block.number, block.offset, 1000, lambda _: None)
        block.array[:] = 9
        assert (array.shape, array.dtype) == ((1000,), np.dtype(np.uint8))
        assert (array == 9).all()

    def test_read_is_not_writable(self, arena: SharedArena) -> None:
        array = arena.read(1, 0, 64, lambda _: None)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True

    @pytest.mark.parametrize(
        ("offset", "nbytes"),
        [(0, 8 * MIB + 1), (8 * MIB, 1), (-64, 64), (64, -1), (1, 8), (8 * MIB - 64, 65), (2**64, 2**64), (-64, 0)],
    )
    def test_range_outside_of_arena_raises(self, arena: SharedArena, offset: int, nbytes: int) -> None:
        with pytest.raises(ArenaError, match=rf"block 3: .* got {nbytes} bytes at {offset}"):
            arena.read(3, offset, nbytes, unexpected)

    def test_empty_read_at_end_is_allowed(self, arena: SharedArena) -> None:
        assert len(arena.read(1, 8 * MIB, 0, lambda _: None)) == 0

    def test_last_view_reports_once(self, arena: SharedArena) -> None:
        unused: list[int] = []
        array = arena.read(5, 64, 640, unused.append)
        views = [array.view(np.float32).reshape(16, 10), array[:10], np.frombuffer(array, np.int64)]
        del array
        assert arena.stats().reads == 1
        while views:
            assert unused == []
            views.pop()
        assert unused == [5]
        assert arena.stats().reads == 0

    def test_integrity_with_read_raises(self, arena: SharedArena) -> None:
        array = arena.read(5, 0, 64, lambda _: None)
        with pytest.raises(AssertionError, match="1 reads are in use"):
            arena.check_integrity()
        del array
        arena.check_integrity()

    def test_view_deleted_in_thread_reports_once(self, arena: SharedArena) -> None:
        unused: list[int] = []
        held = [arena.read(number, 0, 64, unused.append)[8:] for number in range(50)]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert sorted(unused) == list(range(50))


class _Cycle:
    """Keeps an array until a garbage collection."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.itself = self


def test_garbage_collection_under_lock_frees_block() -> None:
    collections = []

    def clock() -> float:
        collections.append(gc.collect())
        return 0.0

    arena = SharedArena(SharedMemory.create(MIB), clock)
    other = leased(arena, 64)
    block = leased(arena, 64)
    gc.disable()
    try:
        _Cycle(arena.read(block.number, block.offset, 64, arena.free))
        arena.free(other.number)
    finally:
        gc.enable()
    assert collections
    assert leased(arena, MIB).offset == 0
    arena.close()


class TestClose:
    def test_views_outlive_arena(self) -> None:
        unused: list[int] = []
        arena = SharedArena.create(MIB)
        block = leased(arena, 1000)
        block.array[:] = 3
        read = arena.read(block.number, block.offset, 1000, unused.append)
        arena.close()
        del arena
        gc.collect()
        assert (read == 3).all()
        block.array[:] = 4
        assert (read == 4).all()
        del read
        assert unused == [1]

    def test_closed_arena_leases_and_reads_nothing(self, arena: SharedArena) -> None:
        block = leased(arena, 64)
        arena.close()
        arena.close()
        assert arena.lease(64) is None
        with pytest.raises(ArenaError, match="got a closed one"):
            arena.read(1, 0, 64, unexpected)
        arena.free(block.number)
        arena.trim()
        stats = arena.stats()
        assert (stats.leases, stats.resident_bytes, stats.mapped_bytes) == (0, 0, 0)

    def test_close_ends_leases(self, arena: SharedArena) -> None:
        """The other process has ended: it frees nothing."""
        block = leased(arena, 4096)
        arena.close()
        arena.check_integrity()
        assert shared_memory_in_use().leased_bytes == 0
        arena.free(block.number)
        arena.check_integrity()

    def test_closed_arena_has_no_descriptor(self, arena: SharedArena) -> None:
        arena.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(arena.fd)


class TestSharedLeases:
    def test_block_is_free_after_all_its_leases(self, arena: SharedArena) -> None:
        block = leased(arena, 8 * MIB)
        others = [arena.share(block.number) for _ in range(2)]
        assert arena.stats().leases == 3
        for number in (others[1], block.number, others[0]):
            assert arena.lease(64) is None
            assert number is not None
            arena.free(number)
        assert arena.stats().leases == 0
        assert leased(arena, 8 * MIB).offset == 0

    def test_each_lease_ends_once(self, arena: SharedArena) -> None:
        block = leased(arena, 64)
        other = arena.share(block.number)
        assert other is not None
        arena.free(other)
        with pytest.raises(ArenaError, match="got 2"):
            arena.free(other)
        assert arena.stats().leases == 1

    def test_ended_lease_is_not_shared(self, arena: SharedArena) -> None:
        block, open_block = leased(arena, 64), leased(arena, 64)
        arena.free(block.number)
        assert arena.share(block.number) is None
        arena.close()
        assert arena.share(open_block.number) is None

    def test_leases_end_in_many_threads(self, arena: SharedArena) -> None:
        """Exactly one of them gives the range back."""
        for _ in range(50):
            block = leased(arena, 8 * MIB)
            numbers = [block.number, *(arena.share(block.number) for _ in range(7))]
            threads = [threading.Thread(target=arena.free, args=(number,)) for number in numbers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            arena.check_integrity()

    def test_lease_leaves_room_for_others(self, arena: SharedArena) -> None:
        leased(arena, 3 * MIB)
        assert arena.lease(2 * MIB, most_bytes=4 * MIB) is None
        assert arena.lease(MIB, most_bytes=4 * MIB) is not None
        leased(arena, 4 * MIB)
