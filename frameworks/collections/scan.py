"""Find the best rows of segments for some queries exactly: one pass over the rows for each 16 of the queries."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frameworks.collections.best import PLACE_BITS, Best
from frameworks.collections.columns import Mask
from frameworks.collections.contract import Metric
from frameworks.collections.passes import CACHED_BYTES, Admitted, Found, make_pass
from frameworks.collections.products import GROUP
from frameworks.collections.segments import Part, Positions, Segment

_FIRST_ROWS = 256
_GROWTH = 16
"""The first rows set the thresholds; then so many times more are compared at once."""
_MERGED_SHARE = 4
"""Candidates wait until they are this part of the best rows: fewer are not worth a merge."""


class QueryGroup:
    """Up to 16 queries that are compared with the same rows, and their best rows so far. `finish` ends it."""

    def __init__(self, best: Sequence[Best], metric: Metric) -> None:
        self._best = best
        self._pass = make_pass(np.stack([each.query for each in best]), metric)
        self._kept = np.array([each.kept for each in best])
        self._thresholds = np.full(GROUP, np.nan, dtype=np.float32)
        self._thresholds[: len(best)] = [each.threshold for each in best]
        self._rows_at_once = max(_FIRST_ROWS, 2 * int(self._kept.max()))
        self._is_full = bool(np.isfinite(self._thresholds[: len(best)]).all())
        self._segments: list[Segment] = []
        # The best rows, sorted by query, and then candidates.
        self._found: list[Found] = []
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
        place = (len(self._segments) - 1) << PLACE_BITS
        self._found.append(self._best_of(Found(found.values.copy(), found.positions + place, found.numbers.copy())))
        self._waiting += len(self._found[-1].values)
        if not self._is_full or self._waiting * _MERGED_SHARE >= self._kept.sum():
            self._merge()

    def _best_of(self, found: Found) -> Found:
        """Drop most of those candidates that others of the same pass exceed, where there are many."""
        if len(found.values) <= 4 * self._kept.sum():
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
        values, places, numbers = (np.concatenate(each) for each in zip(*self._found, strict=True))
        order = np.lexsort((self._rows(places), -values, numbers))
        numbers = numbers[order]
        starts = np.searchsorted(numbers, np.arange(len(self._best) + 1))
        is_kept = np.arange(len(numbers)) - starts[numbers] < self._kept[numbers]
        order, numbers = order[is_kept], numbers[is_kept]
        values, places = values[order], places[order]
        counts = np.bincount(numbers, minlength=len(self._best))
        full = np.flatnonzero(counts == self._kept)
        self._thresholds[full] = values[np.cumsum(counts)[full] - 1]
        self._is_full = len(full) == len(self._best)
        self._found = [Found(values, places, numbers)]
        self._waiting = 0

    def _rows(self, places: Positions) -> Positions:
        """Return the row numbers at some places."""
        rows = np.empty(len(places), dtype=np.int64)
        segments, positions = places >> PLACE_BITS, places & ((1 << PLACE_BITS) - 1)
        for number in np.unique(segments):
            own = segments == number
            rows[own] = self._segments[number].rows[positions[own]]
        return rows

    def finish(self) -> None:
        """Add the best rows to those of the queries."""
        if not self._found:
            return
        self._merge()
        [(values, places, numbers)] = self._found
        rows = self._rows(places)
        starts = np.searchsorted(numbers, np.arange(len(self._best) + 1))
        for best, start, end in zip(self._best, starts[:-1], starts[1:], strict=True):
            if end > start:
                own = slice(start, end)
                best.extend(values[own], rows[own], places[own], self._segments)


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
                at_once = max(64, CACHED_BYTES // self.best[0].query.nbytes // 64 * 64)
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
