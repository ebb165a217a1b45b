"""Idle pages of an arena: kept for the next leases, or given back to the kernel."""

from itertools import count

import pytest

from memory import shared_arena
from memory.shared_arena import KEPT_BYTES, SharedArena
from memory.shared_memory import CHUNK_BYTES, SharedMemory
from tests.memory.test_shared_arena import MIB, leased
from tests.memory.test_shared_memory import LINUX

pytestmark = LINUX


def test_kept_pages_stay_after_free() -> None:
    arena = SharedArena.create(8 * MIB)
    block = leased(arena, 8 * MIB)
    block.array[:] = 1
    arena.free(block.number)
    assert [arena.trim() for _ in range(100)] == [0] * 100
    assert arena.stats().resident_bytes == 8 * MIB
    arena.close()


def test_trim_gives_idle_pages_back() -> None:
    arena = SharedArena.create(KEPT_BYTES + 32 * MIB)
    block = leased(arena, arena.max_bytes)
    block.array[:] = 1
    assert arena.trim() == 0
    arena.free(block.number)
    given = [arena.trim() for _ in range(100)]
    assert sum(given) == 32 * MIB
    assert max(given) <= 2 * MIB
    assert arena.stats().resident_bytes == KEPT_BYTES
    arena.close()


def test_free_gives_idle_pages_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_arena, "KEPT_BYTES", MIB)
    arena = SharedArena(SharedMemory.create(8 * MIB), count().__next__)
    block = leased(arena, 8 * MIB)
    block.array[:] = 1
    arena.free(block.number)
    for _ in range(100):
        arena.free(leased(arena, 64).number)
    assert arena.stats().resident_bytes == MIB
    arena.close()


def test_recently_used_pages_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_arena, "KEPT_BYTES", 0)
    arena = SharedArena(SharedMemory.create(8 * MIB), count().__next__)
    for _ in range(100):
        block = leased(arena, 4 * MIB)
        block.array[:] = 1
        arena.free(block.number)
        assert arena.stats().resident_bytes == 4 * MIB
    arena.close()


def test_long_lease_pages_stay_after_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_arena, "KEPT_BYTES", 0)
    arena = SharedArena(SharedMemory.create(8 * MIB), lambda: 0.0)
    block = leased(arena, 4 * MIB)
    block.array[:] = 1
    for _ in range(100):
        arena.trim()
    arena.free(block.number)
    assert arena.trim() == 0
    arena.close()


def test_free_looks_for_idle_pages_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_arena, "KEPT_BYTES", 0)
    arena = SharedArena(SharedMemory.create(8 * MIB), lambda: 5.0)
    block = leased(arena, 8 * MIB)
    block.array[:] = 1
    arena.free(block.number)
    for _ in range(100):
        arena.free(leased(arena, 64).number)
    assert arena.stats().resident_bytes == 8 * MIB
    arena.close()


def test_trim_keeps_leased_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_arena, "KEPT_BYTES", 0)
    arena = SharedArena.create(8 * MIB)
    blocks = [leased(arena, 1_000_000) for _ in range(8)]
    for block in blocks:
        block.array[:] = 1
    for block in blocks[::2]:
        arena.free(block.number)
    for _ in range(100):
        arena.trim()
    assert all(block.array.all() for block in blocks[1::2])
    assert arena.stats().resident_bytes <= 4 * (1_000_000 + 2 * CHUNK_BYTES)
    arena.close()
