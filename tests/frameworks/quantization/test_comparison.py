"""Test the comparison of two models' outputs, and the check against min_cosine."""

from pathlib import Path

import numpy as np
import pytest

from frameworks.errors import InvalidModel
from frameworks.quantization.comparison import check_cosine, compare, cosines_of, row_cosines
from frameworks.types import Batch, QuantizationReport, TensorBatch, Value

BATCH = TensorBatch({"x": np.zeros((2, 1), np.float32)})


def report(cosine: float) -> QuantizationReport:
    return QuantizationReport("int8", cosine, 0.99, 2.0, 4, 1)


def test_row_cosines_match_expected_values() -> None:
    one = np.array([[1, 0], [1, 1], [0, 0], [0, 0], [1, 0]], np.float32)
    other = np.array([[3, 0], [1, 0], [0, 0], [1, 0], [-1, 0]], np.float32)
    np.testing.assert_allclose(row_cosines(one, other), [1, 0.5**0.5, 1, 0, -1], atol=1e-12)


def test_rows_are_flattened_and_non_finite_is_zero() -> None:
    one = np.array([[[1, np.nan], [np.inf, 1]]])
    np.testing.assert_allclose(row_cosines(one, np.array([[[1, 0], [0, 1]]])), [1], atol=1e-12)


def test_cosines_cover_float_outputs_only() -> None:
    one: dict[str, Value] = {"a": np.eye(2), "label": np.array([1, 2]), "scores": [{"x": 1.0, "y": 0.0}] * 2}
    other: dict[str, Value] = {"a": np.eye(2), "label": np.array([7, 9]), "scores": [{"x": 0.0, "y": 1.0}] * 2}
    assert cosines_of([one], [other], [BATCH]).tolist() == [1, 1, 0, 0]


def test_comparison_covers_all_batches() -> None:
    def original(_: Batch) -> dict[str, Value]:
        return {"y": np.array([[1.0, 0.0], [1.0, 0.0]])}

    def quantized(_: Batch) -> dict[str, Value]:
        return {"y": np.array([[1.0, 0.0], [3.0, 4.0]])}

    found = compare(original, quantized, [BATCH, BATCH])
    assert (found.cosine_min, found.cosine_mean) == pytest.approx((0.6, 0.8))
    assert found.speedup > 0


@pytest.mark.parametrize(("cosine", "min_cosine"), [(0.9699, None), (0.9899, 0.99)])
def test_low_cosine_is_refused_with_remedies(cosine: float, min_cosine: float | None) -> None:
    wanted = (
        rf"int8.*cosine {cosine} at worst.*expected min_cosine {min_cosine or 0.97}; do this, or set min_cosine lower"
    )
    with pytest.raises(InvalidModel, match=wanted):
        check_cosine(report(cosine), min_cosine, Path("m"), "do this")


@pytest.mark.parametrize(("cosine", "min_cosine"), [(0.97, None), (0.5, 0.5), (0.5, 0.0)])
def test_cosine_at_limit_passes(cosine: float, min_cosine: float | None) -> None:
    check_cosine(report(cosine), min_cosine, Path("m"), "")
