"""Products of packed and int8 weights against double precision."""

import pytest
import torch

from frameworks.pytorch.generation.weights.linear import (
    Linear,
    PackedLinear,
    PlainLinear,
    QuantizedLinear,
    can_quantize,
)
from frameworks.pytorch.int8_matmul import CPU_MATMULS, Int8Kernel, quantize_weight
from frameworks.quantization.ranges import LARGEST_INT8

pytestmark = pytest.mark.isa

INPUTS, OUTPUTS = 48, 80
ROWS = [1, 2, 16, 65]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
INT8_TOLERANCE = 0.02
"""Error of a product whose rows and weights are both rounded to 127 steps."""


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def weights(dtype: torch.dtype, *, has_bias: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    return random(OUTPUTS, INPUTS, seed=1, dtype=dtype), random(OUTPUTS, seed=2, dtype=dtype) if has_bias else None


def relative_error(ours: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest error, divided by the largest number."""
    return float((ours.double() - expected).abs().max() / expected.abs().max())


def errors(linear: Linear, weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> list[float]:
    """Return the errors of the product and of each fused operation against double precision."""
    given = random(rows, INPUTS, seed=3, dtype=weight.dtype)
    other = random(rows, OUTPUTS, seed=4, dtype=weight.dtype)
    before = given.clone(), other.clone()
    product = torch.nn.functional.linear(given.double(), weight.double(), None if bias is None else bias.double())
    found = [linear(given), linear.fused_silu(given), linear.fused_mul(given, other), linear.fused_add(given, other)]
    expected = [product, torch.nn.functional.silu(product), product * other.double(), product + other.double()]
    assert all(each.dtype == weight.dtype and each.shape == (rows, OUTPUTS) for each in found)
    assert torch.equal(given, before[0])
    assert torch.equal(other, before[1])
    return [relative_error(ours, each) for ours, each in zip(found, expected, strict=True)]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [PlainLinear, PackedLinear])
def test_linear_matches_double_precision(
    kind: type[PlainLinear | PackedLinear], dtype: torch.dtype, has_bias: bool, rows: int
) -> None:
    weight, bias = weights(dtype, has_bias=has_bias)
    try:
        linear = kind(weight, bias)
    except RuntimeError as error:
        assert kind is PackedLinear
        pytest.skip(f"oneDNN has no order for these weights on this CPU: {error}")
    assert max(errors(linear, weight, bias, rows)) < TOLERANCE[dtype]


@pytest.mark.parametrize("kernel", CPU_MATMULS, ids=lambda product: product.name, indirect=True)
class TestInt8:
    @pytest.mark.parametrize("rows", ROWS)
    @pytest.mark.parametrize("has_bias", [False, True])
    def test_int8_is_near(self, kernel: Int8Kernel, rows: int, has_bias: bool) -> None:
        """Rounding errors are independent, so their variances add up: a row's step is 1 / 127 of its largest number, a
        weight's is its scale, which is larger where the CPU would saturate. With 127 for both the error is below 0.02.
        """
        weight, bias = weights(torch.float32, has_bias=has_bias)
        found = errors(QuantizedLinear(weight, bias, kernel), weight, bias, rows)
        _, scale = quantize_weight(weight, kernel.weight_range)
        steps = float((scale * LARGEST_INT8 / weight.abs().amax(1)).max())
        assert max(found) < INT8_TOLERANCE * ((1 + steps**2) / 2) ** 0.5
        assert min(found) > 1e-6, "the product is not int8"

    @pytest.mark.parametrize("rows", ROWS)
    def test_int8_error_within_half_a_step(self, kernel: Int8Kernel, rows: int) -> None:
        """No element is off by more than half a step of each weight and of each number of its row."""
        weight, _ = weights(torch.float32, has_bias=False)
        given = random(rows, INPUTS, seed=3)
        weight_step = quantize_weight(weight, kernel.weight_range)[1].double()
        row_step = given.double().abs().amax(1, keepdim=True) / LARGEST_INT8
        bound = given.double().abs().sum(1, keepdim=True) * weight_step / 2
        bound += row_step / 2 * (weight.double().abs() + weight_step[:, None] / 2).sum(1)
        expected = given.double() @ weight.double().t()
        found = QuantizedLinear(weight, None, kernel)(given).double()
        assert bool(((found - expected).abs() <= bound * (1 + 1e-5)).all())

    def test_int8_row_independent_of_neighbours(self, kernel: Int8Kernel) -> None:
        weight, bias = weights(torch.float32, has_bias=True)
        linear = QuantizedLinear(weight, bias, kernel)
        given = random(3, INPUTS, seed=3)
        given[1] *= 1000
        alone = torch.cat([linear(row[None]) for row in given])
        assert torch.allclose(linear(given), alone, rtol=1e-5, atol=1e-5)

    def test_int8_accepts_any_size_on_cpu(self, kernel: Int8Kernel) -> None:
        assert QuantizedLinear(random(7, 5, seed=1), None, kernel)(random(2, 5, seed=2)).shape == (2, 7)


@pytest.mark.parametrize("kind", [PlainLinear, PackedLinear])
def test_linear_accepts_transposed_weights(kind: type[PlainLinear | PackedLinear]) -> None:
    weight = random(INPUTS, OUTPUTS, seed=1).t()
    assert not weight.is_contiguous()
    try:
        linear = kind(weight, None)
    except RuntimeError as error:
        pytest.skip(f"oneDNN has no order for these weights on this CPU: {error}")
    assert max(errors(linear, weight, None, 4)) < 1e-5


@pytest.mark.parametrize(("device", "size", "is_possible"), [("cpu", 5, True), ("meta", 5, True)])
def test_sizes_are_bound_on_cuda_alone(device: str, size: int, is_possible: bool) -> None:
    assert can_quantize(torch.zeros(size, size, device=device)) == is_possible
