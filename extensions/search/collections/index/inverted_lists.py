"""Search an IVF index: the rows of each centroid's inverted list are contiguous, and a search probes a few lists."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from extensions.search.collections.contract import Metric
from extensions.search.collections.scan.exact_scan import QueryBlock, eligible_rows
from extensions.search.collections.scan.scoring import EligibleRows
from extensions.search.collections.scan.top_k import TopK
from extensions.search.collections.store.metadata_columns import Mask
from extensions.search.collections.store.segments import MAX_SEGMENT_ROWS, Part, Positions
from frameworks.core.vector_search import Vectors

CALIBRATED_TOP_K = (10, 100)
"""The values of top k for which recall is measured; searches for a larger k are exact."""


@dataclass(frozen=True, slots=True)
class InvertedLists:
    """The inverted lists over the first parts of a snapshot.

    `centroids`: float32 [lists, d]. `squared_norms`: float32 [lists], of the centroids.

    `offsets`: int64 [lists + 1], where each list begins, counted over those parts; each but the last of them has
    MAX_SEGMENT_ROWS rows. `nprobes`: lists that a search probes, for each of CALIBRATED_TOP_K. `recall`: measured with
    them for the first of CALIBRATED_TOP_K. `trained_rows`: how many rows there were when the centroids were computed.
    """

    centroids: Vectors
    squared_norms: Vectors
    offsets: Positions
    nprobes: tuple[int, ...]
    recall: float
    trained_rows: int

    @property
    def memory_bytes(self) -> int:
        return self.centroids.nbytes + self.squared_norms.nbytes + self.offsets.nbytes

    def nprobe(self, top_k: float) -> int | None:
        """Return the number of lists to probe for `top_k` hits; None: the search must be exact."""
        for calibrated, nprobe in zip(CALIBRATED_TOP_K, self.nprobes, strict=True):
            if top_k <= calibrated:
                return nprobe
        return None

    def nearest(self, query: Vectors, metric: Metric, count: int) -> Positions:
        """Return the `count` lists whose centroids are nearest to a query, int64 [count], the nearest first."""
        values = np.vecdot(self.centroids, query)
        if metric is not Metric.DOT:
            values = 2 * values - self.squared_norms
        last = min(count, len(values)) - 1
        nearest = np.argpartition(-values, last)[: last + 1]
        return nearest[np.argsort(-values[nearest], kind="stable")]

    def search(
        self,
        best: TopK,
        parts: Sequence[Part],
        masks: Sequence[Mask] | None,
        metric: Metric,
        sequence: int,
        nprobe: int,
    ) -> None:
        """Score the rows of the `nprobe` nearest lists. `masks`: the eligible rows of each part, bool [rows]."""
        block = QueryBlock([best], metric)
        eligible: dict[int, EligibleRows] = {}
        for number in self.nearest(best.query, metric, nprobe):
            for index, rows in _pieces(int(self.offsets[number]), int(self.offsets[number + 1])):
                segment = parts[index].segment
                if index not in eligible:
                    mask = None if masks is None else masks[index]
                    eligible[index] = eligible_rows(segment, parts[index].count, sequence, [mask])
                block.score(segment, rows.start, rows.stop, eligible[index])
        block.finish()


def _pieces(start: int, end: int) -> Iterator[tuple[int, slice]]:
    """Yield the part and its positions for each piece of the rows from `start` to `end`."""
    while start < end:
        index, first = divmod(start, MAX_SEGMENT_ROWS)
        count = min(end - start, MAX_SEGMENT_ROWS - first)
        yield index, slice(first, first + count)
        start += count
