"""Run the searches that wait as one batch: one product, and one read of the records that were found."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import orjson

from frameworks.collections.contract import CollectionSettings, Hit, Vectors
from frameworks.collections.filters import Filter
from frameworks.collections.index.inverted_lists import Lists
from frameworks.collections.index.maintenance import Index
from frameworks.collections.scan.exact_scan import Scan
from frameworks.collections.scan.top_k import Best, Values
from frameworks.collections.store.metadata_columns import Mask
from frameworks.collections.store.segments import Part, Segments, Snapshot, prepared
from frameworks.collections.store.sqlite_store import Reader, Rows, disk_errors

MAX_SELECTED_SHARE = 0.05
"""Of the rows: up to it, the rows that match a filter are gathered and compared alone."""


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


Query = tuple[Best, Selection | None, Search]


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
    def _snapshot(self) -> Iterator[tuple[Snapshot, Lists | None]]:
        """Yield what memory holds and its index, while the reader sees the same on the disk."""
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
            vectors = prepared(search.queries, self._settings.metric)
            queries += [(Best(vector, search.top_k), selection, search) for vector in vectors]
        return queries

    def _selection(self, where: Filter, snapshot: Snapshot) -> Selection:
        schema = self._segments.schema
        masks = [schema.mask(where, part.segment.columns, part.count) for part in snapshot.parts]
        return Selection(masks, sum(int(np.count_nonzero(mask)) for mask in masks))

    def _find(self, queries: Sequence[Query], snapshot: Snapshot, lists: Lists | None) -> None:
        few: dict[int, tuple[Selection, list[Best]]] = {}
        indexed: list[tuple[Query, int]] = []
        rest: list[Query] = []
        for query in queries:
            best, selection, search = query
            share = 1.0 if selection is None else selection.rows / max(1, snapshot.rows)
            if selection is not None and share <= MAX_SELECTED_SHARE:
                few.setdefault(id(selection), (selection, []))[1].append(best)
                continue
            # Of a filter's hits, as many as that are nearer without it: the index must find those.
            probed = None if lists is None or search.is_exact else lists.probed(search.top_k / share)
            if probed is None:
                rest.append(query)
            else:
                indexed.append((query, probed))
        for selection, of_selection in few.values():
            scan = Scan(of_selection, self._settings.metric, snapshot.sequence)
            for part, mask in zip(snapshot.parts, selection.masks, strict=True):
                scan.positions(part.segment, np.flatnonzero(mask))
        if lists is not None and indexed:
            rest += self._find_indexed(indexed, snapshot, lists)
        if rest:
            self._scan(rest, snapshot.parts, snapshot.sequence, 0)

    def _find_indexed(self, queries: Sequence[tuple[Query, int]], snapshot: Snapshot, lists: Lists) -> list[Query]:
        """Search by the index, and all rows that are newer. Return the queries that must be exact."""
        for (best, selection, _), probed in queries:
            masks = None if selection is None else selection.masks
            lists.search(best, snapshot.parts, masks, self._settings.metric, snapshot.sequence, probed)
        newer = snapshot.parts[snapshot.indexed :]
        if newer:
            self._scan([query for query, _ in queries], newer, snapshot.sequence, snapshot.indexed)
        short = [query for query, _ in queries if query[0].count < min(query[0].top_k, snapshot.rows)]
        for best, _, _ in short:
            best.clear()
        return short

    def _scan(self, queries: Sequence[Query], parts: Sequence[Part], sequence: int, first: int) -> None:
        """Compare the queries with all rows of the parts, which are shared among the threads.

        `first`: the number of the first part in the snapshot.
        """
        threads = min(self._settings.threads, len(parts))
        masks = None
        if any(selection is not None for _, selection, _ in queries):
            masks = [None if selection is None else selection.masks[first:] for _, selection, _ in queries]
        if self._pool is None or threads < 2:
            Scan([best for best, _, _ in queries], self._settings.metric, sequence).run(parts, masks)
            return

        def run(number: int) -> list[Best]:
            own = [Best(best.query, best.top_k) for best, _, _ in queries]
            of_parts = [None if of is None else of[number::threads] for of in masks] if masks else None
            Scan(own, self._settings.metric, sequence).run(parts[number::threads], of_parts)
            return own

        others = [self._pool.submit(run, number) for number in range(1, threads)]
        for found in [run(0), *(each.result() for each in others)]:
            for (best, _, _), own in zip(queries, found, strict=True):
                best.merge(own)

    def _hits(self, searches: Sequence[Search], queries: Sequence[Query]) -> list[list[list[Hit]]]:
        ranked = [best.ranked(self._settings.metric) for best, _, _ in queries]
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
