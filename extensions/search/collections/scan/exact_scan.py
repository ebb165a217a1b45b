"""Search exactly: score all rows of segments against blocks of 16 queries, and keep the top-k rows of each query."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from extensions.search.collections.contract import Metric
from extensions.search.collections.scan.scoring import QUERY_BLOCK, Candidates, EligibleRows, make_kernel
from extensions.search.collections.scan.top_k import POSITION_BITS, TopK
from extensions.search.collections.store.metadata_columns import Mask
from extensions.search.collections.store.segments import Part, Positions, Segment
from extensions.search.collections.store.sqlite_store import Rows
from frameworks.core.vector_search import Vectors

_FIRST_ROWS = 256
_SHARED_BYTES = 2 * 1024 * 1024
"""Bytes of rows that several query blocks score in turn: they stay in the CPU's cache."""
_GROWTH = 16
"""The first rows set the thresholds. Each later call of the kernel scores 16 times as many rows."""


class KeptCandidates(NamedTuple):
    """`values` float32; `rows` (row numbers), `addresses` and `query_indices` int64; each [n]."""

    values: Vectors
    rows: Rows
    addresses: Positions
    query_indices: Positions


class QueryBlock:
    """Up to 16 queries that are scored against the same rows, and their top-k rows so far. `finish` ends it."""

    def __init__(self, best: Sequence[TopK], metric: Metric) -> None:
        self._best = best
        self._kernel = make_kernel(np.stack([each.query for each in best]), metric)
        self._capacities = np.array([each.capacity for each in best])
        self._query_range = np.arange(len(best))
        self._total_capacity = int(self._capacities.sum())
        self._thresholds = np.full(QUERY_BLOCK, np.nan, dtype=np.float32)
        self._thresholds[: len(best)] = [each.threshold for each in best]
        self._rows_at_once = max(_FIRST_ROWS, 2 * int(self._capacities.max()))
        self._is_full = bool(np.isfinite(self._thresholds[: len(best)]).all())
        self._segments: list[Segment] = []
        # The top-k rows, sorted by query, then unmerged candidates. Both are merged once they are equally many.
        self._found: list[KeptCandidates] = []
        self._pending = 0

    def score(self, segment: Segment, first: int, end: int, eligible: EligibleRows) -> None:
        """Score the rows of a segment from `first` to `end`."""
        while first < end:
            stop = min(end, first + self._rows_at_once)
            next_row, found = self._kernel(segment, first, stop, self._thresholds, eligible)
            self._rows_at_once *= _GROWTH
            first = next_row
            if len(found.values):
                self._add(found, segment)

    def _add(self, found: Candidates, segment: Segment) -> None:
        if not self._segments or self._segments[-1] is not segment:
            self._segments.append(segment)
        found = self._pruned(found)
        addresses = found.positions + ((len(self._segments) - 1) << POSITION_BITS)
        # The kernel overwrites these arrays in its next call.
        values, query_indices = found.values.copy(), found.query_indices.copy()
        self._found.append(KeptCandidates(values, segment.rows[found.positions], addresses, query_indices))
        self._pending += len(values)
        if not self._is_full or self._pending >= self._total_capacity:
            self._merge()

    def _pruned(self, found: Candidates) -> Candidates:
        """Drop candidates that cannot be among the top-k of this kernel call, where there are many."""
        if len(found.values) <= 4 * self._total_capacity:
            return found
        is_kept = np.ones(len(found.values), dtype=np.bool_)
        for query_index, capacity in enumerate(self._capacities):
            own = np.flatnonzero(found.query_indices == query_index)
            if len(own) > capacity:
                values = found.values[own]
                is_kept[own] = values >= np.partition(values, -capacity)[-capacity]
        return found.take(is_kept)

    def _merge(self) -> None:
        """Keep the best rows of each query, of equal values the oldest, and raise the thresholds."""
        values, rows, addresses, query_indices = (np.concatenate(each) for each in zip(*self._found, strict=True))
        order = np.lexsort((rows, -values, query_indices))
        query_indices = query_indices[order]
        starts = np.searchsorted(query_indices, self._query_range)
        is_kept = np.arange(len(query_indices)) - starts[query_indices] < self._capacities[query_indices]
        order, query_indices = order[is_kept], query_indices[is_kept]
        values = values[order]
        counts = np.bincount(query_indices, minlength=len(self._best))
        full = np.flatnonzero(counts == self._capacities)
        self._thresholds[full] = values[np.cumsum(counts)[full] - 1]
        self._is_full = len(full) == len(self._best)
        self._found = [KeptCandidates(values, rows[order], addresses[order], query_indices)]
        self._pending = 0

    def finish(self) -> None:
        """Merge the top-k rows into those of the queries."""
        if not self._found:
            return
        self._merge()
        [(values, rows, addresses, query_indices)] = self._found
        ends = np.cumsum(np.bincount(query_indices, minlength=len(self._best))).tolist()
        for best, start, end in zip(self._best, [0, *ends], ends, strict=False):
            if end > start:
                best.extend(values[start:end], rows[start:end], addresses[start:end], self._segments)


@dataclass(frozen=True, slots=True)
class Scan:
    """Queries that are scored against the same rows. `sequence`: of the snapshot that they see."""

    best: Sequence[TopK]
    metric: Metric
    sequence: int

    def run(self, parts: Sequence[Part], masks: Sequence[Sequence[Mask] | None] | None = None) -> None:
        """Score all rows of the parts. `masks`: [queries][parts], which positions may be found; None: all."""
        starts = range(0, len(self.best), QUERY_BLOCK)
        blocks = [QueryBlock(self.best[start : start + QUERY_BLOCK], self.metric) for start in starts]
        for index, part in enumerate(parts):
            of_part = [None if of is None else of[index] for of in masks or [None] * len(self.best)]
            eligible = [
                eligible_rows(part.segment, part.count, self.sequence, of_part[start : start + QUERY_BLOCK])
                for start in starts
            ]
            at_once = part.count
            if len(blocks) > 1:
                at_once = max(64, _SHARED_BYTES // self.best[0].query.nbytes // 64 * 64)
            for first in range(0, part.count, at_once):
                for block, own in zip(blocks, eligible, strict=True):
                    block.score(part.segment, first, min(first + at_once, part.count), own)
        for block in blocks:
            block.finish()

    def positions(self, segment: Segment, positions: Positions) -> None:
        """Score the rows at these positions, int64 [n], of a segment."""
        positions = positions[segment.deleted_at[positions] > self.sequence]
        if not len(positions):
            return
        vectors = segment.vectors[positions]
        for each in self.best:
            values = np.vecdot(vectors, each.query)
            if segment.squared_norms is not None:
                values = 2 * values - segment.squared_norms[positions]
            is_kept = values >= each.threshold
            if is_kept.any():
                each.add(values[is_kept], segment, positions[is_kept])


def eligible_rows(segment: Segment, count: int, sequence: int, masks: Sequence[Mask | None]) -> EligibleRows:
    """Return the rows of the first `count` that are not deleted and match the mask of a query, bool [count] or None."""
    live = segment.deleted_at[:count] > sequence if segment.deleted_count else None
    of_query = np.full(QUERY_BLOCK, -1, dtype=np.int64)
    distinct: list[Mask] = []
    mask_indices: dict[int, int] = {}
    for query, mask in enumerate(masks):
        if mask is None and live is None:
            continue
        if id(mask) not in mask_indices:
            mask_indices[id(mask)] = len(distinct)
            distinct.append(_both(mask, live))
        of_query[query] = mask_indices[id(mask)]
    return EligibleRows(np.stack(distinct) if distinct else _NO_MASKS, of_query)


_NO_MASKS = np.empty((0, 0), dtype=np.bool_)


def _both(mask: Mask | None, live: Mask | None) -> Mask:
    """Return the rows of both masks; at most one of them is None, which keeps all rows."""
    if mask is None:
        assert live is not None
        return live
    return mask if live is None else mask & live
