"""The cost model learns from noisy timings and stays valid for any timings."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.scheduling.batch.cost import CostModel, _bucket

LAWS = {
    "encoder": (2e-3, 6e-5, 2e-7, 0.0),
    "activations exceed the caches": (1.6e-3, 2e-4, 2e-7, 1.4e-8),
    "mostly attention": (1e-4, 1e-6, 1e-6, 0.0),
    "linear": (5e-3, 1e-4, 0.0, 0.0),
    "nearly free rows": (1e-2, 1e-7, 0.0, 0.0),
    "per row only": (0.0, 1e-3, 0.0, 0.0),
}
SHAPES = [(rows, length) for rows in (1, 2, 4, 8, 16, 32) for length in (4, 8, 16, 32, 64, 128)]


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("seed", range(3))
def test_cost_is_learned_from_noisy_timings(name: str, seed: int) -> None:
    start_s, per_token_s, per_pair_s, per_square_s = LAWS[name]

    def seconds_of(rows: int, length: int) -> float:
        tokens = rows * length
        return start_s + tokens * (per_token_s + per_pair_s * length + per_square_s * tokens)

    law = [seconds_of(*shape) for shape in SHAPES]
    rng = random.Random(seed)
    cost = CostModel()
    for _ in range(40):
        for (rows, length), seconds in rng.sample(list(zip(SHAPES, law, strict=True)), len(SHAPES)):
            factor = 20.0 if rng.random() < 0.01 else rng.uniform(0.9, 1.1)
            cost.observe(rows, length, seconds * factor)
    for (rows, length), seconds in zip(SHAPES, law, strict=True):
        assert cost.seconds(rows, length) == pytest.approx(seconds, rel=0.2)
    # Shapes in between have never run.
    for rows, length in [(3, 20), (12, 50), (24, 100)]:
        assert cost.seconds(rows, length) == pytest.approx(seconds_of(rows, length), rel=0.2)


def test_slower_device_is_learned_again() -> None:
    cost = CostModel()
    for factor in (1.0, 2.0):
        for _ in range(40):
            for rows in (1, 2, 4, 8):
                cost.observe(rows, 1, factor * (1e-3 + rows * 1e-3))
    assert cost.seconds(8, 1) == pytest.approx(18e-3, rel=0.1)


def test_single_shape_attributes_share_to_start() -> None:
    cost = CostModel()
    assert cost.seconds(4, 10) == 0.0
    cost.observe(1, 10, 0.1)
    assert cost.seconds(4, 10) > 0.0
    assert cost.start_s == pytest.approx(0.03)
    assert cost.seconds(1, 10) == pytest.approx(0.1)
    assert cost.seconds(2, 10) < 2 * cost.seconds(1, 10)


@pytest.mark.parametrize("lengths", [(1,), (10, 20, 40)], ids=["rows only", "sequence"])
def test_single_rows_suggest_trying_two(lengths: tuple[int, ...]) -> None:
    """Otherwise no batch would ever be formed or measured."""
    cost = CostModel()
    for _ in range(10):
        for length in lengths:
            cost.observe(1, length, 2e-3 + 1e-5 * length)
            assert cost.seconds(2, length) < 2 * cost.seconds(1, length)


def test_allowed_rows_double_measured_rows() -> None:
    cost = CostModel()
    most = []
    for _ in range(40):
        most.append(cost.most_rows)
        cost.observe(cost.most_rows, 7, 1e-3)
    assert most[:10] == [1, 1, 2, 2, 4, 4, 8, 8, 16, 16]
    assert most[32] == 2, "a trial"
    assert most[33:] == [1 << 16, 1 << 16, 1 << 17, 1 << 17, 1 << 18, 1 << 18, 1 << 19]
    trials = []
    for i in range(40, 400):
        if cost.most_rows < 100:
            trials.append((i, cost.most_rows))
        cost.observe(1, 7, 1e-3)
    assert trials == [(32 * i, 1 << i % 3) for i in range(2, 13)]


def test_smaller_batches_do_not_raise_allowed_rows() -> None:
    cost = CostModel()
    for _ in range(100):
        cost.observe(1, 5, 1e-3)
        assert cost.most_rows <= 4
    # A larger batch of one unsplit request counts as several.
    cost.observe(50, 5, 1e-2)
    cost.observe(40, 5, 1e-2)
    assert cost.most_rows == 80


def test_single_outlier_is_ignored() -> None:
    cost = CostModel()
    for _ in range(20):
        cost.observe(1, 1, 1e-3)
    cost.observe(1, 1, 10.0)
    for _ in range(16):
        cost.observe(1, 1, 1e-3)
    assert cost.seconds(1, 1) == pytest.approx(1e-3, rel=0.1)


@given(
    st.lists(
        st.tuples(st.integers(0, 64), st.integers(1, 512), st.floats(0, 1e4, allow_subnormal=True)),
        min_size=1,
        max_size=60,
    )
)
def test_cost_terms_are_finite_and_not_negative(runs: list[tuple[int, int, float]]) -> None:
    cost = CostModel()
    for rows, length, seconds in runs:
        cost.observe(rows, length, seconds)
        terms = (cost.start_s, cost.per_token_s, cost.per_pair_s, cost.per_square_s)
        assert all(math.isfinite(term) and term >= 0.0 for term in terms)
        assert cost.start_s > 0.0
        assert math.isfinite(cost.seconds(rows, length))
    assert cost.seconds(2, 9) <= cost.seconds(3, 9) <= cost.seconds(3, 10)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_buckets_grow_with_size(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert _bucket(low) <= _bucket(high)
    assert _bucket(low) <= low <= _bucket(low) * 9 / 8 + 1
