"""Find the best rows of segments for some queries exactly: one pass over the rows for each 16 of the queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from frameworks.collections.contract import Metric, Vectors
from frameworks.collections.scan.block_matmul import GROUP
from frameworks.collections.scan.scoring import Admitted, Found, make_pass
from frameworks.collections.scan.top_k import PLACE_BITS, Best
from frameworks.collections.store.metadata_columns import Mask
from frameworks.collections.store.segments import Part, Positions, Segment
from frameworks.collections.store.sqlite_store import Rows

_FIRST_ROWS = 256
_SHARED_BYTES = 2 * 1024 * 1024
"""Of rows that several groups of queries compare in turn: they stay in the CPU's cache."""
_GROWTH = 16
"""The first rows set the thresholds; then so many times more are compared at once."""


class Candidates(NamedTuple):
    """`values` float32, `rows` their row numbers, `places`, and `numbers` of their queries, int64; each [n]."""

    values: Vectors
    rows: Rows
    places: Positions
    numbers: Positions


class QueryGroup:
    """Up to 16 queries that are compared with the same rows, and their best rows so far. `finish` ends it."""

    def __init__(self, best: Sequence[Best], metric: Metric) -> None:
        self._best = best
        self._pass = make_pass(np.stack([each.query for each in best]), metric)
        self._kept = np.array([each.kept for each in best])
        self._numbers = np.arange(len(best))
        self._num_kept = int(self._kept.sum())
        self._thresholds = np.full(GROUP, np.nan, dtype=np.float32)
        self._thresholds[: len(best)] = [each.threshold for each in best]
        self._rows_at_once = max(_FIRST_ROWS, 2 * int(self._kept.max()))
        self._is_full = bool(np.isfinite(self._thresholds[: len(best)]).all())
        self._segments: list[Segment] = []
        # The best rows, sorted by query, and then candidates that wait until they are as many.
        self._found: list[Candidates] = []
        self._waiting = 0

    def compare(self, segment: Segment, first: int, end: int, admitted: Admitted) -> None:
        """Compare the rows of a segment from `first` to `end`."""
        while first < end:
            stop = min(end, first + self._rows_at_once)
            next_row, found = self._pass(segment, first, stop, self._thresholds, admitted)
            self._rows_at_once *= _GROWTH
            first = next_row
            if len(found.values):
                self._add(found, segment)

    def _add(self, found: Found, segment: Segment) -> None:
        if not self._segments or self._segments[-1] is not segment:
            self._segments.append(segment)
        found = self._best_of(found)
        places = found.positions + ((len(self._segments) - 1) << PLACE_BITS)
        # The pass writes its next candidates over these.
        values, numbers = found.values.copy(), found.numbers.copy()
        self._found.append(Candidates(values, segment.rows[found.positions], places, numbers))
        self._waiting += len(values)
        if not self._is_full or self._waiting >= self._num_kept:
            self._merge()

    def _best_of(self, found: Found) -> Found:
        """Drop most of those candidates that others of the same pass exceed, where there are many."""
        if len(found.values) <= 4 * self._num_kept:
            return found
        is_kept = np.ones(len(found.values), dtype=np.bool_)
        for number, kept in enumerate(self._kept):
            own = np.flatnonzero(found.numbers == number)
            if len(own) > kept:
                values = found.values[own]
                is_kept[own] = values >= np.partition(values, -kept)[-kept]
        return found.take(is_kept)

    def _merge(self) -> None:
        """Keep the best rows of each query, of equal values the oldest, and raise the thresholds."""
        values, rows, places, numbers = (np.concatenate(each) for each in zip(*self._found, strict=True))
        order = np.lexsort((rows, -values, numbers))
        numbers = numbers[order]
        starts = np.searchsorted(numbers, self._numbers)
        is_kept = np.arange(len(numbers)) - starts[numbers] < self._kept[numbers]
        order, numbers = order[is_kept], numbers[is_kept]
        values = values[order]
        counts = np.bincount(numbers, minlength=len(self._best))
        full = np.flatnonzero(counts == self._kept)
        self._thresholds[full] = values[np.cumsum(counts)[full] - 1]
        self._is_full = len(full) == len(self._best)
        self._found = [Candidates(values, rows[order], places[order], numbers)]
        self._waiting = 0

    def finish(self) -> None:
        """Add the best rows to those of the queries."""
        if not self._found:
            return
        self._merge()
        [(values, rows, places, numbers)] = self._found
        ends = np.cumsum(np.bincount(numbers, minlength=len(self._best))).tolist()
        for best, start, end in zip(self._best, [0, *ends], ends, strict=False):
            if end > start:
                best.extend(values[start:end], rows[start:end], places[start:end], self._segments)


@dataclass(frozen=True, slots=True)
class Scan:
    """Queries that are compared with the same rows. `sequence`: of the snapshot that they see."""

    best: Sequence[Best]
    metric: Metric
    sequence: int

    def run(self, parts: Sequence[Part], masks: Sequence[Sequence[Mask] | None] | None = None) -> None:
        """Compare all rows of the parts. `masks`: [queries][parts], which positions may be found; None: all."""
        starts = range(0, len(self.best), GROUP)
        groups = [QueryGroup(self.best[start : start + GROUP], self.metric) for start in starts]
        for index, part in enumerate(parts):
            of_part = [None if of is None else of[index] for of in masks or [None] * len(self.best)]
            admitted = [
                admitted_rows(part.segment, part.count, self.sequence, of_part[start : start + GROUP])
                for start in starts
            ]
            at_once = part.count
            if len(groups) > 1:
                at_once = max(64, _SHARED_BYTES // self.best[0].query.nbytes // 64 * 64)
            for first in range(0, part.count, at_once):
                for group, own in zip(groups, admitted, strict=True):
                    group.compare(part.segment, first, min(first + at_once, part.count), own)
        for group in groups:
            group.finish()

    def positions(self, segment: Segment, positions: Positions) -> None:
        """Compare the rows at these positions of a segment."""
        positions = positions[segment.died[positions] > self.sequence]
        if not len(positions):
            return
        vectors = segment.vectors[positions]
        for each in self.best:
            values = np.vecdot(vectors, each.query)
            if segment.squares is not None:
                values = 2 * values - segment.squares[positions]
            is_kept = values >= each.threshold
            if is_kept.any():
                each.add(values[is_kept], segment, positions[is_kept])


def admitted_rows(segment: Segment, count: int, sequence: int, masks: Sequence[Mask | None]) -> Admitted:
    """Return which of the first `count` rows are alive, and match the mask of each query, if it has one."""
    alive = segment.died[:count] > sequence if segment.dead else None
    of_query = np.full(GROUP, -1, dtype=np.int64)
    different: list[Mask] = []
    numbers: dict[int, int] = {}
    for query, mask in enumerate(masks):
        if mask is None and alive is None:
            continue
        if id(mask) not in numbers:
            numbers[id(mask)] = len(different)
            different.append(_both(mask, alive))
        of_query[query] = numbers[id(mask)]
    return Admitted(np.stack(different) if different else _NO_MASKS, of_query)


_NO_MASKS = np.empty((0, 0), dtype=np.bool_)


def _both(mask: Mask | None, alive: Mask | None) -> Mask:
    """Return the rows of both masks; at most one of them is None, which admits all rows."""
    if mask is None:
        assert alive is not None
        return alive
    return mask if alive is None else mask & alive
