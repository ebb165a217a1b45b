"""Keep the top-k rows of one query: a bounded heap by score, which also gives the threshold for later rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from extensions.search.collections.contract import Metric
from extensions.search.collections.store.segments import Positions, Segment
from extensions.search.collections.store.sqlite_store import Rows
from frameworks.core.vector_search import Vectors

Values = npt.NDArray[np.float32]
SPARE_ROWS = 8
"""Rows that are held beyond `top_k`: the order of near values is only known after they are computed in float64."""
POSITION_BITS = 32
_POSITION_MASK = (1 << POSITION_BITS) - 1
"""An address is the index of a segment and, in the low bits, a position in that segment."""


@dataclass(slots=True)
class TopK:
    """The best rows found so far for one query. `query`: float32 [d], as rows are compared.

    `threshold`: the value below which no row can be among the best. Values are those of `Candidates`.
    """

    query: Vectors
    top_k: int
    threshold: float = -np.inf
    _values: list[Values] = field(default_factory=list)
    _rows: list[Rows] = field(default_factory=list)
    _addresses: list[Positions] = field(default_factory=list)
    _segments: list[Segment] = field(default_factory=list)

    @property
    def capacity(self) -> int:
        """Return how many rows are held at most."""
        return self.top_k + SPARE_ROWS

    def add(self, values: Values, segment: Segment, positions: Positions) -> None:
        """Add candidates: values [n] at these positions of a segment."""
        if len(values) > 2 * self.capacity:
            is_kept = values >= np.partition(values, -self.capacity)[-self.capacity]
            values, positions = values[is_kept], positions[is_kept]
        self.extend(values, segment.rows[positions], positions, [segment])

    def merge(self, other: "TopK") -> None:
        """Add the rows that another scan found for the same query."""
        for values, rows, addresses in zip(other._values, other._rows, other._addresses, strict=True):
            self.extend(values, rows, addresses, other._segments)

    def extend(self, values: Values, rows: Rows, addresses: Positions, segments: Sequence[Segment]) -> None:
        """Add candidates and keep the best; of equal values the oldest rows.

        `values`: float32 [n]. `rows`, `addresses`: int64 [n]; the segment indices of addresses count `segments`.
        """
        self._values.append(values)
        self._rows.append(rows)
        self._addresses.append(addresses + (len(self._segments) << POSITION_BITS))
        self._segments += segments
        if self._count <= self.capacity:
            return
        values, rows = np.concatenate(self._values), np.concatenate(self._rows)
        addresses = np.concatenate(self._addresses)
        order = np.lexsort((rows, -values))[: self.capacity]
        self._values, self._rows, self._addresses = [values[order]], [rows[order]], [addresses[order]]
        self.threshold = float(values[order[-1]])

    @property
    def _count(self) -> int:
        return sum(map(len, self._values))

    @property
    def count(self) -> int:
        """Return how many rows were found, at most `top_k`."""
        return min(self.top_k, self._count)

    def clear(self) -> None:
        """Forget all rows."""
        self.threshold = -np.inf
        for each in (self._values, self._rows, self._addresses, self._segments):
            each.clear()

    def ranked(self, metric: Metric) -> tuple[Rows, Values]:
        """Return row numbers and scores, the best first. Scores are computed again in float64.

        So they do not depend on the kernel that computed them, nor on the other queries of the batch.
        """
        if not self._rows:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
        rows, addresses = np.concatenate(self._rows), np.concatenate(self._addresses)
        segment_indices, positions = (addresses >> POSITION_BITS).tolist(), (addresses & _POSITION_MASK).tolist()
        vectors = np.stack([self._segments[n].vectors[p] for n, p in zip(segment_indices, positions, strict=True)])
        scores = exact_scores(vectors, self.query, metric).astype(np.float32)
        order = np.lexsort((rows, -scores))[: self.top_k]
        return rows[order], scores[order]


def exact_scores(vectors: Vectors, query: Vectors, metric: Metric) -> npt.NDArray[np.float64]:
    """Return the scores [n] of vectors [n, d] and a query [d], as they are compared, computed in float64."""
    wide, other = vectors.astype(np.float64), query.astype(np.float64)
    if metric is Metric.EUCLID:
        return np.asarray(-np.sqrt(np.square(wide - other).sum(axis=1)))
    return np.asarray(np.vecdot(wide, other))
