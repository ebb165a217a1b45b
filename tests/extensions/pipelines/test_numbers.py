"""Test the arithmetic of built-in steps against plain numpy, also where they take a shorter path."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from extensions.pipelines.settings import StepEntry
from extensions.pipelines.steps.numbers import Softmax, TopK, best_columns

VALUES = st.sampled_from([0.0, 1.0, -1.0, 2.5, np.nan, np.inf, -np.inf])


def entry(kind: str, **options: Any) -> StepEntry:
    return StepEntry.model_validate({"name": "s", "builtin": kind, "inputs": {"values": "x"}, **options})


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(128, 200)), elements=VALUES), st.data())
def test_selected_columns_equal_sorted_ones(rows: Any, data: st.DataObject) -> None:
    top_k = data.draw(st.integers(1, 32))
    expected = np.argsort(-rows, axis=1, kind="stable")[:, :top_k]
    np.testing.assert_array_equal(best_columns(rows, top_k), expected)


@pytest.mark.parametrize("shape", [(1, 5), (4, 5), (3, 1000)])
def test_top_k_takes_values_of_its_indices(shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    found = TopK(entry("top_k", top_k=3)).run({"values": rows})
    np.testing.assert_array_equal(found["values"], np.take_along_axis(rows, found["indices"], axis=1))
    np.testing.assert_array_equal(found["values"], -np.sort(-rows, axis=1)[:, :3])


@pytest.mark.parametrize(("shape", "axis"), [((1, 7), -1), ((7,), 0), ((7, 1), 0), ((3, 7), -1), ((3, 7), 0)])
def test_softmax_equals_plain_numpy(shape: tuple[int, ...], axis: int) -> None:
    numbers = np.random.default_rng(4).normal(scale=30, size=shape).astype(np.float32)
    odds = Softmax(entry("softmax", axis=axis)).run({"values": numbers})["values"]
    powers = np.exp(numbers.astype(np.float64) - numbers.max())
    np.testing.assert_allclose(odds, powers / powers.sum(axis=axis, keepdims=True), rtol=1e-5, atol=1e-30)
    assert odds.dtype == np.float32
