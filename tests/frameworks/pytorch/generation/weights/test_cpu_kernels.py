"""Every kernel of this CPU against double precision, with its bytes and the weights that it accepts."""

import pytest
import torch

from frameworks.pytorch import kernels
from frameworks.pytorch.compiled.cpu_features import has_integers
from frameworks.pytorch.generation.weights.cpu_kernels import (
    COMPILED_INT4,
    COMPILED_INT8,
    FLOAT16,
    INT4_WEIGHT_ONLY,
    INT8_WEIGHT_ONLY,
    CpuKernel,
    float16_is_exact,
    float_kernels,
    int4_kernels,
    int8_kernels,
)

pytestmark = pytest.mark.isa

# Relative to the largest number of a product of random weights and rows of 96 numbers.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
INT8_TOLERANCE, INT4_TOLERANCE = 0.02, 0.15
INPUTS, OUTPUTS = 96, 80
ROWS = [1, 4, 5, 33]


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def error(kernel: CpuKernel, weight: torch.Tensor, rows: int, *, has_bias: bool) -> float:
    """Return the largest error of the product and of the fused operations, relative to the largest number."""
    bias = random(len(weight), seed=2, dtype=weight.dtype) if has_bias else None
    given, other = random(rows, weight.shape[1], seed=3).to(weight.dtype), random(rows, len(weight), seed=4)
    other = other.to(weight.dtype)
    linear = kernel.make(weight, bias)
    product = torch.nn.functional.linear(given.double(), weight.double(), None if bias is None else bias.double())
    found = [linear(given), linear.fused_silu(given), linear.fused_mul(given, other), linear.fused_add(given, other)]
    expected = [product, torch.nn.functional.silu(product), product * other.double(), product + other.double()]
    assert all(each.dtype == weight.dtype and each.shape == (rows, len(weight)) for each in found)
    pairs = zip(found, expected, strict=True)
    return max(float((ours.double() - each).abs().max() / each.abs().max()) for ours, each in pairs)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float_kernels_match_double_precision(dtype: torch.dtype, has_bias: bool, rows: int) -> None:
    weight = random(OUTPUTS, INPUTS, seed=1).half().to(dtype)
    found = float_kernels(dtype)
    assert "plain" in {each.name for each in found}
    for each in found:
        assert each.fits(weight)
        assert error(each, weight, rows, has_bias=has_bias) < TOLERANCE[dtype], each.name


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_quantized_kernels_are_near(has_bias: bool, rows: int) -> None:
    weight = random(OUTPUTS, INPUTS, seed=1)
    assert "float32" in {each.name for each in int8_kernels()}
    for each in int8_kernels():
        if not each.fits(weight):
            continue
        # Weights of a narrower range have larger steps.
        limit = INT8_TOLERANCE * (1 if each.weights in ("whole", "grouped") else 2)
        assert 1e-6 < error(each, weight, rows, has_bias=has_bias) < limit, each.name
    for each in int4_kernels():
        assert INT8_TOLERANCE < error(each, weight, rows, has_bias=has_bias) < INT4_TOLERANCE


def test_x86_has_every_weight_only_kernel() -> None:
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("no MKL in this build: another architecture")
    assert INT8_WEIGHT_ONLY in int8_kernels()
    assert INT4_WEIGHT_ONLY in int4_kernels()
    assert FLOAT16 in float_kernels(torch.float32)


@pytest.mark.skipif(not has_integers(), reason="nothing is compiled for this CPU")
def test_compiled_kernels_come_first() -> None:
    assert int8_kernels()[0] is COMPILED_INT8
    assert int4_kernels()[0] is COMPILED_INT4
    assert [each.name for each in float_kernels(torch.float32)[:2]] == ["compiled-f16", "compiled"]
    assert float_kernels(torch.bfloat16)[0].name == float_kernels(torch.float16)[0].name == "compiled"


@pytest.mark.parametrize(
    ("weight", "is_exact"),
    [
        (random(8, 8, seed=1).half().float(), True),
        (random(8, 8, seed=1).bfloat16().float(), True),
        (random(8, 8, seed=1), False),
        (torch.tensor([[1e5, 1.0]]), False),
        (torch.tensor([[1.0, 1e-9]]), True),
        (torch.zeros(2, 2), True),
    ],
    ids=["of float16", "of bfloat16", "of float32", "too large", "too small", "zeros"],
)
def test_half_weights_only_where_exact(weight: torch.Tensor, is_exact: bool) -> None:
    assert float16_is_exact(weight) == is_exact


def test_half_bytes_fill_up_blocks() -> None:
    assert FLOAT16.held_bytes(10, 768) == 10 * 1024 * 2


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        (INT8_WEIGHT_ONLY, (7, 45)),
        (INT4_WEIGHT_ONLY, (24, 64)),
        (COMPILED_INT4, (24, 72)),
        (COMPILED_INT8, (24, 72)),
    ],
)
def test_weight_only_kernel_refuses_odd_sizes(kernel: CpuKernel, shape: tuple[int, int]) -> None:
    """torch reads beyond the memory of such weights, or refuses them; ours have whole groups."""
    assert not kernel.fits(torch.zeros(shape))
    assert kernel.fits(torch.zeros(48, 64))


@pytest.mark.parametrize("is_packed", [True, False])
def test_packed_weights_only_where_faster(monkeypatch: pytest.MonkeyPatch, is_packed: bool) -> None:
    monkeypatch.setattr(kernels, "packs", lambda _: is_packed)
    try:
        kernels.pack(torch.ones(64, 64))
    except RuntimeError as missing:
        pytest.skip(f"oneDNN packs nothing here: {missing}")
    assert ("onednn" in {each.name for each in float_kernels(torch.float32)}) == is_packed
