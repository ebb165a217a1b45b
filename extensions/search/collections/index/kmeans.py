"""Train the centroids of an IVF index by k-means on a sample, and assign rows to their inverted lists."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from extensions.search.collections.contract import Metric
from extensions.search.collections.scan.scoring import BlockMatmul
from frameworks.core.progress import phase, step
from frameworks.core.vector_search import Vectors

SAMPLED_PER_LIST = 64
_ITERATIONS = 8
_ASSIGN_BATCH = 1024
_SEED = 0x5EA2C4

Labels = npt.NDArray[np.int32]
Check = Callable[[], None]
"""Is called often during long work; raises an exception to stop the work."""


def number_of_lists(rows: int) -> int:
    """Return the square root of the number of rows: ranking the centroids then costs as much as scanning one list."""
    return max(1, math.isqrt(rows))


def train_centroids(sample: Vectors, lists: int, metric: Metric, check: Check) -> Vectors:
    """Run k-means on a sample, float32 [n, d] in random order. Return centroids, float32 [lists, d].

    Centroids have unit length for the cosine metric. An empty list gets a random row of the sample.
    """
    generator = np.random.default_rng(_SEED)
    centroids = sample[:lists].copy()
    phase("training the centroids", _ITERATIONS, "rounds")
    for _ in range(_ITERATIONS):
        labels = assign_to_lists(sample, centroids, check)
        order = np.argsort(labels, kind="stable")
        filled, starts = np.unique(labels[order], return_index=True)
        sums = np.add.reduceat(sample[order], starts, axis=0)
        counts = np.diff(np.append(starts, len(order)))
        centroids[filled] = sums / counts[:, None].astype(np.float32)
        empty = np.setdiff1d(np.arange(lists), filled)
        centroids[empty] = sample[generator.integers(0, len(sample), len(empty))]
        if metric is Metric.COSINE:
            lengths = np.linalg.norm(centroids, axis=1, keepdims=True)
            np.divide(centroids, lengths, out=centroids, where=lengths > 0)
        step()
    return centroids


def assign_to_lists(rows: Vectors, centroids: Vectors, check: Check) -> Labels:
    """Return the nearest centroid of each row, int32 [n]; the matmul runs on one core."""
    labels = np.empty(len(rows), dtype=np.int32)
    matmul, squared_norms = BlockMatmul(centroids), np.vecdot(centroids, centroids)
    for start in range(0, len(rows), _ASSIGN_BATCH):
        check()
        part = slice(start, start + _ASSIGN_BATCH)
        labels[part] = np.argmax(2 * matmul(np.ascontiguousarray(rows[part])) - squared_norms, axis=1)
    return labels
