"""Searches: their hits against sentence-transformers and numpy, and their batches."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from extensions.search.collections.contract import CollectionFull, Metric
from extensions.search.collections.scan import scoring
from frameworks.core.errors import Draining, InvalidInput, Overloaded
from frameworks.core.filters import parse_filter
from frameworks.core.vector_search import Hit, Record
from tests.extensions.search.collections.model import Opened, random_vectors, records_of, settings_of


@pytest.mark.parametrize(
    ("metric", "score"),
    [(Metric.COSINE, "cos_sim"), (Metric.DOT, "dot_score"), (Metric.EUCLID, "euclidean_sim")],
)
def test_hits_equal_those_of_semantic_search(tmp_path: Path, metric: Metric, score: str) -> None:
    from sentence_transformers import util

    vectors, queries = random_vectors(3000, 64), random_vectors(40, 64, seed=1)
    opened = Opened(settings_of(tmp_path, 64, metric))
    opened.run(opened.collection.upsert(records_of(vectors)))
    found = opened.run(opened.collection.search(queries, 10))
    expected = util.semantic_search(
        torch.from_numpy(queries), torch.from_numpy(vectors), top_k=10, score_function=getattr(util, score)
    )
    for own, other in zip(found, expected, strict=True):
        assert [hit.id for hit in own] == [str(each["corpus_id"]) for each in other]
        assert np.allclose([hit.score for hit in own], [each["score"] for each in other], rtol=1e-5, atol=1e-5)
    opened.close()


@pytest.mark.parametrize("count", [1, 2, 4, 5, 16, 17, 40])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_matmul_equals_numpy(count: int, is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_compiled:
        monkeypatch.setattr(scoring, "compiled_kernels", lambda: None)
    rows, queries = random_vectors(701, 37), random_vectors(count, 37, seed=1)
    product = scoring.BlockMatmul(queries)
    assert np.allclose(product(rows), rows.astype(np.float64) @ queries.T.astype(np.float64), atol=1e-4)
    assert product(rows[:3]).shape == (3, count)


def test_compiled_kernels_are_used_where_numba_is() -> None:
    pytest.importorskip("numba")
    assert scoring.compiled_kernels() is not None


@pytest.mark.parametrize("threads", [1, 3])
def test_score_does_not_depend_on_batch(tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "GEMV_BYTES", 8192)
    vectors, queries = random_vectors(2000, 48), random_vectors(20, 48, seed=1)
    opened = Opened(settings_of(tmp_path, 48, threads=threads))
    opened.run(opened.collection.upsert(records_of(vectors)))
    together = opened.run(opened.collection.search(queries, 30))
    alone = [opened.run(opened.collection.search(query[None], 30))[0] for query in queries]
    assert together == alone
    opened.close()


def test_equal_scores_are_ordered_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "GEMV_BYTES", 256)
    opened = Opened(settings_of(tmp_path, 2))
    ones = np.ones((700, 2), dtype=np.float32)
    opened.run(opened.collection.upsert(records_of(ones)))
    opened.run(opened.collection.upsert([Record("0", ones[0])]))
    hits = opened.run(opened.collection.search(ones[:1], 5))[0]
    assert [hit.id for hit in hits] == ["1", "2", "3", "4", "5"]
    opened.close()


class _Held:
    """Lets the searches of a collection run only once `released` is set."""

    def __init__(self, opened: Opened) -> None:
        searcher: Any = opened.collection._searcher
        self.searcher = searcher
        self.begun, self.released = threading.Event(), threading.Event()
        run = self.searcher._find

        def held(*arguments: Any) -> None:
            self.begun.set()
            self.released.wait()
            run(*arguments)

        self.searcher._find = held


def test_waiting_searches_are_one_batch(tmp_path: Path) -> None:
    vectors = random_vectors(500, 16)
    opened = Opened(settings_of(tmp_path, 16))
    opened.run(opened.collection.upsert([Record(str(i), each, None, {"i": i}) for i, each in enumerate(vectors)]))
    held = _Held(opened)

    async def calls() -> list[list[list[Hit]]]:
        first = asyncio.create_task(opened.collection.search(vectors[:1], 3))
        await asyncio.to_thread(held.begun.wait)
        rest = [
            asyncio.create_task(opened.collection.search(vectors[i : i + 1], 1 + i % 3, where=where))
            for i in range(1, 17)
            for where in (None, parse_filter({"i": {"gte": 8}}))
        ]
        await asyncio.sleep(0)
        rest[4].cancel()
        held.released.set()
        return [await first, *await asyncio.gather(*rest[:4], *rest[5:])]

    found = opened.run(calls())
    assert held.searcher.batches == 2
    # The cancelled search was not run, or its hits were dropped.
    assert len(found) == 32
    assert found[0][0][0].id == "0"
    opened.run(opened.collection.search(vectors[:1], 3))
    for index, hits in zip([i for i in range(1, 17) for _ in range(2)][:4], found[1:5], strict=True):
        assert len(hits[0]) == 1 + index % 3
    opened.close()


def test_too_many_waiting_queries_are_refused(tmp_path: Path) -> None:
    opened = Opened(settings_of(tmp_path, 4, max_waiting=4))
    vectors = random_vectors(6, 4)
    opened.run(opened.collection.upsert(records_of(vectors)))
    held = _Held(opened)

    async def calls() -> list[Any]:
        waiting = [asyncio.create_task(opened.collection.search(vectors[:2], 1)) for _ in range(2)]
        await asyncio.to_thread(held.begun.wait)
        with pytest.raises(Overloaded, match="expected at most 4 waiting"):
            await opened.collection.search(vectors[:1], 1)
        held.released.set()
        return await asyncio.gather(*waiting)

    assert len(opened.run(calls())) == 2
    assert len(opened.run(opened.collection.search(vectors, 1))) == 6
    opened.close()


def test_concurrent_upserts_share_commits(tmp_path: Path) -> None:
    opened = Opened(settings_of(tmp_path, 4))
    vectors = random_vectors(50, 4)
    store: Any = opened.collection._opened.store
    commits = []
    commit = store.commit

    def counted() -> None:
        commits.append(1)
        commit()

    store.commit = counted

    async def calls() -> list[int]:
        return await asyncio.gather(*(opened.collection.upsert(records_of(vectors, f"{i}-")) for i in range(30)))

    assert opened.run(calls()) == [50] * 30
    assert opened.run(opened.collection.info()).rows == 1500
    assert len(commits) < 30
    opened.close()


def test_search_during_upserts_sees_whole_records(tmp_path: Path) -> None:
    opened = Opened(settings_of(tmp_path, 8))
    vectors = random_vectors(64, 8)
    opened.run(opened.collection.upsert(records_of(vectors)))

    async def write() -> None:
        for _ in range(60):
            await opened.collection.upsert(records_of(vectors))

    async def read() -> None:
        for _ in range(200):
            hits = (await opened.collection.search(vectors[:3], 64))[0]
            assert len({hit.id for hit in hits}) == 64

    async def both() -> None:
        await asyncio.gather(write(), read())

    opened.run(both())
    opened.close()


def test_full_collection_refuses_new_rows(tmp_path: Path) -> None:
    opened = Opened(settings_of(tmp_path, 4, max_rows=10))
    vectors = random_vectors(12, 4)
    opened.run(opened.collection.upsert(records_of(vectors[:8])))
    with pytest.raises(CollectionFull, match="expected at most 10 rows, got 12"):
        opened.run(opened.collection.upsert(records_of(vectors)))
    assert opened.run(opened.collection.upsert(records_of(vectors[:10]))) == 10
    assert opened.run(opened.collection.info()).rows == 10
    opened.close()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record("", np.zeros(3, np.float32)), "records[1].id: expected a string of 1 to 512 bytes"),
        (Record("a", np.zeros(4, np.float32)), "records[1].vector: expected 3 numbers, got 4"),
        (Record("a", np.array([0, np.nan, 1], np.float32)), "records[1].vector: expected numbers"),
        (Record("a", np.zeros(3, np.float32), "\ud800"), "records[1].text: expected valid Unicode"),
        (Record("a", np.zeros(3, np.float32), None, {"k": [1]}), "records[1].metadata.k: expected a string"),  # type: ignore[list-item]
        (Record("a", np.zeros(3, np.float32), None, {"$k": 1}), "records[1].metadata: expected keys"),
        (Record("a", np.zeros(3, np.float32), None, {"k": "x" * 70_000}), "records[1].metadata: expected at most"),
        (Record("a", np.zeros(3, np.float32), None, {"k": 1 << 80}), "records[1].metadata: expected JSON"),
    ],
)
def test_wrong_record_is_refused_as_a_whole(tmp_path: Path, record: Record, message: str) -> None:
    opened = Opened(settings_of(tmp_path, 3))
    with pytest.raises(InvalidInput) as raised:
        opened.run(opened.collection.upsert([Record("good", np.ones(3, np.float32)), record]))
    assert str(raised.value).startswith(message)
    assert opened.run(opened.collection.info()).rows == 0
    opened.close()


def test_too_many_metadata_keys_are_refused(tmp_path: Path) -> None:
    opened = Opened(settings_of(tmp_path, 2))
    one = np.ones(2, np.float32)
    opened.run(opened.collection.upsert([Record("a", one, None, {f"k{i}": i for i in range(60)})]))
    with pytest.raises(InvalidInput, match="at most 64 different metadata keys"):
        opened.run(opened.collection.upsert([Record("b", one, None, {f"j{i}": i for i in range(5)})]))
    assert opened.run(opened.collection.upsert([Record("b", one, None, {f"j{i}": i for i in range(4)})])) == 1
    opened.close()


@pytest.mark.parametrize("top_k", [0, 10_001, True])
def test_wrong_top_k_is_refused(tmp_path: Path, top_k: int) -> None:
    opened = Opened(settings_of(tmp_path, 2))
    with pytest.raises(InvalidInput, match="top_k: expected an integer from 1 to 10000"):
        opened.run(opened.collection.search(np.ones((1, 2), np.float32), top_k))
    opened.close()


def test_closed_collection_refuses_calls(tmp_path: Path) -> None:
    opened = Opened(settings_of(tmp_path, 2))
    opened.run(opened.collection.close())
    one = np.ones(2, np.float32)
    for call in (
        lambda: opened.collection.search(one[None], 1),
        lambda: opened.collection.upsert([Record("a", one)]),
        lambda: opened.collection.delete(["a"]),
        lambda: opened.collection.get(["a"]),
    ):
        with pytest.raises(Draining):
            opened.run(call())
    opened.close()
