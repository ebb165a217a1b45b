"""Comparison of values whose sums have any order."""

from typing import Any

import numpy as np
import pytest

from tests.support.alike import check_alike

ROW = {"label": "good", "scores": [0.5, 0.25], "count": 3, "none": None}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (ROW, ROW | {"scores": [0.5000001, 0.25]}),
        (np.array([1.0, 2.0], np.float32), np.array([1.0000001, 2.0], np.float32)),
        ((1, "a"), [1, "a"]),
    ],
)
def test_values_with_other_last_bits_are_alike(found: Any, expected: Any) -> None:
    check_alike(found, expected)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (ROW, ROW | {"scores": [0.50001, 0.25]}),
        (ROW, ROW | {"label": "bad"}),
        (ROW, ROW | {"count": 4}),
        (ROW, ROW | {"more": 1}),
        ([1.0], [1.0, 1.0]),
        (np.ones(2, np.float32), np.ones(2)),
        (np.ones(2), np.ones(3)),
        (np.ones(2), np.ones(2) + 1e-5),
    ],
)
def test_other_values_are_not_alike(found: Any, expected: Any) -> None:
    with pytest.raises(AssertionError):
        check_alike(found, expected)
