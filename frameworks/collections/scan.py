"""Find the best rows of segments for some queries exactly: one product per block, and a running list of the best."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from frameworks.collections.columns import Mask
from frameworks.collections.contract import Metric, Vectors
from frameworks.collections.products import FEW_QUERIES, GROUP, BlockProduct
from frameworks.collections.segments import Part, Positions, Segment
from frameworks.collections.store import Rows

Values = npt.NDArray[np.float32]
_PLACE_BITS = 32
_PLACE_MASK = (1 << _PLACE_BITS) - 1
"""A place is the number of a segment and a position in it."""

LONE_BYTES = 12 * 1024 * 1024
BLOCK_BYTES = 2 * 1024 * 1024
"""Of rows that one product reads, with one query and with many: their scores stay in a core's cache."""
CACHED_BYTES = 512 * 1024
"""Of rows that several products in turn read: they stay in a core's cache."""


@dataclass(slots=True)
class Best:
    """The best rows found so far for one query. `query`: float32 [d], as rows are compared.

    `threshold`: rows below it cannot be among the best `top_k`. Values are the inner product, or for Euclid
    2 q·x - x·x, which orders rows as their distance does.
    """

    query: Vectors
    top_k: int
    threshold: float = -np.inf
    _values: list[Values] = field(default_factory=list)
    _rows: list[Rows] = field(default_factory=list)
    _places: list[Positions] = field(default_factory=list)
    _segments: list[Segment] = field(default_factory=list)

    def add(self, values: Values, segment: Segment, positions: Positions) -> None:
        """Add candidates: values [n] at these positions of a segment."""
        if len(values) > 2 * self.top_k:
            lowest = np.partition(values, len(values) - self.top_k)[len(values) - self.top_k]
            kept = values >= lowest
            values, positions = values[kept], positions[kept]
        if not self._segments or self._segments[-1] is not segment:
            self._segments.append(segment)
        self._append(values, segment.rows[positions], positions + ((len(self._segments) - 1) << _PLACE_BITS))

    def merge(self, other: "Best") -> None:
        """Add what another scan found for the same query."""
        shift = len(self._segments) << _PLACE_BITS
        self._segments += other._segments
        for values, rows, places in zip(other._values, other._rows, other._places, strict=True):
            self._append(values, rows, places + shift)

    def _append(self, values: Values, rows: Rows, places: Positions) -> None:
        """Add candidates and keep the best `top_k`; of equal values the oldest rows."""
        self._values.append(values)
        self._rows.append(rows)
        self._places.append(places)
        if sum(map(len, self._values)) <= self.top_k:
            return
        values, rows = np.concatenate(self._values), np.concatenate(self._rows)
        places = np.concatenate(self._places)
        order = np.lexsort((rows, -values))[: self.top_k]
        self._values, self._rows, self._places = [values[order]], [rows[order]], [places[order]]
        self.threshold = float(values[order[-1]])

    @property
    def count(self) -> int:
        """Return how many rows were found, at most `top_k`."""
        return sum(map(len, self._values))

    def clear(self) -> None:
        """Forget what was found."""
        self.threshold = -np.inf
        for each in (self._values, self._rows, self._places, self._segments):
            each.clear()

    def ranked(self, metric: Metric) -> tuple[Rows, Values]:
        """Return row numbers and scores, the best first. Scores are computed again in float64.

        So they do not depend on the product that found them, nor on the queries beside this one.
        """
        if not self._rows:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
        rows, places = np.concatenate(self._rows), np.concatenate(self._places)
        scores = np.empty(len(rows), dtype=np.float32)
        numbers = places >> _PLACE_BITS
        for number in np.unique(numbers):
            own = numbers == number
            vectors = self._segments[number].vectors[places[own] & _PLACE_MASK]
            scores[own] = exact_scores(vectors, self.query, metric)
        order = np.lexsort((rows, -scores))
        return rows[order], scores[order]


def exact_scores(vectors: Vectors, query: Vectors, metric: Metric) -> npt.NDArray[np.float64]:
    """Return the scores [n] of vectors [n, d] and a query [d], as they are compared, computed in float64."""
    wide, other = vectors.astype(np.float64), query.astype(np.float64)
    if metric is Metric.EUCLID:
        return np.asarray(-np.sqrt(np.square(wide - other).sum(axis=1)))
    return np.asarray(np.vecdot(wide, other))


@dataclass(frozen=True, slots=True)
class Scan:
    """Queries that are compared with the same rows. `sequence`: of the snapshot that they see."""

    best: Sequence[Best]
    metric: Metric
    sequence: int

    def run(self, parts: Sequence[Part], masks: Sequence[Sequence[Mask] | None] | None = None) -> None:
        """Compare all rows of the parts. `masks`: [queries][parts], which positions may be found; None: all."""
        product = BlockProduct(np.stack([each.query for each in self.best]))
        rows_at_once = _block_rows(self.best)
        for index, part in enumerate(parts):
            of_part = [None if of is None else of[index] for of in masks] if masks else None
            for first in range(0, part.count, rows_at_once):
                positions = slice(first, min(first + rows_at_once, part.count))
                self._block(product, part.segment, positions, of_part)

    def _block(
        self, product: BlockProduct, segment: Segment, positions: slice, masks: Sequence[Mask | None] | None
    ) -> None:
        values = product(segment.vectors[positions])
        if segment.squares is not None:
            values = 2 * values - segment.squares[positions, None]
        if len(self.best) == 1:
            found = np.flatnonzero(values[:, 0] >= self.best[0].threshold)
            if len(found):
                self._add(0, values[found, 0], segment, positions.start + found, masks)
            return
        thresholds = np.array([each.threshold for each in self.best], dtype=np.float32)
        reached = values >= thresholds
        found = np.flatnonzero(reached.ravel(order="K"))
        if not len(found):
            return
        if reached.flags.c_contiguous:
            rows, queries = np.divmod(found, len(self.best))
        else:
            queries, rows = np.divmod(found, len(values))
        for query in np.unique(queries):
            own = rows[queries == query]
            self._add(int(query), values[own, query], segment, positions.start + own, masks)

    def _add(
        self, query: int, values: Values, segment: Segment, positions: Positions, masks: Sequence[Mask | None] | None
    ) -> None:
        """Add the candidates of one query that it may find."""
        admitted = segment.died[positions] > self.sequence
        mask = masks[query] if masks else None
        if mask is not None:
            admitted &= mask[positions]
        if not admitted.all():
            values, positions = values[admitted], positions[admitted]
        if len(positions):
            self.best[query].add(values, segment, positions)

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
            kept = values >= each.threshold
            if kept.any():
                each.add(values[kept], segment, positions[kept])


def _block_rows(best: Sequence[Best]) -> int:
    """Return how many rows are compared at once: fewer for queries that read them in turn."""
    if len(best) == 1:
        size = LONE_BYTES
    else:
        size = CACHED_BYTES if len(best) <= FEW_QUERIES or len(best) > GROUP else BLOCK_BYTES
    return max(64, size // best[0].query.nbytes // 64 * 64)
