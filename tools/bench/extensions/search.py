"""Measure searches of a collection of 1,000,000 x 384 float32 on one core: exact, batched and by its index.

The limit of an exact search is one read of the same bytes: a float32 dot product of the rows with themselves, on one
thread. `BENCH_ROWS="exact index"` measures some of the rows, `BENCH_VECTORS=250000` fewer vectors.
"""

import asyncio
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from extensions.search.collections.collection import Collection, open_collection
from extensions.search.collections.contract import CollectionSettings, IndexInfo, IndexState
from extensions.search.collections.scan.scoring import compiled_kernels
from frameworks.core.vector_search import Record, Vectors
from tools.bench.extensions.search_data import (
    BATCHES,
    CALLERS,
    DIMENSIONS,
    NOISY,
    ROWS,
    TOP_K,
    Corpus,
    cpu_ratio,
    in_rounds,
)
from tools.bench.extensions.search_peers import PYTHON_ROWS, peer_measured
from tools.bench.extensions.search_served import measure_served
from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.table import Row

_PARTS = ("exact", "index", "server", "noisy-index", "scikit-learn", "python")
_NOISY_SHARE = 4
"""The noisier collection has so many times fewer rows: its build is no slower than all other rows."""
_QUERIES = 64
_EXACT_S, _INDEX_S = 20, 10
_SMALL_DOT = 8192
"""Numbers that BLAS multiplies on one thread."""


def measure_search() -> list[Row]:
    """Return the rows of the table. Raises RuntimeError for an unknown name in BENCH_ROWS."""
    names = os.environ.get("BENCH_ROWS", "").split() or list(_PARTS)
    if unknown := set(names) - set(_PARTS):
        raise RuntimeError(f"BENCH_ROWS: expected names of {', '.join(_PARTS)}, got {min(unknown)!r}; change it")
    with on_cores(LOAD_CORES), tempfile.TemporaryDirectory() as folder:
        return _rows(Path(folder), names)


def _rows(folder: Path, names: list[str]) -> list[Row]:
    rows: list[Row] = []
    own_s: dict[int, float] = {}
    if {"exact", "index", "server"} & set(names):
        own = folder / "clustered" / "bench"
        settings = CollectionSettings("bench", own, DIMENSIONS, index_rows=None)
        rows += asyncio.run(_exact_part(settings, names, own_s))
        if "index" in names:
            rows += asyncio.run(_index_part(settings, Corpus()))
        if "server" in names:
            rows += measure_served(own, Corpus().queries(CALLERS), ROWS // 2)
    if "noisy-index" in names:
        corpus = Corpus(ROWS // _NOISY_SHARE, NOISY)
        settings = CollectionSettings("noisy", folder / "noisy" / "bench", DIMENSIONS, index_rows=None)
        asyncio.run(_filled(settings, corpus))
        rows += asyncio.run(_index_part(settings, corpus))
    for peer in ("scikit-learn", "python"):
        if peer in names:
            rows += _peer_rows(peer, own_s)
    return rows


async def _filled(settings: CollectionSettings, corpus: Corpus) -> list[Row]:
    """Make a collection of a corpus."""
    collection = await open_collection(settings)
    taken_s, done = 0.0, 0
    for part in corpus.vectors():
        records = [Record(f"record-{done + index}", each) for index, each in enumerate(part)]
        started_s = time.perf_counter()
        await collection.upsert(records)
        taken_s += time.perf_counter() - started_s
        done += len(part)
    await collection.close()
    return [Row(f"Upsert of {corpus.rows:,} rows, {len(part):,} at once, durable", f"{taken_s:.0f} s")]


async def _exact_part(settings: CollectionSettings, names: list[str], own_s: dict[int, float]) -> list[Row]:
    """Fill the collection and search it. `own_s` gets the CPU seconds of 1 query, and of 16 at once."""
    rows = await _filled(settings, Corpus())
    started_s = time.perf_counter()
    collection = await open_collection(settings)
    rows.append(Row("Open of the collection", f"{time.perf_counter() - started_s:.1f} s"))
    if "exact" in names:
        rows = await _exact(collection, Corpus().queries(_QUERIES), own_s) + rows
    await collection.close()
    return rows


async def _exact(collection: Collection, queries: Vectors, own_s: dict[int, float]) -> list[Row]:
    parts = collection._segments.snapshot.parts
    numbers = iter(range(1 << 60))

    async def limit() -> None:
        for part in parts:
            flat = part.segment.vectors[: part.count].reshape(-1)
            blocks = flat[: len(flat) // _SMALL_DOT * _SMALL_DOT].reshape(-1, _SMALL_DOT)
            np.vecdot(blocks, blocks)

    async def alone() -> None:
        await collection.search(queries[next(numbers) % len(queries)][None], TOP_K)

    async def together() -> None:
        await asyncio.gather(*(_caller(collection, queries, number) for number in range(CALLERS)))

    taken = await in_rounds({"limit": limit, "alone": alone, "together": together}, _EXACT_S)
    of_limit, of_alone, of_together = (taken[name] for name in ("limit", "alone", "together"))
    each_s = of_together.usual_s / (CALLERS * BATCHES)
    own_s |= {1: of_alone.usual_cpu_s, CALLERS: of_together.usual_cpu_s / BATCHES}
    kind = "compiled passes" if compiled_kernels() is not None else "numpy"
    limit_s = of_limit.usual_s
    return [
        Row(
            f"Exact top 10 of {ROWS:,} x 384, one core, alone ({kind})",
            f"{of_alone.usual_s * 1e3:.1f} ms, {limit_s / of_alone.usual_s:.2f} of the limit by the clock, "
            f"{cpu_ratio(of_limit, of_alone):.2f} by CPU time",
            "≥ 0.9 of the limit",
            f"one read of the same bytes: {limit_s * 1e3:.1f} ms, {ROWS * DIMENSIONS * 4 / 1e9 / limit_s:.1f} GB/s",
        ),
        Row(
            f"The same, {CALLERS} callers",
            f"{1 / each_s:.0f}/s, {of_alone.usual_s / each_s:.1f} times alone by the clock, "
            f"{cpu_ratio(of_alone, of_together) * CALLERS * BATCHES:.1f} times by CPU time",
            "≥ 5 times alone",
            f"alone: {1 / of_alone.usual_s:.1f}/s",
        ),
    ]


async def _caller(collection: Collection, queries: Vectors, number: int) -> None:
    for index in range(BATCHES):
        await collection.search(queries[(number + index) % len(queries)][None], TOP_K)


async def _index_part(settings: CollectionSettings, corpus: Corpus) -> list[Row]:
    started_s = time.perf_counter()
    collection = await open_collection(replace(settings, index_rows=corpus.rows // 2))
    index = await _built(collection)
    built_s = time.perf_counter() - started_s
    rows = await _indexed(collection, corpus.queries(_QUERIES), index, corpus)
    info = await collection.info()
    await collection.close()
    size = f"{info.memory_bytes / 1e9:.2f} GB, {info.disk_bytes / 1e9:.2f} GB on disk"
    return [
        *rows,
        Row(f"Open and build of the index of {info.rows:,} rows, one core", f"{built_s:.0f} s", compared=size),
    ]


async def _built(collection: Collection) -> IndexInfo:
    """Return the index when its build has ended."""
    while True:
        index = (await collection.info()).index
        if index.state not in (IndexState.NONE, IndexState.BUILDING):
            return index
        await asyncio.sleep(0.2)


async def _indexed(collection: Collection, queries: Vectors, index: IndexInfo, corpus: Corpus) -> list[Row]:
    numbers = {name: iter(range(1 << 60)) for name in ("exact", "index")}

    async def search(name: str) -> None:
        query = queries[next(numbers[name]) % len(queries)]
        await collection.search(query[None], TOP_K, exact=name == "exact")

    ways = {"exact": lambda: search("exact"), "index": lambda: search("index")}
    taken = await in_rounds(ways, _INDEX_S)
    truth = await collection.search(queries, TOP_K, exact=True)
    found = await collection.search(queries, TOP_K)
    recall = np.mean(
        [
            len({hit.id for hit in own} & {hit.id for hit in all_}) / TOP_K
            for own, all_ in zip(found, truth, strict=True)
        ]
    )
    exact, by_index = taken["exact"], taken["index"]
    read = f"{index.probed} of {index.lists} lists are read"
    if index.state is not IndexState.READY:
        read = f"not used ({index.reason}): {index.probed} of {index.lists} lists would be read"
    return [
        Row(
            f"By its index, {corpus.rows:,} rows, noise {corpus.noise:.1f}: {read}",
            f"{by_index.usual_s * 1e3:.2f} ms, {exact.usual_s / by_index.usual_s:.0f} times exact by the clock, "
            f"{cpu_ratio(exact, by_index):.0f} times by CPU time, recall {recall:.3f}",
            "≥ 10 times exact, recall ≥ 0.95",
            f"exact: {exact.usual_s * 1e3:.1f} ms",
        )
    ]


def _peer_rows(peer: str, own_s: dict[int, float]) -> list[Row]:
    """Return the CPU times of a peer beside ours, where those were measured."""
    what = f"scikit-learn `NearestNeighbors`, brute, of {ROWS:,} rows"
    if peer == "python":
        what = f"Python of {ROWS:,} rows, measured with {PYTHON_ROWS} and scaled"
    rows = []
    for name, taken in peer_measured(peer).items():
        ours_s = own_s.get(taken.queries)
        compared = "-" if ours_s is None else f"exact: {ours_s * 1e3:.1f} ms, {taken.cpu_s / ours_s:.1f} times"
        rows.append(Row(f"{what}: {name}, CPU time", f"{taken.cpu_s * 1e3:,.0f} ms", compared=compared))
    return rows
