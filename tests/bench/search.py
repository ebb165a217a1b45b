"""Measure searches of a collection of 1,000,000 x 384 float32 on one core: exact, batched and by its index.

The limit of an exact search is one read of the same bytes: a float32 dot product of the rows with themselves. Rows are
like embeddings: 1,000 topics, 20,000 subtopics around them and noise around those, with variances that fall from the
first dimension to the last. Queries are drawn in the same way and are not among the rows.

Exact searches and their limit are the best of several rounds: a neighbour on the bus of the memory changes a median.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from frameworks.collections.collection import EmbeddedCollection, open_collection
from frameworks.collections.contract import Collection, CollectionSettings, Hit, IndexInfo, IndexState, Record, Vectors
from frameworks.collections.products import compiled_kernels
from tests.bench.cores import LOAD_CORES, on_cores
from tests.bench.table import Row

ROWS, DIMENSIONS, TOP_K = 1_000_000, 384, 10
_UPSERTED_AT_ONCE = 10_000
_CALLERS = 16
_ROUNDS = 15
_BATCHES = 3
_QUERIES = 128
_TOPICS, _SUBTOPICS, _SPREAD, _DECAY = 1000, 20_000, 0.7, -0.35
_PYTHON_ROWS = 500


def measure_search() -> list[Row]:
    """Return the rows of the table."""
    with on_cores(LOAD_CORES), tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder)))


def embeddings(count: int, seed: int) -> Vectors:
    """Return vectors like embeddings, float32 [count, DIMENSIONS]."""
    generator = np.random.default_rng(0)
    topics = generator.standard_normal((_TOPICS, DIMENSIONS), dtype=np.float32)
    subtopics = topics[generator.integers(0, _TOPICS, _SUBTOPICS)]
    subtopics += np.float32(_SPREAD) * generator.standard_normal(subtopics.shape, dtype=np.float32)
    scales = ((1 + np.arange(DIMENSIONS)) ** _DECAY).astype(np.float32)
    generator = np.random.default_rng(seed)
    vectors = generator.standard_normal((count, DIMENSIONS), dtype=np.float32)
    for start in range(0, count, _UPSERTED_AT_ONCE):
        part = vectors[start : start + _UPSERTED_AT_ONCE]
        part += subtopics[generator.integers(0, _SUBTOPICS, len(part))]
        part *= scales
    return vectors


async def _measure(folder: Path) -> list[Row]:
    vectors, queries = embeddings(ROWS, 1), embeddings(_QUERIES, 2)
    settings = CollectionSettings("bench", folder / "bench", DIMENSIONS, index_rows=None)
    collection = await open_collection(settings)
    started_s = time.perf_counter()
    for start in range(0, ROWS, _UPSERTED_AT_ONCE):
        part = vectors[start : start + _UPSERTED_AT_ONCE]
        await collection.upsert([Record(f"record-{start + index}", each) for index, each in enumerate(part)])
    upsert_s = time.perf_counter() - started_s
    rows, exact_s = await _exact(collection, queries)
    truth = [found[0] for found in [await collection.search(query[None], TOP_K) for query in queries]]
    await collection.close()
    started_s = time.perf_counter()
    collection = await open_collection(replace(settings, index_rows=200_000))
    opened_s = time.perf_counter() - started_s
    rows += await _indexed(collection, queries, truth, exact_s)
    await collection.close()
    rows.append(Row("Upsert of 1,000,000 rows, 10,000 at once, durable", f"{upsert_s:.0f} s"))
    rows.append(Row("Open of the collection", f"{opened_s:.1f} s"))
    return rows + _others(vectors, queries, exact_s)


async def _exact(collection: Collection, queries: Vectors) -> tuple[list[Row], float]:
    """Return rows of exact searches, and the seconds of one alone. The rounds of limit and search alternate."""
    assert isinstance(collection, EmbeddedCollection)
    parts = collection._segments.snapshot.parts
    limits, alone = [], []
    for number in range(_ROUNDS):
        limits.append(_seconds(lambda: [_read(part.segment.vectors[: part.count]) for part in parts]))
        query = queries[number % len(queries)][None]
        alone.append(await _awaited_seconds(lambda query=query: collection.search(query, TOP_K)))  # type: ignore[misc]
    together = [await _awaited_seconds(lambda: _call_together(collection, queries)) for _ in range(_ROUNDS)]
    limit_s, alone_s, each_s = min(limits), min(alone), min(together) / (_CALLERS * _BATCHES)
    made = "compiled" if compiled_kernels() is not None else "numpy"
    giga = ROWS * DIMENSIONS * 4 / 1e9
    rows = [
        Row(
            "Exact top 10 of 1,000,000 x 384, one core, alone",
            f"{alone_s * 1e3:.1f} ms, {limit_s / alone_s:.2f} of the limit",
            "≥ 0.9 of the limit",
            f"one read of the same bytes: {limit_s * 1e3:.1f} ms, {giga / limit_s:.1f} GB/s",
        ),
        Row(
            f"The same, {_CALLERS} callers ({made} product)",
            f"{1 / each_s:.0f}/s, {alone_s / each_s:.1f} times alone",
            "≥ 5 times alone",
            f"alone: {1 / alone_s:.1f}/s",
        ),
    ]
    return rows, alone_s


def _read(vectors: Vectors) -> float:
    flat = vectors.reshape(-1)
    return float(np.dot(flat, flat))


async def _call_together(collection: Collection, queries: Vectors) -> None:
    async def caller(number: int) -> None:
        for index in range(_BATCHES):
            await collection.search(queries[(number + index) % len(queries)][None], TOP_K)

    await asyncio.gather(*(caller(number) for number in range(_CALLERS)))


async def _built(collection: Collection) -> IndexInfo:
    """Return the index when its build has ended."""
    while True:
        index = (await collection.info()).index
        if index.state not in (IndexState.NONE, IndexState.BUILDING):
            return index
        await asyncio.sleep(0.2)


async def _indexed(collection: Collection, queries: Vectors, truth: list[list[Hit]], exact_s: float) -> list[Row]:
    started_s = time.perf_counter()
    index = await _built(collection)
    built_s = time.perf_counter() - started_s
    times, shares = [], []
    for query, expected in zip(queries, truth, strict=True):
        started_s = time.perf_counter()
        (found,) = await collection.search(query[None], TOP_K)
        times.append(time.perf_counter() - started_s)
        shares.append(len({hit.id for hit in found} & {hit.id for hit in expected}) / TOP_K)
    info = await collection.info()
    return [
        Row(
            f"By its index: {index.probed} of {index.lists} lists are read",
            f"{median(times) * 1e3:.2f} ms, {exact_s / median(times):.0f} times exact, recall {np.mean(shares):.3f}",
            "≥ 10 times exact, recall ≥ 0.95",
            f"exact: {exact_s * 1e3:.1f} ms",
        ),
        Row("Build of the index, one core, low priority", f"{built_s:.0f} s"),
        Row("Memory of the collection", f"{info.memory_bytes / 1e9:.2f} GB, {info.disk_bytes / 1e9:.2f} GB on disk"),
    ]


def _others(vectors: Vectors, queries: Vectors, exact_s: float) -> list[Row]:
    """Return rows of scikit-learn and of loops in Python."""
    from sklearn.neighbors import NearestNeighbors

    neighbours = NearestNeighbors(n_neighbors=TOP_K, algorithm="brute", metric="cosine").fit(vectors)
    sklearn_s = median(_seconds(lambda query=query: neighbours.kneighbors(query[None])) for query in queries[:3])  # type: ignore[misc]
    rows, query = vectors[:_PYTHON_ROWS].tolist(), queries[0].tolist()

    def loop() -> list[float]:
        return sorted((sum(a * b for a, b in zip(row, query, strict=True)) for row in rows), reverse=True)[:TOP_K]

    python_s = median(_seconds(loop) for _ in range(3)) * ROWS / _PYTHON_ROWS
    return [
        Row(
            "scikit-learn `NearestNeighbors`, brute, cosine, one query",
            f"{sklearn_s * 1e3:.0f} ms, {sklearn_s / exact_s:.1f} times as long",
            compared=f"exact: {exact_s * 1e3:.1f} ms",
        ),
        Row(
            f"Loops in Python, measured with {_PYTHON_ROWS} rows and scaled",
            f"{python_s:.0f} s, {python_s / exact_s:.0f} times as long",
            compared=f"exact: {exact_s * 1e3:.1f} ms",
        ),
    ]


def _seconds(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


async def _awaited_seconds(call: Callable[[], Awaitable[object]]) -> float:
    started_s = time.perf_counter()
    await call()
    return time.perf_counter() - started_s
