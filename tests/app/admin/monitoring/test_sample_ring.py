"""Sums over the visible cells of the ring, and the figures of them, beside plain loops."""

from itertools import pairwise
from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.admin.monitoring.sample_cells import COMPLETED, FIELDS, Cell
from app.admin.monitoring.sample_ring import Sample, SampleRing, Visible, by_model, completed_by_model, sums
from app.admin.monitoring.statistics import (
    batches,
    latest_batches,
    latest_rates,
    latest_times,
    quantile_s,
    rates,
    times,
)
from app.observability.tallies import SECONDS_BUCKETS

KEYS = [Cell(model, tenant) for model in ("", "m", "n") for tenant in ("red", "blue", None)]
CELLS = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 9)), unique_by=lambda each: each[0])
SAMPLES = st.lists(CELLS, max_size=6)
SHOWN = st.sets(st.sampled_from(KEYS))


def sample_of(cells: list[tuple[Cell, int]], at_s: float = 0.0) -> Sample:
    """Return a sample whose fields are the given number times the number of the field."""
    fields = np.arange(FIELDS, dtype=np.float32)
    rows = [fields * number for _, number in cells]
    values = np.stack(rows) if rows else np.zeros((0, FIELDS), np.float32)
    return Sample(at_s, 2.0, tuple(key for key, _ in cells), values, True, 0, {}, {})


@given(SAMPLES, SHOWN)
def test_sums_equal_those_of_loops(given_cells: list[list[tuple[Cell, int]]], shown: set[Cell]) -> None:
    samples = [sample_of(cells) for cells in given_cells]
    total = sums(samples, Visible(shown.__contains__))
    expected = [sum(number for key, number in cells if key in shown) for cells in given_cells]
    assert total.shape == (len(samples), FIELDS)
    assert total[:, 1].tolist() == expected
    assert (total == total[:, [1]] * np.arange(FIELDS)).all()


@given(SAMPLES, SHOWN)
def test_models_equal_those_of_loops(given_cells: list[list[tuple[Cell, int]]], shown: set[Cell]) -> None:
    samples, visible = [sample_of(cells) for cells in given_cells], Visible(shown.__contains__)
    expected: dict[str, int] = {}
    for key, number in (each for cells in given_cells for each in cells if each[0] in shown):
        expected[key.model] = expected.get(key.model, 0) + number
    assert {name: row[1] for name, row in by_model(samples, visible).items()} == expected
    assert COMPLETED == 0
    assert completed_by_model(samples, visible) == {}


def test_completed_are_by_sample_and_model() -> None:
    first, second = sample_of([(KEYS[3], 1)]), sample_of([(KEYS[3], 1), (KEYS[6], 1), (KEYS[0], 1)])
    for number, sample in enumerate((first, second)):
        sample.values[:, COMPLETED] = number + 1
    found = completed_by_model([first, second], Visible(lambda _: True))
    assert {name: row.tolist() for name, row in found.items()} == {"m": [1, 2], "n": [0, 2]}


def test_ring_keeps_the_latest() -> None:
    ring = SampleRing(5)
    for number in range(50):
        ring.add(sample_of([], at_s=number))
    assert [sample.at_s for sample in ring.samples] == [45, 46, 47, 48, 49]


def test_ring_has_fifteen_minutes() -> None:
    ring = SampleRing()
    for number in range(1000):
        ring.add(sample_of([], at_s=2.0 * number))
    at_s = [sample.at_s for sample in ring.samples]
    assert at_s[-1] - at_s[0] + 2.0 == 900.0
    assert len(ring.window()) == 30


def reference_quantile(counts: list[int], quantile: float) -> float:
    """Compute as PromQL's histogram_quantile does, with the last bound for what is above it."""
    bounds = [0.0, *SECONDS_BUCKETS, SECONDS_BUCKETS[-1]]
    wanted = quantile * sum(counts)
    below = 0
    for (low, high), count in zip(pairwise(bounds), counts, strict=True):
        if count and below + count >= wanted:
            return low + (high - low) * (wanted - below) / count
        below += count
    return float("nan")


@given(st.lists(st.integers(0, 5), min_size=17, max_size=17), st.sampled_from([0.5, 0.99]))
def test_quantile_equals_that_of_prometheus(counts: list[int], quantile: float) -> None:
    found = quantile_s(np.array([counts, [0] * 17], np.float64), quantile)
    expected = reference_quantile(counts, quantile)
    assert isnan(found[1])
    assert (isnan(found[0]) and isnan(expected)) or found[0] == pytest.approx(expected, rel=1e-9)


def test_figures_without_requests_are_nan() -> None:
    nothing, span_s = np.zeros((1, FIELDS)), np.array([2.0])
    assert all(np.isnan(column).all() for column in times(nothing).values())
    assert np.isnan(batches(nothing, span_s)["batch_rows"]).all()
    assert all(column == [0.0] for column in rates(nothing, span_s).values())


FIELD = st.integers(0, 1000).map(float)


@given(st.lists(FIELD, min_size=FIELDS, max_size=FIELDS), st.floats(0.1, 60))
def test_figures_of_one_row_equal_columns(row: list[float], span_s: float) -> None:
    total, spans_s = np.array([row]), np.array([span_s])
    columns = rates(total, spans_s) | times(total) | batches(total, spans_s)
    found = latest_rates(row, span_s) | latest_times(row) | latest_batches(row, span_s)
    expected = {name: pytest.approx(column[0], rel=1e-9, abs=0.002, nan_ok=True) for name, column in columns.items()}
    assert {name: float("nan") if each is None else each for name, each in found.items()} == expected
