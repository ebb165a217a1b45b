"""Compact segments: write their live rows into new segments, in the order of an index or of their age."""

from collections.abc import Sequence

import numpy as np

from extensions.search.collections.contract import Metric
from extensions.search.collections.index.kmeans import Check
from extensions.search.collections.store.metadata_columns import Column, Columns
from extensions.search.collections.store.segments import (
    MAX_SEGMENT_ROWS,
    NOT_DELETED,
    Part,
    Positions,
    Segment,
    Snapshot,
)
from extensions.search.collections.store.sqlite_store import Rows
from frameworks.core.progress import phase, step
from frameworks.core.vector_search import Vectors


class LiveRows:
    """The rows of a snapshot that are not deleted, indexed from 0 on in the order of their row numbers."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._parts = snapshot.parts
        self._starts = np.cumsum([0, *(part.count for part in self._parts)])
        alive = [np.flatnonzero(part.segment.deleted_at[: part.count] > snapshot.sequence) for part in self._parts]
        offsets = [np.empty(0, np.int64), *(own + start for own, start in zip(alive, self._starts[:-1], strict=True))]
        self._offsets: Positions = np.concatenate(offsets)
        rows: Rows = self._of_all([part.segment.rows[: part.count] for part in self._parts])
        order = np.argsort(rows, kind="stable")
        self._offsets = self._offsets[order]
        self.rows: Rows = rows[order]

    def __len__(self) -> int:
        return len(self._offsets)

    def _of_all(self, arrays: Sequence[Rows]) -> Rows:
        found: Rows = np.concatenate([*arrays, np.empty(0, dtype=np.int64)])[self._offsets]
        return found

    def vectors(self, indices: Positions, out: Vectors) -> Vectors:
        """Write the vectors of some rows to `out`, float32 [n, d], and return it."""
        offsets = self._offsets[indices]
        part_indices = np.searchsorted(self._starts, offsets, side="right") - 1
        for index in np.unique(part_indices):
            own = np.flatnonzero(part_indices == index)
            out[own] = self._parts[index].segment.vectors[offsets[own] - self._starts[index]]
        return out

    def columns(self, indices: Positions) -> Columns:
        """Return the columns of the rows with these indices, int64 [n]."""
        keys = sorted({key for part in self._parts for key in list(part.segment.columns)})
        return {key: self._column(key, self._offsets[indices]) for key in keys}

    def _column(self, key: str, offsets: Positions) -> Column:
        found = [(part, part.segment.columns.get(key, Column())) for part in self._parts]
        codes = floats = None
        if any(column.codes is not None for _, column in found):
            codes = np.concatenate(
                [
                    np.zeros(part.count, np.uint32) if column.codes is None else column.codes[: part.count]
                    for part, column in found
                ]
            )[offsets]
        if any(column.floats is not None for _, column in found):
            floats = np.concatenate(
                [
                    np.full(part.count, np.nan) if column.floats is None else column.floats[: part.count]
                    for part, column in found
                ]
            )[offsets]
        return Column(codes, floats)


def compacted(live: LiveRows, order: Positions, dimensions: int, metric: Metric, check: Check) -> list[Segment]:
    """Return new segments with the live rows in this order, int64 [n]; each but the last has MAX_SEGMENT_ROWS rows."""
    columns = live.columns(order)
    segments: list[Segment] = []
    phase("ordering the rows", len(order), "rows")
    for start in range(0, len(order), MAX_SEGMENT_ROWS):
        check()
        part = order[start : start + MAX_SEGMENT_ROWS]
        segment = Segment(len(part), dimensions, metric)
        live.vectors(part, segment.vectors)
        segment.rows[:] = live.rows[part]
        segment.deleted_at[:] = NOT_DELETED
        if segment.squared_norms is not None:
            segment.squared_norms[:] = np.vecdot(segment.vectors, segment.vectors)
        offsets = np.arange(start, start + len(part))
        segment.columns = {key: column.take(offsets) for key, column in columns.items()}
        segment.count = len(part)
        segments.append(segment)
        step(len(part))
    return segments


def parts_of(segments: Sequence[Segment]) -> list[Part]:
    """Return the whole segments as parts."""
    return [Part(segment, segment.count) for segment in segments]
