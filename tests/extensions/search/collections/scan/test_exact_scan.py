"""Scans of segments against a stable sort of all scores."""

from collections.abc import Sequence

import numpy as np
import pytest

from extensions.search.collections.contract import Metric
from extensions.search.collections.scan import exact_scan, scoring
from extensions.search.collections.scan.top_k import TopK, exact_scores
from extensions.search.collections.store.metadata_columns import Mask
from extensions.search.collections.store.segments import NOT_DELETED, Part, Positions, Segment, normalized
from frameworks.core.vector_search import Vectors

pytestmark = pytest.mark.isa

_DIMENSIONS = 83
_SEQUENCE = 5
_generator = np.random.default_rng(0)


@pytest.fixture(params=["compiled", "numpy"], autouse=True)
def product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test with the compiled kernels and with those of numpy."""
    if request.param == "numpy":
        monkeypatch.setattr(scoring, "compiled_kernels", lambda: None)
    else:
        pytest.importorskip("numba")
        assert scoring.compiled_kernels() is not None
    return str(request.param)


def _vectors(count: int, metric: Metric) -> Vectors:
    """Return vectors of small integers, many of them twice: their sums are exact, and scores are equal."""
    own = _generator.integers(-2, 3, (max(1, count // 2), _DIMENSIONS)).astype(np.float32)
    return normalized(own[_generator.integers(0, len(own), count)], metric)


def _parts(metric: Metric, counts: Sequence[int] = (3, 1500, 1, 900)) -> list[Part]:
    """Return segments whose row numbers are in no order and some of whose rows are deleted."""
    numbers = _generator.permutation(sum(counts))
    parts = []
    for count, start in zip(counts, np.cumsum([0, *counts]), strict=False):
        segment = Segment(count + count % 2, _DIMENSIONS, metric)
        segment.write(0, numbers[start : start + count], _vectors(count, metric))
        # Rows that were deleted after the snapshot are found.
        segment.deleted_at[:count] = _generator.choice(
            [_SEQUENCE, _SEQUENCE + 1, NOT_DELETED], count, p=[0.1, 0.1, 0.8]
        )
        segment.deleted_count = int((segment.deleted_at[:count] != NOT_DELETED).sum())
        segment.count = count
        parts.append(Part(segment, count))
    return parts


def _sorted(
    parts: Sequence[Part], query: Vectors, top_k: int, metric: Metric, masks: Sequence[Mask] | None
) -> tuple[Positions, Vectors]:
    """Return the row numbers and scores of a stable sort of all scores by age."""
    rows, scores = [], []
    for index, part in enumerate(parts):
        segment, own = part.segment, slice(part.count)
        found = segment.deleted_at[own] > _SEQUENCE
        if masks is not None:
            found &= masks[index]
        rows.append(segment.rows[own][found])
        scores.append(exact_scores(segment.vectors[own][found], query, metric).astype(np.float32))
    all_rows, all_scores = np.concatenate(rows), np.concatenate(scores)
    order = np.lexsort((all_rows, -all_scores))[:top_k]
    return all_rows[order], all_scores[order]


def _assert_sorted(
    best: Sequence[TopK], parts: Sequence[Part], metric: Metric, masks: Sequence[Sequence[Mask] | None] | None = None
) -> None:
    for index, own in enumerate(best):
        rows, scores = own.ranked(metric)
        expected = _sorted(parts, own.query, own.top_k, metric, masks[index] if masks else None)
        assert np.array_equal(rows, expected[0])
        assert np.array_equal(scores, expected[1])


@pytest.mark.parametrize("count", [1, 2, 5, 16, 17, 40])
@pytest.mark.parametrize("metric", Metric)
def test_scan_equals_stable_sort(metric: Metric, count: int) -> None:
    parts, queries = _parts(metric), _vectors(count, metric)
    best = [TopK(query, (1, 10, 300)[index % 3]) for index, query in enumerate(queries)]
    exact_scan.Scan(best, metric, _SEQUENCE).run(parts)
    _assert_sorted(best, parts, metric)


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("metric", Metric)
def test_filtered_scan_equals_stable_sort(metric: Metric, count: int) -> None:
    parts, queries = _parts(metric), _vectors(count, metric)
    filters = [[_generator.random(part.count) < share for part in parts] for share in (0.5, 0.01, 0)]
    masks = [[*filters, None][index % 4] for index in range(count)]
    best = [TopK(query, 10) for query in queries]
    exact_scan.Scan(best, metric, _SEQUENCE).run(parts, masks)
    _assert_sorted(best, parts, metric, masks)


@pytest.mark.parametrize("count", [1, 20])
def test_rising_scores_equal_stable_sort(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "MAX_CANDIDATES", 200)  # fewer than the candidates of the rows
    segment = Segment(4000, _DIMENSIONS, Metric.DOT)
    vectors = np.full((4000, _DIMENSIONS), 0.5, dtype=np.float32) * (np.arange(4000)[:, None] // 3)
    segment.write(0, np.arange(4000), vectors.astype(np.float32))
    segment.count = 4000
    parts = [Part(segment, 4000)]
    best = [TopK(np.ones(_DIMENSIONS, np.float32), 10) for _ in range(count)]
    exact_scan.Scan(best, Metric.DOT, _SEQUENCE).run(parts)
    _assert_sorted(best, parts, Metric.DOT)


def test_scan_continues_from_found_rows() -> None:
    parts, queries = _parts(Metric.COSINE), _vectors(20, Metric.COSINE)
    best = [TopK(query, 10) for query in queries]
    for part in parts:
        exact_scan.Scan(best, Metric.COSINE, _SEQUENCE).run([part])
    _assert_sorted(best, parts, Metric.COSINE)


@pytest.mark.parametrize("dimensions", [1, 15, 16, 65, 128])
@pytest.mark.parametrize("count", [1, 16])
def test_any_dimensions_are_compared(dimensions: int, count: int) -> None:
    segment = Segment(50, dimensions, Metric.DOT)
    segment.write(0, np.arange(50), _generator.integers(-9, 9, (50, dimensions)).astype(np.float32))
    segment.count = 50
    queries = _generator.integers(-9, 9, (count, dimensions)).astype(np.float32)
    best = [TopK(query, 7) for query in queries]
    exact_scan.Scan(best, Metric.DOT, _SEQUENCE).run([Part(segment, 50)])
    _assert_sorted(best, [Part(segment, 50)], Metric.DOT)
