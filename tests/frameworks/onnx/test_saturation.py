"""The range of ONNX weights is the most exact one in which no product of this CPU saturates."""

import numpy as np
import onnxruntime as ort
import pytest

from frameworks.onnx.quantization import saturation
from frameworks.onnx.quantization.saturation import exact_range, round_to_range
from frameworks.quantization.ranges import HALVED, PAIRED, RANGES, WHOLE, WeightRange
from frameworks.types import Array


@pytest.mark.parametrize(
    ("exact", "expected"),
    [
        ({(127,)}, WHOLE),
        ({(64,), (127, 1), (0, 127, 127, 0)}, PAIRED),
        ({(64,), (127, 1)}, HALVED),
        ({(64,)}, HALVED),
        (set(), HALVED),
    ],
)
def test_range_is_most_exact_without_saturation(
    monkeypatch: pytest.MonkeyPatch, exact: set[tuple[int, ...]], expected: WeightRange
) -> None:
    exact_range.cache_clear()
    monkeypatch.setattr(saturation, "_is_exact", lambda probe: probe in exact)
    assert exact_range() is expected
    exact_range.cache_clear()


@pytest.mark.parametrize("inputs", [1, 44, 45])
@pytest.mark.parametrize("weight_range", RANGES, ids=lambda each: each.name)
def test_quantized_weights_keep_to_range(weight_range: WeightRange, inputs: int) -> None:
    weight = np.random.default_rng(1).normal(size=(inputs, 51)).astype(np.float32)
    weight[:, 3] = 0
    rounded, scale = round_to_range(weight, weight_range)
    assert (rounded.dtype.name, scale.dtype.name) == ("int8", "float32")
    assert np.abs(rounded).max() <= weight_range.largest
    assert np.all(np.abs(rounded * scale - weight) <= 0.5001 * scale)
    if weight_range.largest_pair is not None:
        pairs = np.pad(rounded.astype(int), ((0, inputs % 2), (0, 0))).reshape(-1, 2, 51)
        assert pairs.clip(min=0).sum(1).max() <= weight_range.largest_pair
        assert pairs.clip(max=0).sum(1).min() >= -weight_range.largest_pair


def largest_products(weight: Array) -> tuple[Array, Array]:
    """Return ONNX Runtime's sums of rows with the number that makes each output largest, and the exact ones."""
    session = ort.InferenceSession(saturation._product(weight).SerializeToString(), providers=["CPUExecutionProvider"])
    rows = np.where(weight.T > 0, 255, 0).astype(np.uint8)
    found: Array = session.run(None, {"rows": rows})[0]
    return found, (rows.astype(np.int32) - 128) @ weight.astype(np.int32)


def test_largest_products_of_range_are_exact() -> None:
    weight = np.random.default_rng(2).normal(size=(96, 64)).astype(np.float32)
    rounded, _ = round_to_range(weight, exact_range())
    np.testing.assert_array_equal(*largest_products(rounded))
