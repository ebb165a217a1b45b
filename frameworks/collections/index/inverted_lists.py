"""An index of inverted lists: rows near the same centre are neighbours in memory, and a search reads a few lists."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from frameworks.collections.contract import Metric, Vectors
from frameworks.collections.scan.exact_scan import QueryGroup, admitted_rows
from frameworks.collections.scan.scoring import Admitted
from frameworks.collections.scan.top_k import Best
from frameworks.collections.store.metadata_columns import Mask
from frameworks.collections.store.segments import MAX_SEGMENT_ROWS, Part, Positions

CALIBRATED_TOP_K = (10, 100)
"""The numbers of hits for which recall is measured; searches for more are exact."""


@dataclass(frozen=True, slots=True)
class Lists:
    """The lists over the first parts of a snapshot. `centres`: float32 [lists, d]. `squares`: of their lengths.

    `starts`: int64 [lists + 1], where each list begins, counted over those parts; each but the last of them has
    MAX_SEGMENT_ROWS rows. `probes`: lists that a search reads, for each of CALIBRATED_TOP_K. `recall`: measured with
    them for the first of CALIBRATED_TOP_K. `trained_rows`: how many rows there were when the centres were computed.
    """

    centres: Vectors
    squares: Vectors
    starts: Positions
    probes: tuple[int, ...]
    recall: float
    trained_rows: int

    @property
    def memory_bytes(self) -> int:
        return self.centres.nbytes + self.squares.nbytes + self.starts.nbytes

    def probed(self, top_k: float) -> int | None:
        """Return how many lists a search for so many hits reads; None: it must be exact."""
        for calibrated, probes in zip(CALIBRATED_TOP_K, self.probes, strict=True):
            if top_k <= calibrated:
                return probes
        return None

    def ranking(self, query: Vectors, metric: Metric, count: int) -> Positions:
        """Return the `count` lists nearest to a query, the nearest first."""
        values = np.vecdot(self.centres, query)
        if metric is not Metric.DOT:
            values = 2 * values - self.squares
        last = min(count, len(values)) - 1
        nearest = np.argpartition(-values, last)[: last + 1]
        return nearest[np.argsort(-values[nearest], kind="stable")]

    def search(
        self,
        best: Best,
        parts: Sequence[Part],
        masks: Sequence[Mask] | None,
        metric: Metric,
        sequence: int,
        probed: int,
    ) -> None:
        """Compare a query with the rows of its nearest lists. `masks`: which rows of each part may be found."""
        group = QueryGroup([best], metric)
        admitted: dict[int, Admitted] = {}
        for number in self.ranking(best.query, metric, probed):
            for index, rows in _pieces(int(self.starts[number]), int(self.starts[number + 1])):
                segment = parts[index].segment
                if index not in admitted:
                    mask = None if masks is None else masks[index]
                    admitted[index] = admitted_rows(segment, parts[index].count, sequence, [mask])
                group.compare(segment, rows.start, rows.stop, admitted[index])
        group.finish()


def _pieces(start: int, end: int) -> Iterator[tuple[int, slice]]:
    """Yield the part and its positions for each piece of the rows from `start` to `end`."""
    while start < end:
        index, first = divmod(start, MAX_SEGMENT_ROWS)
        count = min(end - start, MAX_SEGMENT_ROWS - first)
        yield index, slice(first, first + count)
        start += count
