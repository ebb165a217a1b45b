"""Write the live rows of segments into new segments in another order: that of an index, or that of their age."""

from collections.abc import Sequence

import numpy as np

from frameworks.collections.contract import Metric, Vectors
from frameworks.collections.index.kmeans import Check
from frameworks.collections.store.metadata_columns import Column, Columns
from frameworks.collections.store.segments import ALIVE, MAX_SEGMENT_ROWS, Part, Positions, Segment, Snapshot
from frameworks.collections.store.sqlite_store import Rows
from frameworks.progress import phase, step


class LiveRows:
    """The rows of a snapshot that are alive, addressed by an index from 0 on, by rising row numbers."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._parts = snapshot.parts
        self._starts = np.cumsum([0, *(part.count for part in self._parts)])
        alive = [np.flatnonzero(part.segment.died[: part.count] > snapshot.sequence) for part in self._parts]
        places = [np.empty(0, np.int64), *(own + start for own, start in zip(alive, self._starts[:-1], strict=True))]
        self._places: Positions = np.concatenate(places)
        rows: Rows = self._of_all([part.segment.rows[: part.count] for part in self._parts])
        order = np.argsort(rows, kind="stable")
        self._places = self._places[order]
        self.rows: Rows = rows[order]

    def __len__(self) -> int:
        return len(self._places)

    def _of_all(self, arrays: Sequence[Rows]) -> Rows:
        found: Rows = np.concatenate([*arrays, np.empty(0, dtype=np.int64)])[self._places]
        return found

    def vectors(self, indices: Positions, out: Vectors) -> Vectors:
        """Write the vectors of some rows to `out`, float32 [n, d], and return it."""
        places = self._places[indices]
        numbers = np.searchsorted(self._starts, places, side="right") - 1
        for number in np.unique(numbers):
            own = np.flatnonzero(numbers == number)
            out[own] = self._parts[number].segment.vectors[places[own] - self._starts[number]]
        return out

    def columns(self, indices: Positions) -> Columns:
        """Return the columns of some rows."""
        keys = sorted({key for part in self._parts for key in list(part.segment.columns)})
        return {key: self._column(key, self._places[indices]) for key in keys}

    def _column(self, key: str, places: Positions) -> Column:
        found = [(part, part.segment.columns.get(key, Column())) for part in self._parts]
        codes = numbers = None
        if any(column.codes is not None for _, column in found):
            codes = np.concatenate(
                [
                    np.zeros(part.count, np.uint32) if column.codes is None else column.codes[: part.count]
                    for part, column in found
                ]
            )[places]
        if any(column.numbers is not None for _, column in found):
            numbers = np.concatenate(
                [
                    np.full(part.count, np.nan) if column.numbers is None else column.numbers[: part.count]
                    for part, column in found
                ]
            )[places]
        return Column(codes, numbers)


def rebuilt(live: LiveRows, order: Positions, dimensions: int, metric: Metric, check: Check) -> list[Segment]:
    """Return full segments with the live rows in this order; the last one has the rest."""
    columns = live.columns(order)
    segments: list[Segment] = []
    phase("putting the rows in order", len(order), "rows")
    for start in range(0, len(order), MAX_SEGMENT_ROWS):
        check()
        part = order[start : start + MAX_SEGMENT_ROWS]
        segment = Segment(len(part), dimensions, metric)
        live.vectors(part, segment.vectors)
        segment.rows[:] = live.rows[part]
        segment.died[:] = ALIVE
        if segment.squares is not None:
            segment.squares[:] = np.vecdot(segment.vectors, segment.vectors)
        places = np.arange(start, start + len(part))
        segment.columns = {key: column.take(places) for key, column in columns.items()}
        segment.count = len(part)
        segments.append(segment)
        step(len(part))
    return segments


def parts_of(segments: Sequence[Segment]) -> list[Part]:
    """Return the whole segments as parts."""
    return [Part(segment, segment.count) for segment in segments]
