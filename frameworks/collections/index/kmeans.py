"""Compute the centres of an index from a sample, assign rows to them, and measure what the index finds."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from frameworks.collections.contract import Metric, Vectors
from frameworks.collections.index.inverted_lists import CALIBRATED_TOP_K, Lists
from frameworks.collections.scan.block_matmul import BlockProduct
from frameworks.collections.scan.exact_scan import Scan
from frameworks.collections.scan.top_k import Best
from frameworks.collections.store.segments import Part, Positions
from frameworks.progress import phase, step

SAMPLED_PER_LIST = 64
_ROUNDS = 8
_ASSIGNED_AT_ONCE = 1024
HELD_OUT_QUERIES = 256
_LEAST_PROBED_SHARE = 0.01
"""Of the lists. Fewer would save little time, and whether they reach the recall depends on the held-out rows."""
_SEED = 0x5EA2C4

Labels = npt.NDArray[np.int32]
Check = Callable[[], None]
"""Is called often during long work; raises to stop it."""


def number_of_lists(rows: int) -> int:
    """Return the square root of the rows: comparing with the centres costs as much as comparing with one list."""
    return max(1, math.isqrt(rows))


def train(sample: Vectors, lists: int, metric: Metric, check: Check) -> Vectors:
    """Return centres [lists, d] of a sample [n, d] in random order: k-means; for cosine centres of length 1."""
    generator = np.random.default_rng(_SEED)
    centres = sample[:lists].copy()
    phase("training the centres", _ROUNDS, "rounds")
    for _ in range(_ROUNDS):
        labels = assign(sample, centres, check)
        order = np.argsort(labels, kind="stable")
        present, starts = np.unique(labels[order], return_index=True)
        sums = np.add.reduceat(sample[order], starts, axis=0)
        counts = np.diff(np.append(starts, len(order)))
        centres[present] = sums / counts[:, None].astype(np.float32)
        absent = np.setdiff1d(np.arange(lists), present)
        centres[absent] = sample[generator.integers(0, len(sample), len(absent))]
        if metric is Metric.COSINE:
            lengths = np.linalg.norm(centres, axis=1, keepdims=True)
            np.divide(centres, lengths, out=centres, where=lengths > 0)
        step()
    return centres


def assign(rows: Vectors, centres: Vectors, check: Check) -> Labels:
    """Return the nearest centre of each row, int32 [n]; the product runs on one core."""
    labels = np.empty(len(rows), dtype=np.int32)
    product, squares = BlockProduct(centres), np.vecdot(centres, centres)
    for start in range(0, len(rows), _ASSIGNED_AT_ONCE):
        check()
        part = slice(start, start + _ASSIGNED_AT_ONCE)
        labels[part] = np.argmax(2 * product(np.ascontiguousarray(rows[part])) - squares, axis=1)
    return labels


def calibrated(
    lists: Lists, parts: Sequence[Part], metric: Metric, sequence: int, recall: float, check: Check
) -> Lists:
    """Return the lists with the fewest probes that reach a recall on held-out rows, which are not counted as hits.

    A hit is found exactly if its list is among the probed ones, so that recall follows from the ranks of lists. Half
    of the rest to 1 is added to the wanted recall: queries are farther from the rows than rows are.
    """
    queries, numbers = _held_out(parts)
    top_k = CALIBRATED_TOP_K[-1] + 1
    best = [Best(query, top_k) for query in queries]
    scan = Scan(best, metric, sequence)
    phase("measuring the recall", sum(part.count for part in parts), "rows")
    for part in parts:
        check()
        scan.run([part])
        step(part.count)
    rows = np.concatenate([part.segment.rows[: part.count] for part in parts])
    sorter = np.argsort(rows)
    ranks = np.full((len(queries), top_k - 1), len(lists.centres), dtype=np.int64)
    for index, (query, number) in enumerate(zip(best, numbers, strict=True)):
        check()
        found = query.ranked(metric)[0]
        found = found[found != number][: top_k - 1]
        places = sorter[np.searchsorted(rows, found, sorter=sorter)]
        rank_of_list = np.empty(len(lists.centres), dtype=np.int64)
        rank_of_list[lists.ranking(query.query, metric, len(lists.centres))] = np.arange(len(lists.centres))
        ranks[index, : len(found)] = rank_of_list[np.searchsorted(lists.starts, places, side="right") - 1]
        ranks[index, len(found) :] = -1
    wanted = (1 + recall) / 2
    least = math.ceil(_LEAST_PROBED_SHARE * len(lists.centres))
    probes = tuple(max(least, _fewest(ranks[:, :count], wanted)) for count in CALIBRATED_TOP_K)
    reached = _recall(ranks[:, : CALIBRATED_TOP_K[0]], probes[0])
    return Lists(lists.centres, lists.squares, lists.starts, probes, reached, lists.trained_rows)


def _fewest(ranks: Positions, wanted: float) -> int:
    """Return the fewest probes whose recall is as wanted. `ranks`: of the lists of all true hits; -1 for no hit."""
    values = np.sort(ranks[ranks >= 0])
    if not len(values):
        return 1
    return int(values[min(len(values) - 1, int(np.ceil(wanted * len(values))) - 1)]) + 1


def _recall(ranks: Positions, probes: int) -> float:
    values = ranks[ranks >= 0]
    return float(np.mean(values < probes)) if len(values) else 1.0


def _held_out(parts: Sequence[Part]) -> tuple[Vectors, Positions]:
    """Return vectors and row numbers of random rows."""
    generator = np.random.default_rng(_SEED)
    starts = np.cumsum([0, *(part.count for part in parts)])
    chosen = np.sort(generator.choice(starts[-1], min(HELD_OUT_QUERIES, int(starts[-1])), replace=False))
    places = [
        (parts[index].segment, int(each - starts[index]))
        for each, index in zip(chosen, np.searchsorted(starts, chosen, side="right") - 1, strict=True)
    ]
    vectors = np.stack([segment.vectors[position] for segment, position in places])
    return vectors, np.array([segment.rows[position] for segment, position in places], dtype=np.int64)
