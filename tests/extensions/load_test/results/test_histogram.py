"""Quantiles of the histogram against exact ones."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.load_test.results.histogram import MAX_S, MIN_S, RELATIVE_ERROR, DurationHistogram

DURATIONS = st.lists(st.floats(MIN_S, MAX_S), min_size=1, max_size=200)
# Of the float arithmetic; the error itself is that of the bucket.
TOLERANCE = RELATIVE_ERROR * 1.001


def filled(values: list[float]) -> DurationHistogram:
    histogram = DurationHistogram()
    for value in values:
        histogram.record(value)
    return histogram


@given(DURATIONS, st.floats(0, 1))
def test_quantile_is_exact_within_tolerance(values: list[float], part: float) -> None:
    exact = sorted(values)[max(1, math.ceil(part * len(values))) - 1]
    assert filled(values).quantile(part) == pytest.approx(exact, rel=TOLERANCE)


@given(DURATIONS, DURATIONS)
def test_sum_equals_histogram_of_all(first: list[float], second: list[float]) -> None:
    merged, whole = filled(first), filled(first + second)
    merged.add(filled(second))
    assert list(merged.buckets()) == list(whole.buckets())
    assert (merged.count, merged.min_s, merged.max_s) == (whole.count, whole.min_s, whole.max_s)
    assert merged.mean_s == pytest.approx(math.fsum(first + second) / len(first + second))


def test_number_of_buckets_is_bounded() -> None:
    histogram = filled([10 ** (exponent / 1000) for exponent in range(-20_000, 20_000)] + [0.0])
    assert histogram.count == 40_001
    assert len(list(histogram.buckets())) <= 1400


def test_empty_histogram_has_zeros() -> None:
    assert (DurationHistogram().quantile(0.5), DurationHistogram().mean_s) == (0.0, 0.0)
