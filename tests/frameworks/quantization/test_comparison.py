"""Test the comparison of two models' outputs, and the check against min_cosine."""

from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import InvalidModel
from frameworks.quantization.comparison import check_cosine, compare, cosines_of, row_cosines, warn_if_slower
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
    assert min(found.original_s, found.quantized_s) > 0


def test_speedup_is_ratio_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def infer(_: Batch) -> dict[str, Value]:
        return {"y": np.ones((2, 1))}

    times = iter([4.0, 1.0, 8.0, 2.0, 100.0, 3.0])
    monkeypatch.setattr("frameworks.quantization.comparison._seconds", lambda *_: next(times))
    report = compare(infer, infer, [BATCH]).report("int8", 4, 1)
    assert (report.speedup, report.original_ms, report.quantized_ms) == (4, 8000, 2000)


@pytest.mark.parametrize(("speedup", "warnings"), [(0.5, 1), (1.0, 0), (2.0, 0)])
def test_slower_model_warns_with_both_times(speedup: float, warnings: int) -> None:
    figures = QuantizationReport("int8", 0.99, 0.99, speedup, 4, 1, original_ms=3.0, quantized_ms=6.0)
    with capture_logs() as logs:
        warn_if_slower(figures, "m", "remove quantized")
    assert len(logs) == warnings
    for log in logs:
        assert (log["log_level"], log["model"], log["remedy"]) == ("warning", "m", "remove quantized")
        assert (log["original_ms"], log["quantized_ms"]) == (3.0, 6.0)


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
