"""Collections of a worker: each call has the outcome that it has in the process that has the collection open."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.auth.principal import ANONYMOUS
from app.workers.forwarding import SupervisorLost
from extensions.search.collections.collection import Collection
from extensions.search.collections.contract import ServedCollection
from extensions.search.operations.collections import Collections, ConfiguredCollection
from extensions.search.settings import CollectionEntry
from extensions.search.workers import collections as remote
from extensions.search.workers.collections import CollectionServer, RemoteCollections
from frameworks.core.errors import InvalidInput, ModelFailed, ModelLoading, OutOfMemory
from frameworks.core.filters import parse_filter
from frameworks.core.vector_search import Metadata, Record
from frameworks.models.replicas.control import ControlLink
from tests.extensions.search.collections.model import random_vectors, records_of
from tests.support.control_links import open_links
from tests.support.loops import in_loop, settle, task

DIMENSIONS = 8
ENTRY = CollectionEntry(name="docs", dimensions=DIMENSIONS, max_rows=10_000)


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[ServedCollection, Collection, ControlLink]]:
    """Yield a collection as a worker has it, as the supervisor has it, and the link of the worker."""
    configured = [ConfiguredCollection(ENTRY, folder)]
    owner, worker = Collections(configured), Collections(configured)
    async with owner.running(), asyncio.timeout(60):
        ours, theirs = await _linked(owner, worker)
        yield worker.get(ANONYMOUS, "docs"), owner.owned(ANONYMOUS, "docs"), theirs
        theirs.close()
        ours.close()


async def _linked(owner: Collections, worker: Collections) -> tuple[ControlLink, ControlLink]:
    ours, theirs = await open_links()
    CollectionServer(owner).serve(ours)
    worker.connect(RemoteCollections(theirs).connect)
    return ours, theirs


@in_loop
async def test_worker_changes_and_searches_collection(tmp_path: Path) -> None:
    vectors = random_vectors(200, DIMENSIONS)
    async with connected(tmp_path) as (there, here, _):
        metadata: list[Metadata] = [
            {"number": index, "half": index / 2, "even": index % 2 == 0, "tags": ["a"]} for index in range(200)
        ]
        records = [Record(str(i), vectors[i], f"text {i}", metadata[i]) for i in range(200)]
        assert await there.upsert([*records, records[0]]) == 200
        where = parse_filter({"$or": [{"number": {"lt": 50}}, {"even": False}], "tags": "a"})
        for filter_ in (None, where):
            options: Any = {"where": filter_, "include_vectors": True, "exact": True}
            assert repr(await there.search(vectors[:3], 20, **options)) == repr(
                await here.search(vectors[:3], 20, **options)
            )
        assert await there.delete(["1", "never"]) == 1
        assert await there.delete(where=parse_filter({"number": {"gte": 150}})) == 50
        assert (await here.info()).rows == 149
        found = await here.get(["0"], include_vectors=True)
        assert found[0] is not None
        assert found[0].metadata == metadata[0]


@in_loop
async def test_large_calls_and_answers_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", 1000)
    vectors = random_vectors(5000, DIMENSIONS)
    async with connected(tmp_path) as (there, here, _):
        counts = await asyncio.gather(*(there.upsert(records_of(vectors[:2500], prefix)) for prefix in "abc"))
        assert counts == [2500] * 3
        hits = await there.search(vectors[:20], 100, include_vectors=True)
        assert repr(hits) == repr(await here.search(vectors[:20], 100, include_vectors=True))


@in_loop
async def test_errors_name_fields_and_bounds(tmp_path: Path) -> None:
    async with connected(tmp_path) as (there, _, _):
        with pytest.raises(InvalidInput) as refused:
            await there.upsert([Record("a", random_vectors(1, DIMENSIONS)[0]), Record("b", random_vectors(1, 3)[0])])
        assert refused.value.field == "records[1].vector"
        with pytest.raises(InvalidInput) as refused:
            await there.delete(["a", "x" * 600])
        assert refused.value.field == "ids[1]"
        with pytest.raises(InvalidInput, match="top_k"):
            await there.search(random_vectors(1, DIMENSIONS), 0)
        with pytest.raises(OutOfMemory, match="at most 10000 rows, got 10001"):
            await there.upsert(records_of(random_vectors(10_001, DIMENSIONS)))


@in_loop
async def test_cancelled_calls_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", 100)
    async with connected(tmp_path) as (there, here, _):
        for _ in range(20):
            call = task(there.upsert(records_of(random_vectors(50, DIMENSIONS))))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        await there.upsert(records_of(random_vectors(50, DIMENSIONS), "last"))
        await settle()
        assert (await here.info()).rows in (50, 100)
        assert there._remote._parts == {}  # type: ignore[attr-defined]


@in_loop
async def test_lost_supervisor_fails_calls(tmp_path: Path) -> None:
    async with connected(tmp_path) as (there, _, link):
        link.close()
        with pytest.raises(SupervisorLost):
            await there.search(np.ones((1, DIMENSIONS), np.float32), 1)


@in_loop
async def test_collection_that_is_not_open_says_so(tmp_path: Path) -> None:
    owner = Collections([ConfiguredCollection(ENTRY, tmp_path)])
    worker = Collections([ConfiguredCollection(ENTRY, tmp_path)])

    links = await _linked(owner, worker)
    with pytest.raises(ModelLoading, match='collection "docs" is being opened'):
        await worker.get(ANONYMOUS, "docs").delete(["a"])
    (tmp_path / "records.sqlite").mkdir()
    async with owner.running():
        with pytest.raises(ModelFailed, match='collection "docs" could not be opened'):
            await worker.get(ANONYMOUS, "docs").delete(["a"])
    for link in links:
        link.close()
