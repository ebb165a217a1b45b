"""Hold the vectors of a collection in memory, in append-only segments, so that a search needs no lock.

A search takes a snapshot: the segments, the number of rows of each, and a sequence number (MVCC). A row that a later
commit deletes stays visible to searches with earlier sequence numbers. One thread writes.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from extensions.search.collections.contract import Metric
from extensions.search.collections.store.metadata_columns import Columns, Schema
from extensions.search.collections.store.sqlite_store import Rows
from frameworks.core.vector_search import Metadata, Vectors

NOT_DELETED = np.iinfo(np.int64).max
MAX_SEGMENT_ROWS = 32_768
_FIRST_SEGMENT_ROWS = 512
_SMALLEST = 1e-25
"""Smaller squared norms are not precise in float32."""
Positions = npt.NDArray[np.int64]


class Segment:
    """Rows with their vectors and columns. The arrays have `capacity` rows; `count` of them are written.

    `vectors`: float32 [capacity, d], of unit length for the cosine metric. `rows`: int64, the row numbers.
    `deleted_at`: int64, the sequence number of the commit that deleted the row, or NOT_DELETED. `squared_norms`:
    float32, of the vectors; only for the Euclidean metric.
    """

    def __init__(self, capacity: int, dimensions: int, metric: Metric) -> None:
        self.capacity = capacity
        self.count = 0
        self.deleted_count = 0
        self.vectors: Vectors = np.empty((capacity, dimensions), dtype=np.float32)
        self.rows: Rows = np.empty(capacity, dtype=np.int64)
        self.deleted_at: Rows = np.empty(capacity, dtype=np.int64)
        self.squared_norms: Vectors | None = np.empty(capacity, dtype=np.float32) if metric is Metric.EUCLID else None
        self.columns: Columns = {}
        self._sorter: Positions | None = None

    @property
    def memory_bytes(self) -> int:
        optional = sum(each.nbytes for each in (self.squared_norms, self._sorter) if each is not None)
        columns = sum(each.memory_bytes for each in list(self.columns.values()))
        return self.vectors.nbytes + self.rows.nbytes + self.deleted_at.nbytes + optional + columns

    def write(self, first: int, rows: Rows, vectors: Vectors) -> None:
        """Write row numbers int64 [n] and vectors float32 [n, d] from position `first` on.

        The rows are invisible until `count` includes them.
        """
        part = slice(first, first + len(rows))
        self.vectors[part] = vectors
        self.rows[part] = rows
        self.deleted_at[part] = NOT_DELETED
        if self.squared_norms is not None:
            self.squared_norms[part] = np.vecdot(vectors, vectors)

    def positions(self, rows: Rows, count: int) -> Positions:
        """Find row numbers, int64 [n], among the first `count` rows. Return the positions of those found, int64."""
        own = self.rows[:count]
        if not len(own) or not len(rows):
            return np.empty(0, dtype=np.int64)
        # Row numbers ascend, except in the order of an index, where no row is added later.
        if self._sorter is None and not bool((own[1:] > own[:-1]).all()):
            self._sorter = np.argsort(own)
        indices = np.minimum(np.searchsorted(own, rows, sorter=self._sorter), len(own) - 1)
        found = np.unique(indices if self._sorter is None else self._sorter[indices])
        return found[np.isin(own[found], rows)]


Deletion = list[tuple[Segment, Positions]]
"""Rows that a change deletes: their positions in each segment."""


@dataclass(frozen=True, slots=True)
class Part:
    """The first `count` rows of a segment."""

    segment: Segment
    count: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The rows that a search sees. `indexed`: how many of the first parts the index covers."""

    sequence: int
    parts: tuple[Part, ...]
    indexed: int = 0

    @property
    def rows(self) -> int:
        """Return the rows, deleted ones included."""
        return sum(part.count for part in self.parts)


@dataclass(frozen=True, slots=True)
class Locks:
    """`writing`: held by whatever changes the segments, a commit or a rebuild. `publishing`: held, within the former,
    while the disk and the snapshot change together, so that a search begins before or after both.
    """

    writing: threading.Lock = field(default_factory=threading.Lock)
    publishing: threading.Lock = field(default_factory=threading.Lock)


class Segments:
    """The segments of a collection. `publish` or `discard` ends a change."""

    def __init__(self, dimensions: int, metric: Metric, schema: Schema) -> None:
        self._dimensions, self._metric, self.schema = dimensions, metric, schema
        self._segments: list[Segment] = []
        self._sealed = 0
        self._indexed = 0
        self._sequence = 0
        self._pending: list[tuple[Segment, int]] = []
        self.snapshot = Snapshot(0, ())

    @property
    def memory_bytes(self) -> int:
        return self.schema.memory_bytes + sum(each.memory_bytes for each in list(self._segments))

    @property
    def live_rows(self) -> int:
        return sum(each.count - each.deleted_count for each in list(self._segments))

    @property
    def pending_rows(self) -> int:
        """Rows that were added and are not yet published."""
        known = self._segments[-1:]
        return sum(end - (segment.count if segment in known else 0) for segment, end in self._pending)

    @property
    def deleted_rows(self) -> int:
        return sum(each.deleted_count for each in list(self._segments))

    def add(self, rows: Rows, vectors: Vectors, metadata: Sequence[Metadata]) -> None:
        """Write rows, which `publish` makes visible. Raises MemoryError.

        `rows`: int64 [n]. `vectors`: float32 [n, d], normalized as the metric needs it.
        """
        done = 0
        while done < len(rows):
            segment, first = self._writable_segment(len(rows) - done)
            count = min(segment.capacity - first, len(rows) - done)
            part = slice(done, done + count)
            segment.write(first, rows[part], vectors[part])
            for index, each in enumerate(metadata[part]):
                self.schema.write(segment.columns, segment.capacity, first + index, each)
            self._pending[-1] = (segment, first + count)
            done += count

    def _writable_segment(self, wanted: int) -> tuple[Segment, int]:
        """Return a segment with free rows, and the position of the first of them."""
        if self._pending and self._pending[-1][1] < self._pending[-1][0].capacity:
            return self._pending[-1]
        if not self._pending and len(self._segments) > self._sealed:
            last = self._segments[-1]
            if last.count < last.capacity:
                self._pending.append((last, last.count))
                return self._pending[-1]
        # Small collections use little memory; the segments of large ones have one size.
        total = self.capacity + sum(each.capacity for each, _ in self._pending if each not in self._segments[-1:])
        self._pending.append((Segment(next_capacity(total, wanted), self._dimensions, self._metric), 0))
        return self._pending[-1]

    @property
    def capacity(self) -> int:
        """Return the total capacity of all segments in rows."""
        return sum(each.capacity for each in self._segments)

    @property
    def open_segment(self) -> Segment | None:
        """The segment that the next row is written to; None where it is a new one. Only between two changes."""
        last = self._segments[-1] if len(self._segments) > self._sealed else None
        return None if last is None or last.count == last.capacity else last

    def discard(self) -> None:
        """Drop the rows that were added since the last `publish`."""
        self._pending.clear()

    def deletion(self, deleted: Sequence[int]) -> Deletion:
        """Find the rows of these numbers, those that were added since the last `publish` too."""
        rows = np.array(deleted, dtype=np.int64)
        pending = dict(self._pending)
        if not len(rows):
            return []
        counts = {each: each.count for each in self._segments} | pending
        found = [(each, each.positions(rows, count)) for each, count in counts.items()]
        return [(segment, positions) for segment, positions in found if len(positions)]

    def publish(self, deletion: Deletion) -> None:
        """Make the added rows visible, and those that `deletion` found invisible to later snapshots."""
        for segment, count in self._pending:
            segment.count = count
            if segment not in self._segments[-1:]:
                self._segments.append(segment)
        self._pending.clear()
        self._sequence += 1
        for segment, positions in deletion:
            segment.deleted_at[positions] = self._sequence
            segment.deleted_count += len(positions)
        self._take_snapshot()

    def seal(self) -> Snapshot:
        """Seal the segments, so that later rows go to new ones, and return their snapshot."""
        self._sealed = len(self._segments)
        return self.snapshot

    def replace(self, sealed: Snapshot, segments: list[Segment], *, has_index: bool) -> None:
        """Replace the segments of `sealed`, which `seal` returned, by compacted ones with the same rows.

        Rows that were deleted since are deleted in the new segments too. `has_index`: an index covers them.
        """
        deleted = []
        for part in sealed.parts:
            deleted_at = part.segment.deleted_at[: part.count]
            deleted.append(
                part.segment.rows[: part.count][(deleted_at != NOT_DELETED) & (deleted_at > sealed.sequence)]
            )
        deleted_rows = np.concatenate([*deleted, np.empty(0, dtype=np.int64)])
        for segment in segments:
            positions = segment.positions(deleted_rows, segment.count)
            # Deleted for every snapshot from now on; earlier snapshots have the old segments.
            segment.deleted_at[positions] = 0
            segment.deleted_count = len(positions)
        self._segments[: len(sealed.parts)] = segments
        self._sealed = len(segments)
        self._indexed = len(segments) if has_index else 0
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        parts = tuple(Part(each, each.count) for each in self._segments)
        self.snapshot = Snapshot(self._sequence, parts, self._indexed)


def next_capacity(total: int, wanted: int) -> int:
    """Return the capacity of a new segment beside others with a capacity of `total` rows. `wanted`: rows to write."""
    return min(MAX_SEGMENT_ROWS, max(_FIRST_SEGMENT_ROWS, total, wanted))


def normalized(vectors: Vectors, metric: Metric) -> Vectors:
    """Return vectors, float32 [n, d], of unit length for the cosine metric, zeros unchanged; unchanged for others."""
    if metric is not Metric.COSINE:
        return vectors
    squared_norms = np.vecdot(vectors, vectors)
    if squared_norms.min(initial=1) < _SMALLEST:
        squared_norms = np.vecdot(vectors, vectors, dtype=np.float64)
    lengths = np.sqrt(squared_norms)[:, None]
    scaled: Vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0, casting="same_kind")
    return scaled
