"""Collections in the memory budget: what is reserved before it is taken, what is refused, and what is evicted."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from extensions.search.collections.collection import Collection, open_collection
from extensions.search.collections.contract import IndexState, Metric
from extensions.search.collections.index import maintenance
from extensions.search.collections.index.memory_estimates import MemoryGrowth
from extensions.search.collections.store.metadata_columns import Schema
from extensions.search.collections.store.segments import Segments
from frameworks.core.devices import DeviceManager
from frameworks.core.errors import OutOfMemory
from frameworks.core.vector_search import Metadata, Record
from frameworks.models.residency.ledger import MemoryLedger
from memory.budget import Budget
from tests.extensions.search.collections.model import random_vectors, records_of, settings_of
from tests.frameworks.models.sized_registry import infer, lazy_models, states
from tests.support.fake_probe import GIB, FakeProbe
from tests.support.loops import in_loop, soon

MIB = 1024 * 1024
DIMENSIONS = 256
ROW_BYTES = 4 * DIMENSIONS


def ledger_of(size_bytes: int) -> MemoryLedger:
    """Return a ledger without models, with so many bytes of the host."""

    async def evict(_: object) -> None:
        raise AssertionError("there is no model")

    ledger = MemoryLedger(DeviceManager(FakeProbe()), evict)
    ledger.budget = Budget({"cpu": size_bytes})
    return ledger


@asynccontextmanager
async def opened(folder: Path, ledger: MemoryLedger, **others: Any) -> AsyncIterator[Collection]:
    collection = await open_collection(settings_of(folder, DIMENSIONS, **others), ledger)
    try:
        yield collection
        ledger.check_integrity()
    finally:
        await collection.close()


def records(count: int, prefix: str = "") -> list[Record]:
    return records_of(random_vectors(count, DIMENSIONS), prefix)


class TestUpserts:
    @in_loop
    async def test_upsert_reserves_before_it_writes(self, tmp_path: Path) -> None:
        ledger = ledger_of(GIB)
        async with opened(tmp_path, ledger) as collection:
            assert ledger.held_bytes == 0
            await collection.upsert(records(3000))
            assert 3000 * ROW_BYTES <= collection.memory_bytes <= ledger.held_bytes <= collection.memory_bytes + 2 * MIB
        assert ledger.budget.used("cpu") == 0

    @in_loop
    async def test_upsert_without_room_is_refused(self, tmp_path: Path) -> None:
        ledger = ledger_of(8 * MIB)
        async with opened(tmp_path, ledger) as collection:
            await collection.upsert(records(1000))
            message = r'collection "notes": expected .* MiB more memory for it, got .*: cpu has .* of 8 MiB left'
            with pytest.raises(OutOfMemory, match=message):
                await collection.upsert(records(20_000, "late-"))
            assert (await collection.info()).rows == 1000
            await collection.delete(["0"])
            assert await collection.upsert(records(10, "few-")) == 10
        async with opened(tmp_path, ledger_of(GIB)) as collection:
            assert (await collection.info()).rows == 1009

    @in_loop
    async def test_small_upsert_passes_beside_refused_one(self, tmp_path: Path) -> None:
        ledger = ledger_of(8 * MIB)
        async with opened(tmp_path, ledger) as collection:
            await collection.upsert(records(100))
            large, small = records(20_000, "late-"), records(100, "few-")
            calls = [collection.upsert(large), collection.upsert(small), collection.upsert(large)]
            first, second, third = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(first, OutOfMemory)
            assert isinstance(third, OutOfMemory)
            assert second == 100

    @in_loop
    async def test_refused_values_take_no_memory(self, tmp_path: Path) -> None:
        ledger = ledger_of(8 * MIB)
        async with opened(tmp_path, ledger, max_rows=10) as collection:
            await collection.upsert(records(10))
            before, held = collection.memory_bytes, ledger.held_bytes
            for number in range(3):
                words = [f"{number} {index}" for index in range(1000)]
                more = [Record(word, random_vectors(1, DIMENSIONS)[0], None, {"word": word}) for word in words]
                with pytest.raises(OutOfMemory, match="at most 10 rows"):
                    await collection.upsert(more)
            assert collection.memory_bytes == before
            # The memory that was reserved for them is free again.
            await soon(lambda: ledger.held_bytes == held)

    @in_loop
    async def test_idle_model_is_evicted_for_upsert(self, tmp_path: Path) -> None:
        async with lazy_models("ab") as (_, manager):
            ledger = manager.residency.ledger
            for name in "ab":
                await infer(manager, name)
            async with opened(tmp_path, ledger) as collection:
                await collection.upsert(records(100))
                assert states(manager) == {"a": "registered", "b": "ready"}
                assert ledger.evictions == {"a": 1}
                # The other one is evicted for the model, not the collection.
                await infer(manager, "a")
                assert states(manager) == {"a": "ready", "b": "registered"}
                assert (await collection.info()).rows == 100

    @in_loop
    async def test_pinned_models_leave_no_room(self, tmp_path: Path) -> None:
        async with lazy_models("ab", pinned=True) as (_, manager):
            for name in "ab":
                await infer(manager, name)
            async with opened(tmp_path, manager.residency.ledger) as collection:
                with pytest.raises(OutOfMemory, match="cpu has 0 B of 2 GiB left for models and collections"):
                    await collection.upsert(records(100))
                assert set(states(manager).values()) == {"ready"}


class TestOpening:
    @in_loop
    async def test_collection_beyond_budget_is_not_opened(self, tmp_path: Path) -> None:
        async with opened(tmp_path, ledger_of(GIB)) as collection:
            await collection.upsert(records(5000))
        small = ledger_of(4 * MIB)
        with pytest.raises(OutOfMemory, match=r'collection "notes": expected'):
            await open_collection(settings_of(tmp_path, DIMENSIONS), small)
        assert small.budget.used("cpu") == 0
        ledger = ledger_of(GIB)
        async with opened(tmp_path, ledger) as collection:
            assert collection.memory_bytes <= ledger.held_bytes

    @in_loop
    async def test_metadata_of_opening_is_reserved(self, tmp_path: Path) -> None:
        vectors = random_vectors(5000, 4)
        many = [
            Record(str(i), vector, None, {"word": f"{i:0200}", "number": i, "list": [str(i)]})
            for i, vector in enumerate(vectors)
        ]
        of_metadata = settings_of(tmp_path, 4)
        first = await open_collection(of_metadata)
        await first.upsert(many)
        await first.close()
        ledger = ledger_of(GIB)
        collection = await open_collection(of_metadata, ledger)
        assert 5000 * 500 < collection.memory_bytes <= ledger.held_bytes
        await collection.close()


class TestRebuilds:
    @in_loop
    async def test_rebuild_waits_for_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(maintenance, "_RETRY_S", 0.01)
        ledger = ledger_of(24 * MIB)
        other = ledger.holding("another")
        with capture_logs() as logs:
            async with opened(tmp_path, ledger, index_rows=5000) as collection:
                await collection.upsert(records(2000))
                await other.resize(10 * MIB, may_evict=False)
                await collection.upsert(records(3000, "more-"))
                await _info(collection, lambda info: info.index.reason is not None)
                info = await collection.info()
                assert info.index.state is IndexState.NONE
                assert "its rebuild waits for memory: the rebuild of collection" in (info.index.reason or "")
                held = ledger.held_bytes - 10 * MIB
                other.release()
                await _info(collection, lambda info: info.index.state in (IndexState.READY, IndexState.MISSED))
                assert (await collection.info()).rows == 5000
                assert collection.memory_bytes <= ledger.held_bytes <= held + MIB
        [postponed] = [each for each in logs if "postponed" in each["event"]]
        assert postponed["collection"] == "notes"
        assert ledger.budget.used("cpu") == 0

    @in_loop
    async def test_dropped_rows_free_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(maintenance, "MIN_CHANGED_ROWS", 100)
        ledger = ledger_of(GIB)
        async with opened(tmp_path, ledger, index_rows=None) as collection:
            await collection.upsert(records(20_000))
            before = ledger.held_bytes
            await collection.delete([str(index) for index in range(19_000)])
            await soon(lambda: ledger.held_bytes < before / 4)
            assert collection.memory_bytes <= ledger.held_bytes


async def _info(collection: Collection, holds: Callable[[Any], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds(await collection.info()):  # noqa: ASYNC110 - a thread makes it true
            await asyncio.sleep(0.01)


VALUES = st.one_of(st.text(max_size=5), st.integers(-5, 5), st.booleans(), st.lists(st.text(max_size=2), max_size=3))
METADATA = st.dictionaries(st.sampled_from("abc"), VALUES | st.none(), max_size=3)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([1, 7, 500, 513, 3000]), METADATA), max_size=6), st.sampled_from(Metric))
def test_growth_is_never_too_small(changes: list[tuple[int, Metadata]], metric: Metric) -> None:
    of_rows = settings_of(Path(), 8, metric)
    segments = Segments(8, metric, Schema())
    row = 0
    for count, metadata in changes:
        before = segments.memory_bytes
        many = [metadata] * count
        growth = MemoryGrowth(of_rows, segments).add(many).size_bytes
        segments.add(np.arange(row, row + count), random_vectors(count, 8), many)
        segments.publish([])
        row += count
        taken = segments.memory_bytes - before
        # Only the sorted row numbers, which a rebuild needs, are reserved and unused.
        assert taken <= growth <= math.ceil(taken * 1.25) + 1000
