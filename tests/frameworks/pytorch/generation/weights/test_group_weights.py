"""Rounding to groups, and products of grouped weights, against double precision."""

import pytest
import torch

from frameworks.pytorch.compiled.matmul.float_linears import compiles
from frameworks.pytorch.generation.weights import group_linear
from frameworks.pytorch.generation.weights.cpu_kernels import int4_kernels, int8_kernels
from frameworks.pytorch.generation.weights.group_linear import (
    DeferredGroupLinear,
    DequantizingLinear,
    make_group_linear,
    quantizing_kernels,
)
from frameworks.pytorch.generation.weights.group_weights import GroupWeights, NibbleWeights, quantize_groups
from frameworks.pytorch.generation.weights.linear import PlainLinear
from frameworks.pytorch.generation.weights.packed.modules import JoinedLinear, ReorderedLinear, replaced

pytestmark = pytest.mark.isa

INPUTS, OUTPUTS = 64, 24


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_eight_bits_within_half_a_step() -> None:
    weight = random(OUTPUTS, INPUTS, seed=1)
    rounded = quantize_groups(weight, 8, 32)
    error = (rounded.dense() - weight).abs().reshape(OUTPUTS, 2, 32).amax(2)
    assert bool((error <= rounded.scale / 2 * (1 + 1e-4)).all())
    assert float(error.max()) > 0
    assert int(rounded.values.abs().max()) == 127


def squared_errors(weight: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    return (dense - weight).square().reshape(OUTPUTS, 2, 32).sum(2)


def test_four_bits_better_than_whole_range() -> None:
    """Against steps that are spread from the least to the largest number of each group, a reference of its own."""
    weight = random(OUTPUTS, INPUTS, seed=1)
    groups = weight.reshape(OUTPUTS, 2, 32)
    least, step = groups.amin(2, keepdim=True), (groups.amax(2, keepdim=True) - groups.amin(2, keepdim=True)) / 15
    spread = (((groups - least) / step).round() * step + least).reshape(OUTPUTS, INPUTS)
    rounded = quantize_groups(weight, 4, 32)
    assert (int(rounded.values.min()), int(rounded.values.max())) == (-8, 7)
    ours = squared_errors(weight, rounded.dense())
    assert float(ours.min()) > 0
    assert float(ours.sum()) < 0.95 * float(squared_errors(weight, spread).sum())


def test_int4_keeps_sixteen_values_exactly() -> None:
    steps = torch.arange(16.0).repeat(OUTPUTS, INPUTS // 16) * 0.25 - 1.5
    assert torch.allclose(quantize_groups(steps, 4, 32).dense(), steps, atol=0.06)


def test_equal_weights_are_kept() -> None:
    constant = torch.full((OUTPUTS, INPUTS), 0.3)
    assert torch.allclose(quantize_groups(constant, 4, 32).dense(), constant, atol=1e-6)


def test_nibbles_keep_values_of_parts() -> None:
    rounded = quantize_groups(random(OUTPUTS, INPUTS, seed=1), 4, 32)
    nibbles, part = NibbleWeights.of(rounded), slice(3, 7)
    assert nibbles.nibbles.nbytes == OUTPUTS * INPUTS // 2
    assert torch.equal(nibbles.whole().values, rounded.values)
    assert torch.equal(nibbles.part(part).dense(), rounded.dense()[part])


@pytest.mark.skipif(not compiles("int8"), reason="no products are compiled for this CPU")
@pytest.mark.parametrize("inputs", [96, 70])
@pytest.mark.parametrize(("bits", "tolerance"), [(8, 0.02), (4, 0.2)])
def test_quantized_linear_equals_compiled(bits: int, tolerance: float, inputs: int) -> None:
    """The same whole numbers of weights and of rows: sums alone differ."""
    weight, rows = random(OUTPUTS, inputs, seed=1), random(9, inputs, seed=2)
    bias = random(OUTPUTS, seed=3)
    rows[::2, 0] *= 30
    found = [each for each in quantizing_kernels(bits) if each.fits(weight)]
    if bits == 4 and inputs % 32:
        assert not found
        return
    compiled = next(each for each in (int8_kernels() if bits == 8 else int4_kernels()) if each.fits(weight))
    ours, expected = found[0].make(weight, bias)(rows), compiled.make(weight, bias)(rows)
    exact = torch.nn.functional.linear(rows.double(), weight.double(), bias.double())
    assert float((ours - expected).norm() / exact.norm()) < 1e-5
    assert float((ours - exact).norm() / exact.norm()) < tolerance
    assert compiled.weights == found[0].weights


def test_scale_of_other_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="scale: expected"):
        GroupWeights(torch.zeros(2, 64, dtype=torch.int8), torch.ones(2, 3), None, 8, 32)


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize(
    ("bits", "group", "outputs"), [(4, 32, 48), (4, 64, 48), (4, 16, 48), (4, 32, 24), (8, 32, 48)]
)
def test_group_matmul_near_double_precision(bits: int, group: int, outputs: int, rows: int) -> None:
    """Rows and scales are rounded to bfloat16, and where torch has no product of the groups, weights to 8 bits."""
    weights, bias = quantize_groups(random(outputs, INPUTS, seed=1), bits, group), random(outputs, seed=2)
    given = random(rows, INPUTS, seed=3)
    expected = torch.nn.functional.linear(given.double(), weights.dense(torch.float64), bias.double())
    found = make_group_linear(weights, bias)(given).double()
    assert float((found - expected).abs().max() / expected.abs().max()) < 0.02


@pytest.mark.parametrize("elements", [1 << 18, 5 * INPUTS])
def test_dequantized_groups_match_double_precision(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    monkeypatch.setattr(group_linear, "_PIECE_ELEMENTS", elements)
    weights, bias = quantize_groups(random(OUTPUTS, INPUTS, seed=1), 4, 32), random(OUTPUTS, seed=2)
    given = random(3, INPUTS, seed=3)
    expected = torch.nn.functional.linear(given.double(), weights.dense(torch.float64), bias.double())
    found = DequantizingLinear(weights, bias)(given).double()
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("bits", "group", "outputs"), [(4, 32, 48), (4, 16, 48), (4, 32, 24), (8, 32, 48), (8, 16, 48)]
)
def test_deferred_linear_returns_its_weights(bits: int, group: int, outputs: int) -> None:
    weights, bias = quantize_groups(random(outputs, INPUTS, seed=1), bits, group), random(outputs, seed=2)
    linear = DeferredGroupLinear(lambda: weights, bias)
    given = random(3, INPUTS, seed=3)
    expected = torch.nn.functional.linear(given.double(), weights.dense(torch.float64), bias.double())
    assert float((linear(given).double() - expected).abs().max() / expected.abs().max()) < 0.02
    assert torch.equal(linear.groups().dense(), weights.dense())
    assert linear.held_bytes >= outputs * INPUTS * bits // 8


def test_joined_and_reordered_linears_are_replaced() -> None:
    first, second, third = (PlainLinear(random(4, INPUTS, seed=seed)) for seed in range(3))
    order = torch.arange(INPUTS).flip(0)
    whole = JoinedLinear([first, ReorderedLinear(second, order)])
    given = random(3, INPUTS, seed=3)
    assert replaced(whole, lambda each: each) is whole
    changed = replaced(whole, lambda each: third if each is second else each)
    assert torch.equal(changed(given)[:, :4], first(given))
    assert torch.equal(changed(given)[:, 4:], third(given.flip(1)))
