"""Run queued searches as one batch: one GEMM over the vectors, and one read of the records of all hits."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import orjson

from extensions.search.collections.contract import CollectionSettings
from extensions.search.collections.index.inverted_lists import InvertedLists
from extensions.search.collections.index.maintenance import Index
from extensions.search.collections.scan.exact_scan import Scan
from extensions.search.collections.scan.top_k import TopK, Values
from extensions.search.collections.store.metadata_columns import Mask
from extensions.search.collections.store.segments import Part, Segments, Snapshot, normalized
from extensions.search.collections.store.sqlite_store import Reader, Rows, disk_errors
from frameworks.core.filters import Filter
from frameworks.core.vector_search import Hit, Vectors

MAX_SELECTED_SHARE = 0.05
"""Share of the rows. If a filter matches no more, only the matching rows are gathered and scored."""


@dataclass(frozen=True, slots=True)
class Search:
    """One call. `queries`: float32 [n, d], as they were sent."""

    queries: Vectors
    top_k: int
    where: Filter | None
    include_vectors: bool
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that a filter admits. `masks`: for each part. `rows`: how many match."""

    masks: list[Mask]
    rows: int


Query = tuple[TopK, Selection | None, Search]


class Searcher:
    """Runs batches of searches. Used by one thread."""

    def __init__(
        self,
        settings: CollectionSettings,
        reader: Reader,
        segments: Segments,
        index: Index,
        publishing: threading.Lock,
    ) -> None:
        self._settings, self._reader, self._segments, self._index = settings, reader, segments, index
        self._publishing = publishing
        self._pool = ThreadPoolExecutor(settings.threads - 1, "collection-scan") if settings.threads > 1 else None
        self.searches = 0
        self.batches = 0

    def close(self) -> None:
        """End the threads and the connection."""
        if self._pool is not None:
            self._pool.shutdown()
        self._reader.close()

    def run(self, searches: Sequence[Search]) -> list[list[list[Hit]]]:
        """Return the hits of each query of each search."""
        with disk_errors(self._settings.name), self._snapshot() as (snapshot, lists):
            queries = self._queries(searches, snapshot)
            self._find(queries, snapshot, lists)
            self.searches += len(searches)
            self.batches += 1
            return self._hits(searches, queries)

    @contextmanager
    def _snapshot(self) -> Iterator[tuple[Snapshot, InvertedLists | None]]:
        """Yield the snapshot in memory and its index, while the reader sees the same records on disk."""
        try:
            with self._publishing:
                self._reader.begin()
                found = self._segments.snapshot, self._index.lists
            yield found
        finally:
            self._reader.end()

    def _queries(self, searches: Sequence[Search], snapshot: Snapshot) -> list[Query]:
        selections: dict[Filter, Selection] = {}
        queries: list[Query] = []
        for search in searches:
            selection = None
            if search.where is not None:
                if search.where not in selections:
                    selections[search.where] = self._selection(search.where, snapshot)
                selection = selections[search.where]
            vectors = normalized(search.queries, self._settings.metric)
            queries += [(TopK(vector, search.top_k), selection, search) for vector in vectors]
        return queries

    def _selection(self, where: Filter, snapshot: Snapshot) -> Selection:
        schema = self._segments.schema
        masks = [schema.mask(where, part.segment.columns, part.count) for part in snapshot.parts]
        return Selection(masks, sum(int(np.count_nonzero(mask)) for mask in masks))

    def _find(self, queries: Sequence[Query], snapshot: Snapshot, lists: InvertedLists | None) -> None:
        few: dict[int, tuple[Selection, list[TopK]]] = {}
        indexed: list[tuple[Query, int]] = []
        rest: list[Query] = []
        for query in queries:
            top, selection, search = query
            share = 1.0 if selection is None else selection.rows / max(1, snapshot.rows)
            if selection is not None and share <= MAX_SELECTED_SHARE:
                few.setdefault(id(selection), (selection, []))[1].append(top)
                continue
            # For top-k hits after a filter, the index must find about top-k / share hits before it.
            nprobe = None if lists is None or search.is_exact else lists.nprobe(search.top_k / share)
            if nprobe is None:
                rest.append(query)
            else:
                indexed.append((query, nprobe))
        for selection, of_selection in few.values():
            scan = Scan(of_selection, self._settings.metric, snapshot.sequence)
            for part, mask in zip(snapshot.parts, selection.masks, strict=True):
                scan.positions(part.segment, np.flatnonzero(mask))
        if lists is not None and indexed:
            rest += self._find_indexed(indexed, snapshot, lists)
        if rest:
            self._scan(rest, snapshot.parts, snapshot.sequence, 0)

    def _find_indexed(
        self, queries: Sequence[tuple[Query, int]], snapshot: Snapshot, lists: InvertedLists
    ) -> list[Query]:
        """Search by the index, and score all newer rows. Return the queries that need an exact search."""
        for (top, selection, _), nprobe in queries:
            masks = None if selection is None else selection.masks
            lists.search(top, snapshot.parts, masks, self._settings.metric, snapshot.sequence, nprobe)
        newer = snapshot.parts[snapshot.indexed :]
        if newer:
            self._scan([query for query, _ in queries], newer, snapshot.sequence, snapshot.indexed)
        short = [query for query, _ in queries if query[0].count < min(query[0].top_k, snapshot.rows)]
        for top, _, _ in short:
            top.clear()
        return short

    def _scan(self, queries: Sequence[Query], parts: Sequence[Part], sequence: int, first: int) -> None:
        """Score all rows of the parts against the queries. The threads divide the parts.

        `first`: the number of the first part in the snapshot.
        """
        threads = min(self._settings.threads, len(parts))
        masks = None
        if any(selection is not None for _, selection, _ in queries):
            masks = [None if selection is None else selection.masks[first:] for _, selection, _ in queries]
        if self._pool is None or threads < 2:
            Scan([top for top, _, _ in queries], self._settings.metric, sequence).run(parts, masks)
            return

        def run(number: int) -> list[TopK]:
            own = [TopK(top.query, top.top_k) for top, _, _ in queries]
            of_parts = [None if of is None else of[number::threads] for of in masks] if masks else None
            Scan(own, self._settings.metric, sequence).run(parts[number::threads], of_parts)
            return own

        others = [self._pool.submit(run, number) for number in range(1, threads)]
        for found in [run(0), *(each.result() for each in others)]:
            for (top, _, _), own in zip(queries, found, strict=True):
                top.merge(own)

    def _hits(self, searches: Sequence[Search], queries: Sequence[Query]) -> list[list[list[Hit]]]:
        ranked = [top.ranked(self._settings.metric) for top, _, _ in queries]
        wanted = sorted({int(row) for rows, _ in ranked for row in rows})
        with_vectors = [
            rows for (rows, _), (_, _, search) in zip(ranked, queries, strict=True) if search.include_vectors
        ]
        records = self._reader.by_rows(wanted)
        vectors = self._reader.vectors(sorted({int(row) for rows in with_vectors for row in rows}))

        def hits(rows: Rows, scores: Values, has_vectors: bool) -> Iterator[Hit]:
            for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
                record = records[row]
                vector = vectors[row] if has_vectors else None
                yield Hit(record.id, score, record.text, orjson.loads(record.metadata), vector)

        found: Iterator[list[Hit]] = (
            list(hits(rows, scores, search.include_vectors))
            for (rows, scores), (_, _, search) in zip(ranked, queries, strict=True)
        )
        return [[next(found) for _ in search.queries] for search in searches]
