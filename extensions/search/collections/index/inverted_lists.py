"""Search an IVF index: the rows of each centroid's inverted list are contiguous, and a search probes a few lists.

`calibrate_probes` chooses how many: it measures the recall on held-out rows.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from extensions.search.collections.contract import Metric
from extensions.search.collections.index.kmeans import Check
from extensions.search.collections.scan.exact_scan import QueryBlock, Scan, eligible_rows
from extensions.search.collections.scan.scoring import EligibleRows
from extensions.search.collections.scan.top_k import TopK
from extensions.search.collections.store.metadata_columns import Mask
from extensions.search.collections.store.segments import MAX_SEGMENT_ROWS, Part, Positions
from frameworks.core.progress import phase, step
from frameworks.core.vector_search import Vectors

CALIBRATED_TOP_K = (10, 100)
"""The values of top k for which recall is measured; searches for a larger k are exact."""
HELD_OUT_QUERIES = 256
_MIN_PROBED_SHARE = 0.01
"""Share of the lists that is always probed. Fewer would save little time, and their recall would be a chance of the
held-out rows.
"""
_SEED = 0x5EA2C4


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


def calibrate_probes(
    lists: InvertedLists, parts: Sequence[Part], metric: Metric, sequence: int, recall: float, check: Check
) -> InvertedLists:
    """Return the lists with the smallest nprobe that reaches a recall on held-out rows.

    A held-out row is no hit of its own query. A hit is found exactly if its list is probed, so recall follows from
    the ranks of the lists. The target is halfway between `recall` and 1: real queries are farther from the rows than
    held-out rows are.
    """
    queries, held_out = _held_out(parts)
    top_k = CALIBRATED_TOP_K[-1] + 1
    best = [TopK(query, top_k) for query in queries]
    scan = Scan(best, metric, sequence)
    phase("measuring the recall", sum(part.count for part in parts), "rows")
    for part in parts:
        check()
        scan.run([part])
        step(part.count)
    rows = np.concatenate([part.segment.rows[: part.count] for part in parts])
    sorter = np.argsort(rows)
    ranks = np.full((len(queries), top_k - 1), len(lists.centroids), dtype=np.int64)
    for index, (query, number) in enumerate(zip(best, held_out, strict=True)):
        check()
        found = query.ranked(metric)[0]
        found = found[found != number][: top_k - 1]
        offsets = sorter[np.searchsorted(rows, found, sorter=sorter)]
        rank_of_list = np.empty(len(lists.centroids), dtype=np.int64)
        rank_of_list[lists.nearest(query.query, metric, len(lists.centroids))] = np.arange(len(lists.centroids))
        ranks[index, : len(found)] = rank_of_list[np.searchsorted(lists.offsets, offsets, side="right") - 1]
        ranks[index, len(found) :] = -1
    target = (1 + recall) / 2
    min_nprobe = math.ceil(_MIN_PROBED_SHARE * len(lists.centroids))
    nprobes = tuple(max(min_nprobe, _min_nprobe(ranks[:, :count], target)) for count in CALIBRATED_TOP_K)
    reached = _recall(ranks[:, : CALIBRATED_TOP_K[0]], nprobes[0])
    return replace(lists, nprobes=nprobes, recall=reached)


def _min_nprobe(ranks: Positions, target: float) -> int:
    """Return the smallest nprobe that reaches the recall. `ranks`: of the lists of all true hits; -1 for no hit."""
    values = np.sort(ranks[ranks >= 0])
    if not len(values):
        return 1
    return int(values[min(len(values) - 1, int(np.ceil(target * len(values))) - 1)]) + 1


def _recall(ranks: Positions, nprobe: int) -> float:
    values = ranks[ranks >= 0]
    return float(np.mean(values < nprobe)) if len(values) else 1.0


def _held_out(parts: Sequence[Part]) -> tuple[Vectors, Positions]:
    """Return vectors and row numbers of random rows."""
    generator = np.random.default_rng(_SEED)
    starts = np.cumsum([0, *(part.count for part in parts)])
    chosen = np.sort(generator.choice(starts[-1], min(HELD_OUT_QUERIES, int(starts[-1])), replace=False))
    sources = [
        (parts[index].segment, int(each - starts[index]))
        for each, index in zip(chosen, np.searchsorted(starts, chosen, side="right") - 1, strict=True)
    ]
    vectors = np.stack([segment.vectors[position] for segment, position in sources])
    return vectors, np.array([segment.rows[position] for segment, position in sources], dtype=np.int64)
