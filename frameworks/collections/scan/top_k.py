"""Hold the best rows that a search has found for one query."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from frameworks.collections.contract import Metric, Vectors
from frameworks.collections.store.segments import Positions, Segment
from frameworks.collections.store.sqlite_store import Rows

Values = npt.NDArray[np.float32]
SPARE = 8
"""Rows that are held beyond `top_k`: the order of near values is only known after they are computed in float64."""
PLACE_BITS = 32
_PLACE_MASK = (1 << PLACE_BITS) - 1
"""A place is the number of a segment and a position in it."""


@dataclass(slots=True)
class Best:
    """The best rows found so far for one query. `query`: float32 [d], as rows are compared.

    `threshold`: the value below which no row can be among the best. Values are those of `Found`.
    """

    query: Vectors
    top_k: int
    threshold: float = -np.inf
    _values: list[Values] = field(default_factory=list)
    _rows: list[Rows] = field(default_factory=list)
    _places: list[Positions] = field(default_factory=list)
    _segments: list[Segment] = field(default_factory=list)

    @property
    def kept(self) -> int:
        """Return how many rows are held at most."""
        return self.top_k + SPARE

    def add(self, values: Values, segment: Segment, positions: Positions) -> None:
        """Add candidates: values [n] at these positions of a segment."""
        if len(values) > 2 * self.kept:
            is_kept = values >= np.partition(values, -self.kept)[-self.kept]
            values, positions = values[is_kept], positions[is_kept]
        self.extend(values, segment.rows[positions], positions, [segment])

    def merge(self, other: "Best") -> None:
        """Add the rows that another scan found for the same query."""
        for values, rows, places in zip(other._values, other._rows, other._places, strict=True):
            self.extend(values, rows, places, other._segments)

    def extend(self, values: Values, rows: Rows, places: Positions, segments: Sequence[Segment]) -> None:
        """Add candidates and keep the best; of equal values the oldest rows. `places`: count `segments` from 0 on."""
        self._values.append(values)
        self._rows.append(rows)
        self._places.append(places + (len(self._segments) << PLACE_BITS))
        self._segments += segments
        if self._count <= self.kept:
            return
        values, rows = np.concatenate(self._values), np.concatenate(self._rows)
        places = np.concatenate(self._places)
        order = np.lexsort((rows, -values))[: self.kept]
        self._values, self._rows, self._places = [values[order]], [rows[order]], [places[order]]
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
        for each in (self._values, self._rows, self._places, self._segments):
            each.clear()

    def ranked(self, metric: Metric) -> tuple[Rows, Values]:
        """Return row numbers and scores, the best first. Scores are computed again in float64.

        So they do not depend on the product that found them, nor on the queries beside this one.
        """
        if not self._rows:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
        rows, places = np.concatenate(self._rows), np.concatenate(self._places)
        numbers, positions = (places >> PLACE_BITS).tolist(), (places & _PLACE_MASK).tolist()
        vectors = np.stack([self._segments[n].vectors[p] for n, p in zip(numbers, positions, strict=True)])
        scores = exact_scores(vectors, self.query, metric).astype(np.float32)
        order = np.lexsort((rows, -scores))[: self.top_k]
        return rows[order], scores[order]


def exact_scores(vectors: Vectors, query: Vectors, metric: Metric) -> npt.NDArray[np.float64]:
    """Return the scores [n] of vectors [n, d] and a query [d], as they are compared, computed in float64."""
    wide, other = vectors.astype(np.float64), query.astype(np.float64)
    if metric is Metric.EUCLID:
        return np.asarray(-np.sqrt(np.square(wide - other).sum(axis=1)))
    return np.asarray(np.vecdot(wide, other))
