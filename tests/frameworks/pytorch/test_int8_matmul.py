"""int8 matmul of every library against exact arithmetic; weights quantized to the range without saturation."""

import pytest
import torch

from frameworks.pytorch.int8_choice import exact_kernels, exact_range
from frameworks.pytorch.int8_matmul import (
    CPU_MATMULS,
    FbgemmMatmul,
    Int8Kernel,
    Int8Matmul,
    OneDnnMatmul,
    TorchMatmul,
    WidenedMatmul,
    quantize_weight,
)
from frameworks.quantization.ranges import HALVED, PAIRED, RANGES, WHOLE, WeightRange

pytestmark = pytest.mark.isa


class ExactMatmul(Int8Matmul):
    """A CPU with VNNI."""

    name = "exact"

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        self.weight, self.scale = weight.double(), scale

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows.double() @ self.weight.t()).float() * self.scale


class SaturatingProduct(ExactMatmul):
    """Adds pairs of products in int16, as x86 without VNNI does: activations are shifted to 0 … 255."""

    name = "saturating"
    first = 0
    """Inputs before the first pair."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        products = (rows.double() + 128)[:, None, :] * self.weight
        products = torch.nn.functional.pad(products, (self.first, (products.shape[-1] + self.first) % 2))
        pairs = products.view(*products.shape[:2], -1, 2).sum(-1).clamp(-(2**15), 2**15 - 1)
        return (pairs.sum(-1) - 128 * self.weight.sum(1)).float() * self.scale


class ShiftedProduct(SaturatingProduct):
    """Pairs the second input with the third."""

    first = 1


class BrokenProduct(ExactMatmul):
    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return super().__call__(rows) + 1


class AbsentProduct(ExactMatmul):
    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        raise RuntimeError("no such operator")


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        (ExactMatmul, WHOLE),
        (SaturatingProduct, PAIRED),
        (ShiftedProduct, HALVED),
        (BrokenProduct, None),
        (AbsentProduct, None),
    ],
)
def test_range_is_most_exact_without_saturation(product: type[Int8Matmul], expected: WeightRange | None) -> None:
    assert exact_range(product) is expected


def random_weight(outputs: int = 51, inputs: int = 45) -> torch.Tensor:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(1))
    weight[3] = 0
    weight[:, 5] *= 9
    return weight


@pytest.mark.parametrize("inputs", [1, 44, 45])
@pytest.mark.parametrize("weight_range", RANGES, ids=lambda each: each.name)
def test_quantized_weights_keep_to_range(weight_range: WeightRange, inputs: int) -> None:
    weight = random_weight(inputs=inputs)[:, :inputs] if inputs > 5 else torch.randn(51, inputs)
    rounded, scale = quantize_weight(weight, weight_range)
    assert rounded.abs().max() <= weight_range.largest
    assert torch.all((rounded * scale[:, None] - weight).abs() <= 0.5001 * scale[:, None])
    if weight_range.largest_pair is not None:
        pairs = torch.nn.functional.pad(rounded.int(), (0, inputs % 2)).view(51, -1, 2)
        assert pairs.clamp(min=0).sum(2).max() <= weight_range.largest_pair
        assert pairs.clamp(max=0).sum(2).min() >= -weight_range.largest_pair


def test_paired_weights_are_more_exact_than_halved() -> None:
    weight = torch.randn(256, 768, generator=torch.Generator().manual_seed(2))
    whole, paired, halved = (
        float((rounded * scale[:, None] - weight).norm() / weight.norm())
        for rounded, scale in (quantize_weight(weight, each) for each in RANGES)
    )
    assert whole < paired < 1.5 * whole
    assert halved > 1.9 * whole


@pytest.mark.parametrize("weight_range", [PAIRED, HALVED], ids=lambda each: each.name)
def test_saturating_matmul_exact_in_limited_range(weight_range: WeightRange) -> None:
    """Rows of the largest values, each with the sign of the weight that it meets."""
    rounded, scale = quantize_weight(random_weight(), weight_range)
    for sign in (1, -1):
        rows = 127.0 * sign * rounded.sign()
        found = SaturatingProduct(rounded, scale)(rows.clone())
        assert torch.equal(found, ExactMatmul(rounded, scale)(rows))


@pytest.mark.parametrize("rows", [0, 1, 7, 64])
@pytest.mark.parametrize("product", CPU_MATMULS, ids=lambda each: each.name)
def test_libraries_give_the_same_bits(product: type[Int8Matmul], rows: int) -> None:
    weight_range = exact_range(product)
    if weight_range is None:
        pytest.skip("torch has no such product on this CPU")
    if not rows and product in (TorchMatmul, OneDnnMatmul):
        pytest.skip("no model multiplies no rows")
    rounded, scale = quantize_weight(random_weight(), HALVED)
    given = torch.randint(-127, 128, (rows, 45), generator=torch.Generator().manual_seed(0)).float()
    expected = (given @ rounded.float().t()) * scale
    assert torch.equal(product(rounded, scale)(given), expected)


def test_every_cpu_has_a_whole_matmul() -> None:
    assert Int8Kernel(WidenedMatmul, WHOLE) in exact_kernels()


def test_large_layers_are_dequantized_in_pieces() -> None:
    weight = torch.randn(700, 800, generator=torch.Generator().manual_seed(3))
    rounded, scale = quantize_weight(weight, WHOLE)
    given = torch.randint(-127, 128, (3, 800), generator=torch.Generator().manual_seed(0)).float()
    expected = (given.double() @ rounded.double().t()).float() * scale
    assert torch.allclose(WidenedMatmul(rounded, scale)(given), expected, rtol=1e-5)


def test_fbgemm_leaves_engine_and_warns_of_nothing() -> None:
    before = torch.backends.quantized.engine
    if exact_range(FbgemmMatmul) is None:
        pytest.skip("torch has no FBGEMM on this CPU")
    Int8Kernel(FbgemmMatmul, HALVED).pack(random_weight())
    assert torch.backends.quantized.engine == before


@pytest.mark.parametrize(("inputs", "held"), [(384, 512), (512, 512), (768, 1024), (2048, 2048)])
def test_fbgemm_bytes_include_padding(inputs: int, held: int) -> None:
    assert held <= FbgemmMatmul.held_bytes(100, inputs) / 100 <= held + 12
