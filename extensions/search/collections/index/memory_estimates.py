"""Estimate memory before it is allocated: that of records in segments, and that of a rebuild."""

import math
from collections.abc import Sequence
from functools import cache

from extensions.search.collections.contract import CollectionSettings, Metric
from extensions.search.collections.index.kmeans import SAMPLED_PER_LIST, number_of_lists
from extensions.search.collections.store.metadata_columns import Column, Columns, Schema, bytes_of_value
from extensions.search.collections.store.segments import Segment, Segments, Snapshot, next_capacity
from frameworks.core.vector_search import Metadata, MetadataValue

_CODE_BYTES, _NUMBER_BYTES = 4, 8
_ROW_NUMBER_BYTES = 8
_SORTED_BYTES = 64
"""Bytes of each row while rows are sorted: offsets, row numbers, lists and their copies."""
_MEASURED_ROWS = 64


class MemoryGrowth:
    """Adds up an upper bound of the memory that changes need in the segments. Valid until the segments change."""

    def __init__(self, settings: CollectionSettings, segments: Segments) -> None:
        self._row_bytes = row_bytes(settings.dimensions, settings.metric)
        self._schema: Schema = segments.schema
        self._capacity = segments.capacity
        # The segment that the next rows are written to: its free rows, its capacity, and its columns.
        opened = segments.open_segment
        self._free, self._size = (0, 0) if opened is None else (opened.capacity - opened.count, opened.capacity)
        self._has = set() if opened is None else _kinds_of(opened.columns)
        self._values: set[tuple[str, type, object]] = set()
        self.size_bytes = 0

    def add(self, metadata: Sequence[Metadata]) -> "MemoryGrowth":
        """Add a record for each of the metadata."""
        kinds: set[tuple[str, bool]] = set()
        for each in metadata:
            for key, value in each.items():
                if value is not None:
                    kinds.add((key, _is_number(value)))
                    self._add_value(key, value)
        left = len(metadata)
        while left:
            if not self._free:
                self._size = self._free = next_capacity(self._capacity, left)
                self._capacity += self._size
                self._has = set()
                self.size_bytes += self._size * self._row_bytes
            for _, is_number in kinds - self._has:
                self.size_bytes += self._size * (_NUMBER_BYTES if is_number else _CODE_BYTES)
            self._has |= kinds
            taken = min(left, self._free)
            self._free -= taken
            left -= taken
        return self

    def _add_value(self, key: str, value: MetadataValue) -> None:
        if not isinstance(value, str | bool | list):
            return
        dictionary = self._schema.dictionaries.get(key)
        if dictionary is None or not dictionary.has(value):
            hashable = (key, type(value), tuple(value) if isinstance(value, list) else value)
            if hashable not in self._values:
                self._values.add(hashable)
                self.size_bytes += bytes_of_value(value)


def rebuild_bytes(settings: CollectionSettings, snapshot: Snapshot, *, has_index: bool) -> int:
    """Return the memory of a rebuild beside that of the rows, at most: their second copy, and what computes it."""
    rows = sum(part.count - part.segment.deleted_count for part in snapshot.parts)
    kinds = set().union(*(_kinds_of(part.segment.columns) for part in snapshot.parts))
    columns = rows * sum(_NUMBER_BYTES if is_number else _CODE_BYTES for _, is_number in kinds)
    copy = rows * row_bytes(settings.dimensions, settings.metric) + columns
    if not has_index:
        return copy + columns + rows * _SORTED_BYTES
    lists = number_of_lists(rows)
    vector = 4 * settings.dimensions
    # The sample of k-means and its sorted copy are freed before the rows are copied.
    return lists * vector + max(copy + columns, 2 * lists * SAMPLED_PER_LIST * vector) + rows * _SORTED_BYTES


@cache
def row_bytes(dimensions: int, metric: Metric) -> int:
    """Return the memory of one row in a segment, without columns, and with its entry in the sorted row numbers."""
    measured = Segment(_MEASURED_ROWS, dimensions, metric).memory_bytes / _MEASURED_ROWS
    return math.ceil(measured) + _ROW_NUMBER_BYTES


def _kinds_of(columns: Columns) -> set[tuple[str, bool]]:
    """Return the arrays that exist: key, and whether its floats."""
    return {
        (key, is_number)
        for key, column in list(columns.items())
        for is_number in (False, True)
        if _has(column, is_number)
    }


def _has(column: Column, is_number: bool) -> bool:
    return (column.floats if is_number else column.codes) is not None


def _is_number(value: MetadataValue) -> bool:
    return not isinstance(value, str | bool | list)
