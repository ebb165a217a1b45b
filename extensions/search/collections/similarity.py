"""Compute pairwise scores of two lists of vectors: the whole matrix, or the top-k of each row."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from extensions.search.collections.contract import Metric
from frameworks.core.vector_search import Vectors

_BLOCK_SCORES = 1 << 20

_Wide = npt.NDArray[np.floating[Any]]


class Comparison(NamedTuple):
    """Two lists of vectors, float32 [n, dimensions] and [m, dimensions]. `others` None: the list with itself."""

    items: Vectors
    others: Vectors | None
    metric: Metric

    @property
    def products(self) -> int:
        """Return the number of multiplications of the whole matrix of scores."""
        return int(self.items.size * len(self.items if self.others is None else self.others))


class Nearest(NamedTuple):
    """The top-k scores of each row, the highest first. `indices`: int64 [n, k]. `scores`: float32 [n, k]."""

    indices: npt.NDArray[np.int64]
    scores: Vectors


class Stopped(Exception):
    """The caller does not need the result any more."""


def all_scores(comparison: Comparison, is_stopped: Callable[[], bool] = lambda: False) -> Vectors:
    """Return the scores of all pairs, float32 [n, m], as `Metric` defines them. Raises Stopped between two blocks."""
    items, others = comparison.items, comparison.others
    scores = np.empty((len(items), len(items if others is None else others)), np.float32)
    with np.errstate(over="ignore"):  # an inner product that float32 cannot hold is an infinity
        for start, block in _blocks(comparison, is_stopped):
            scores[start : start + len(block)] = block
    return scores


def nearest(comparison: Comparison, top_k: int, is_stopped: Callable[[], bool] = lambda: False) -> Nearest:
    """Return the `top_k` best of `others` for each item; of a list with itself, without the item itself.

    Fewer where there are not so many. Equal scores are ordered by index. Raises Stopped between two blocks.
    """
    is_self = comparison.others is None
    count = len(comparison.items if comparison.others is None else comparison.others)
    top_k = min(top_k, count - is_self)
    indices = np.empty((len(comparison.items), top_k), np.int64)
    scores = np.empty((len(comparison.items), top_k), np.float32)
    for start, block in _blocks(comparison, is_stopped):
        rows = np.arange(len(block))
        if is_self:
            block[rows, start + rows] = -np.inf
        found = _best(block, top_k)
        indices[start : start + len(block)] = found
        with np.errstate(over="ignore"):
            scores[start : start + len(block)] = np.take_along_axis(block, found, axis=1)
    return Nearest(indices, scores)


def nearest_of(scores: Vectors, top_k: int, is_self: bool) -> Nearest:
    """Return the `top_k` best of each row of scores [n, m]. `is_self`: of a list with itself, as `nearest`."""
    values = scores.copy()
    if is_self:
        np.fill_diagonal(values, -np.inf)
    found = _best(values, min(top_k, values.shape[1] - is_self))
    return Nearest(found, np.take_along_axis(values, found, axis=1))


def _best(scores: _Wide, top_k: int) -> npt.NDArray[np.int64]:
    """Return the indices of the highest scores of each row, int64 [rows, top_k], the highest first."""
    if not top_k:
        return np.empty((len(scores), 0), np.int64)
    if 4 * top_k >= scores.shape[1]:
        return np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    # Sorted by index first, so that a stable sort orders equal scores by index. All that equal the lowest one of the
    # best are candidates: which of them argpartition returns is not defined.
    lowest = -np.partition(-scores, top_k - 1, axis=1)[:, top_k - 1 : top_k]
    found = np.empty((len(scores), top_k), np.int64)
    for row, is_candidate in enumerate(scores >= lowest):
        candidates = np.flatnonzero(is_candidate)
        found[row] = candidates[np.argsort(-scores[row, candidates], kind="stable")[:top_k]]
    return found


def _blocks(comparison: Comparison, is_stopped: Callable[[], bool]) -> Iterator[tuple[int, _Wide]]:
    """Yield the index of the first row of each block, and its scores."""
    items = _normalized(comparison, comparison.items)
    others = items if comparison.others is None else _normalized(comparison, comparison.others)
    rows = max(1, _BLOCK_SCORES // max(1, len(others)))
    squares = np.einsum("ij,ij->i", others, others) if comparison.metric is Metric.EUCLID else None
    for start in range(0, len(items), rows):
        if is_stopped():
            raise Stopped
        part = items[start : start + rows]
        scores = part @ others.T
        if squares is not None:
            scores *= -2
            scores += squares
            scores += np.einsum("ij,ij->i", part, part)[:, None]
            np.maximum(scores, 0, out=scores)
            np.sqrt(scores, out=scores)
            np.negative(scores, out=scores)
        elif comparison.metric is Metric.COSINE:
            np.clip(scores, -1, 1, out=scores)
        yield start, scores


def _normalized(comparison: Comparison, vectors: Vectors) -> _Wide:
    """Return vectors whose inner products are scores: of unit length for the cosine, zeros unchanged."""
    if comparison.metric is Metric.EUCLID:
        # In float32 the difference of the squares would lose the distance of near vectors.
        return vectors.astype(np.float64)
    if comparison.metric is Metric.DOT:
        return vectors.astype(np.float64) if _may_overflow(comparison) else vectors
    # The squares of large numbers exceed float32.
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))[:, None]
    return (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def _may_overflow(comparison: Comparison) -> bool:
    items, others = comparison.items, comparison.items if comparison.others is None else comparison.others
    largest = [float(np.abs(each).max(initial=0)) for each in (items, others)]
    return bool(largest[0] * largest[1] * items.shape[1] >= float(np.finfo(np.float32).max))
