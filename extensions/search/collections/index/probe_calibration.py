"""Choose the number of probes of an IVF index: measure its recall on held-out rows."""

import math
from collections.abc import Sequence

import numpy as np

from extensions.search.collections.contract import Metric
from extensions.search.collections.index.inverted_lists import CALIBRATED_TOP_K, InvertedLists
from extensions.search.collections.index.kmeans import Check
from extensions.search.collections.scan.exact_scan import Scan
from extensions.search.collections.scan.top_k import TopK
from extensions.search.collections.store.segments import Part, Positions
from frameworks.core.progress import phase, step
from frameworks.core.vector_search import Vectors

HELD_OUT_QUERIES = 256
_MIN_PROBED_SHARE = 0.01
"""Share of the lists that is always probed. Fewer would save little time, and their recall would be a chance of the
held-out rows.
"""
_SEED = 0x5EA2C4


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
    return InvertedLists(lists.centroids, lists.squared_norms, lists.offsets, nprobes, reached, lists.trained_rows)


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
