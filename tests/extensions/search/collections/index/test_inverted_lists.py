"""The IVF index: its recall, and that a concurrent build changes no result."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from extensions.search.collections.contract import IndexInfo, IndexState, Metric
from extensions.search.collections.index import compaction, index_file, inverted_lists, maintenance
from extensions.search.collections.store import segments
from frameworks.core.filters import parse_filter
from frameworks.core.progress import states
from frameworks.core.vector_search import Hit, Record, Vectors
from tests.extensions.search.collections.model import Opened, expected_scores, settings_of
from tests.support.works import ended_phases

_DIMENSIONS = 24
_SEGMENT_ROWS = 500


@pytest.fixture(autouse=True, scope="module")
def small_index() -> Iterator[None]:
    """Make indexes of few rows, in several segments."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (segments, inverted_lists, compaction):
            patch.setattr(module, "MAX_SEGMENT_ROWS", _SEGMENT_ROWS)
        patch.setattr(maintenance, "MIN_CHANGED_ROWS", 5)
        yield


def _clustered(count: int, seed: int) -> Vectors:
    """Return vectors around 60 centroids, which are the same for each seed."""
    centroids = np.random.default_rng(99).standard_normal((60, _DIMENSIONS), dtype=np.float32)
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal((count, _DIMENSIONS), dtype=np.float32)
    return centroids[generator.integers(0, 60, count)] + np.float32(0.4) * noise


def _records(vectors: Vectors, prefix: str = "") -> list[Record]:
    return [Record(f"{prefix}{index}", each, None, {"even": index % 2 == 0}) for index, each in enumerate(vectors)]


def _wait(opened: Opened, *states: IndexState, unindexed: int = 1 << 60) -> IndexInfo:
    """Return the index as soon as it has one of the states. A test that waits in vain times out."""
    while True:
        info = opened.run(opened.collection.info()).index
        if info.state in states and info.unindexed_rows <= unindexed:
            return info
        time.sleep(0.01)


def test_build_counts_its_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = ended_phases(monkeypatch)
    opened = Opened(settings_of(tmp_path, _DIMENSIONS, Metric.COSINE, index_rows=900))
    opened.run(opened.collection.upsert(_records(_clustered(1000, 1))))
    _wait(opened, IndexState.READY, IndexState.MISSED)
    opened.close()
    found = {each.what: (each.done, each.total) for each in ended if each.kind == "index"}
    assert found.pop("training the centroids") == (8, 8)
    rows = ("comparing the rows with the centroids", "ordering the rows", "measuring the recall")
    assert found == dict.fromkeys(rows, (1000, 1000))
    assert not states(lambda work: work.subject == "collection")


@pytest.mark.extended
@pytest.mark.parametrize("metric", Metric)
def test_index_finds_what_it_promises(tmp_path: Path, metric: Metric) -> None:
    vectors, queries = _clustered(3000, 1), _clustered(100, 2)
    opened = Opened(settings_of(tmp_path, _DIMENSIONS, metric, index_rows=2000))
    run, collection = opened.run, opened.collection
    run(collection.upsert(_records(vectors[:1999])))
    assert run(collection.info()).index.state is IndexState.NONE
    run(collection.upsert(_records(vectors)))
    info = _wait(opened, IndexState.READY)
    assert info.recall is not None
    assert info.recall >= 0.95
    assert 0 < info.probed < info.lists / 2
    for where in (None, parse_filter({"even": True})):
        for top_k in (1, 10):
            exact = run(collection.search(queries, top_k, where=where, exact=True))
            found = run(collection.search(queries, top_k, where=where))
            assert _recall(found, exact) >= 0.93
            assert all(len(hits) == top_k for hits in found)
    opened.close()


def _recall(found: list[list[Hit]], exact: list[list[Hit]]) -> float:
    pairs = [({hit.id for hit in own}, {hit.id for hit in all_}) for own, all_ in zip(found, exact, strict=True)]
    return float(np.mean([len(own & all_) / len(all_) for own, all_ in pairs]))


def test_indexed_rows_change_at_once(tmp_path: Path) -> None:
    vectors = _clustered(3000, 1)
    opened = Opened(settings_of(tmp_path, _DIMENSIONS, index_rows=2000))
    run, collection = opened.run, opened.collection
    run(collection.upsert(_records(vectors)))
    _wait(opened, IndexState.READY)
    query = vectors[7][None]
    assert run(collection.search(query, 1))[0][0].id == "7"
    run(collection.delete(["7"]))
    assert run(collection.search(query, 1))[0][0].id != "7"
    run(collection.upsert([Record("new", vectors[7]), Record("8", -vectors[8])]))
    assert run(collection.search(query, 1))[0][0].id == "new"
    assert run(collection.search(vectors[8][None], 1))[0][0].id != "8"
    # More new rows than a twentieth: the index is built again, with them.
    run(collection.upsert(_records(_clustered(600, 3), "late-")))
    info = _wait(opened, IndexState.READY, unindexed=400)
    assert info.recall is not None
    assert run(collection.search(query, 1))[0][0].id == "new"
    opened.close()


def test_search_returns_every_wanted_hit(tmp_path: Path) -> None:
    opened = Opened(settings_of(tmp_path, _DIMENSIONS, index_rows=2000))
    run, collection = opened.run, opened.collection
    run(collection.upsert(_records(_clustered(3000, 1))))
    _wait(opened, IndexState.READY)
    run(collection.delete(where=parse_filter({"even": True})))
    query = _clustered(1, 2)
    # More rows than the probed lists have, and a larger top k than recall was measured for.
    for top_k in (90, 1400, 5000):
        assert len(run(collection.search(query, top_k))[0]) == min(top_k, 1500)
    opened.close()


@pytest.mark.extended
def test_index_of_random_vectors_is_not_used(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((2500, 200), dtype=np.float32)
    opened = Opened(settings_of(tmp_path, 200, index_rows=2000))
    run, collection = opened.run, opened.collection
    run(collection.upsert(_records(vectors)))
    info = _wait(opened, IndexState.MISSED)
    assert info.reason is not None
    scores = expected_scores(vectors, vectors[0], Metric.COSINE)
    hits = run(collection.search(vectors[:1], 20))[0]
    assert [hit.id for hit in hits] == [str(index) for index in np.argsort(-scores)[:20]]
    opened.close()


def test_reopened_index_is_read_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = _clustered(3000, 1)
    changed = settings_of(tmp_path, _DIMENSIONS, index_rows=2000)
    opened = Opened(changed)
    opened.run(opened.collection.upsert(_records(vectors)))
    before = _wait(opened, IndexState.READY)
    while not (tmp_path / "notes" / index_file.FILE).exists():
        time.sleep(0.01)
    opened.close()

    def refuse(*_: object) -> None:
        raise AssertionError("the centroids are trained again")

    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "train_centroids", refuse)
        opened = Opened(changed)
        assert _wait(opened, IndexState.READY, IndexState.FAILED) == before
        opened.close()
    (tmp_path / "notes" / index_file.FILE).write_bytes(b"PK damaged")
    opened = Opened(changed)
    assert _wait(opened, IndexState.READY, IndexState.FAILED).state is IndexState.READY
    opened.close()


def test_failed_build_leaves_searches_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(maintenance, "compacted", fail)
    vectors = _clustered(2500, 1)
    opened = Opened(settings_of(tmp_path, _DIMENSIONS, index_rows=2000))
    opened.run(opened.collection.upsert(_records(vectors)))
    assert _wait(opened, IndexState.FAILED).reason == "MemoryError"
    assert opened.run(opened.collection.search(vectors[:1], 1))[0][0].id == "0"
    opened.close()


def test_deleted_rows_leave_memory(tmp_path: Path) -> None:
    opened = Opened(settings_of(tmp_path, _DIMENSIONS, index_rows=None))
    run, collection = opened.run, opened.collection
    run(collection.upsert(_records(_clustered(4000, 1))))
    before = collection.memory_bytes
    run(collection.delete(where=parse_filter({"even": True})))
    while collection.memory_bytes > 0.8 * before:
        time.sleep(0.01)
    assert len(run(collection.search(_clustered(1, 2), 5000))[0]) == 2000
    assert len(run(collection.search(_clustered(1, 2), 5000, where=parse_filter({"even": False})))[0]) == 2000
    opened.close()


def test_close_stops_a_build(tmp_path: Path) -> None:
    opened = Opened(settings_of(tmp_path, _DIMENSIONS, index_rows=100))

    async def upsert_and_close() -> None:
        await opened.collection.upsert(_records(_clustered(4000, 1)))
        await asyncio.wait_for(opened.collection.close(), 60)

    opened.run(upsert_and_close())
    opened.close()
    again = Opened(settings_of(tmp_path, _DIMENSIONS))
    assert again.run(again.collection.info()).rows == 4000
    again.close()
