"""Scores of pairs of vectors, against numpy in float64."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.search.collections import similarity
from extensions.search.collections.contract import Metric
from extensions.search.collections.similarity import Comparison, Stopped, all_scores, nearest, nearest_of

pytestmark = pytest.mark.isa

Matrix = Any


def expected(items: Matrix, others: Matrix, metric: Metric) -> Matrix:
    items, others = items.astype(np.float64), others.astype(np.float64)
    match metric:
        case Metric.DOT:
            return items @ others.T
        case Metric.EUCLID:
            return -np.linalg.norm(items[:, None] - others[None], axis=2)
    lengths = np.linalg.norm(items, axis=1)[:, None] * np.linalg.norm(others, axis=1)[None]
    return np.divide(items @ others.T, lengths, out=np.zeros_like(lengths), where=lengths != 0)


def vectors(seed: int, rows: int, dimensions: int = 5) -> Matrix:
    """Return vectors of which some are equal, and some zeros."""
    made = np.random.default_rng(seed).integers(-2, 3, (rows, dimensions)).astype(np.float32)
    made[rows // 2 :: 7] = 0
    return made


@pytest.mark.parametrize("metric", Metric)
@given(seed=st.integers(0, 1000), rows=st.integers(1, 30), others=st.integers(1, 30))
def test_scores_equal_reference(metric: Metric, seed: int, rows: int, others: int) -> None:
    one, other = vectors(seed, rows), vectors(seed + 1, others)
    scores = all_scores(Comparison(one, other, metric))
    np.testing.assert_allclose(scores, expected(one, other, metric), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("metric", Metric)
@given(seed=st.integers(0, 1000), rows=st.integers(1, 60), top_k=st.integers(1, 70))
def test_nearest_are_stable_best_without_item(metric: Metric, seed: int, rows: int, top_k: int) -> None:
    items = vectors(seed, rows)
    scores = all_scores(Comparison(items, None, metric)).astype(np.float64)
    found = nearest(Comparison(items, None, metric), top_k)
    assert found.indices.shape == (rows, min(top_k, rows - 1))
    np.fill_diagonal(scores, -np.inf)
    best = np.argsort(-scores, axis=1, kind="stable")[:, : found.indices.shape[1]]
    # Equal scores may differ in the last bit between the two products.
    np.testing.assert_allclose(found.scores, np.take_along_axis(scores, best, 1), rtol=1e-6, atol=1e-6)
    assert not (found.indices == np.arange(rows)[:, None]).any()


def test_blocks_do_not_change_result(monkeypatch: pytest.MonkeyPatch) -> None:
    items, others = vectors(1, 50), vectors(2, 40)
    whole = all_scores(Comparison(items, others, Metric.EUCLID))
    few = nearest(Comparison(items, None, Metric.DOT), 3)
    monkeypatch.setattr(similarity, "_BLOCK_SCORES", 90)
    assert np.array_equal(all_scores(Comparison(items, others, Metric.EUCLID)), whole)
    assert np.array_equal(nearest(Comparison(items, None, Metric.DOT), 3).indices, few.indices)


def test_equal_scores_are_ordered_by_index() -> None:
    others = np.ones((100, 3), np.float32)
    assert nearest(Comparison(others[:2], others, Metric.DOT), 4).indices.tolist() == [[0, 1, 2, 3]] * 2


def test_near_vectors_keep_their_distance() -> None:
    one = np.full((1, 8), 1000.0, np.float32)
    other = one + np.float32(0.0625)
    scores = all_scores(Comparison(one, other, Metric.EUCLID))
    assert scores[0, 0] == pytest.approx(-0.0625 * 8**0.5, rel=1e-6)


def test_large_numbers_do_not_become_nan() -> None:
    items = np.array([[3e38, 3e38], [3e38, -3e38]], np.float32)
    scores = all_scores(Comparison(items, None, Metric.DOT))
    assert scores.tolist() == [[np.inf, 0], [0, np.inf]]
    assert all_scores(Comparison(items, None, Metric.COSINE))[0].tolist() == pytest.approx([1, 0], abs=1e-6)
    assert nearest(Comparison(items, None, Metric.DOT), 1).indices.tolist() == [[1], [0]]


def test_stopped_work_ends_between_blocks() -> None:
    with pytest.raises(Stopped):
        all_scores(Comparison(vectors(1, 4), None, Metric.DOT), lambda: True)


def test_nearest_of_scores_omits_own_row() -> None:
    scores = np.array([[9, 1, 2], [4, 9, 3], [5, 6, 9]], np.float32)
    found = nearest_of(scores, 2, is_self=True)
    assert found.indices.tolist() == [[2, 1], [0, 2], [1, 0]]
    assert found.scores.tolist() == [[2, 1], [4, 3], [6, 5]]
    assert nearest_of(scores, 1, is_self=False).indices.tolist() == [[0], [1], [2]]
