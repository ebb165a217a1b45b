"""Compiled GEMM of int8 and int4 weights against exact integer sums."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from frameworks.pytorch.compiled.cpu_features import has_vnni
from frameworks.pytorch.generation.weights.compiled_linears import make_groups, packs_groups
from frameworks.pytorch.generation.weights.group_weights import GroupWeights, quantize_groups
from frameworks.pytorch.int8_matmul import quantize_activations, quantize_weight
from frameworks.quantization.ranges import LARGEST_INT8, WHOLE
from tests.frameworks.pytorch.compiled.layers import make, needs_integers, random

pytestmark = [pytest.mark.isa, needs_integers]

EXAMPLES = 25
# Of the largest number of a row's products. Scales are exact in float16, so float32 sums of the groups are all.
EXACT_SCALES = 1e-5
# Scales and shifts are rounded to float16.
ROUNDED_SCALES = 1e-3


def int8_reference(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    values, scale = quantize_weight(weight, WHOLE)
    whole, row_scale = quantize_activations(rows)
    sums = whole.long() @ values.long().T
    return sums.float() * scale * row_scale


def group_reference(rows: torch.Tensor, weights: GroupWeights) -> torch.Tensor:
    """Return the matmul of activations that are quantized in groups of 32, in float64."""
    groups = rows.reshape(-1, 32)
    largest = groups.abs().amax(1, keepdim=True)
    if weights.bits == 8 and not has_vnni():
        largest = torch.maximum(largest, groups.reshape(-1, 16, 2).sum(2).abs().amax(1, keepdim=True))
    scale = (largest / LARGEST_INT8).clamp(min=1e-12)
    # As the compiled code divides: by the product with 1 / scale, in float32.
    rounded = ((groups * (1 / scale)).round().double() * scale.double()).reshape(rows.shape)
    values = weights.values.reshape(weights.outputs, -1, weights.group).double() * weights.scale.double()[..., None]
    if weights.shift is not None:
        values += weights.shift.double()[..., None]
    return rounded @ values.reshape(weights.outputs, -1).T


@given(outputs=st.integers(1, 100), inputs=st.integers(1, 130), rows=st.integers(1, 40))
@example(outputs=33, inputs=2049, rows=300)
@settings(max_examples=EXAMPLES)
def test_int8_has_exact_bits(outputs: int, inputs: int, rows: int) -> None:
    weight, given = random(outputs, inputs, seed=1), random(rows, inputs, seed=2)
    assert torch.equal(make("int8", weight)(given), int8_reference(given, weight))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_int8_sums_of_largest_values_are_exact(sign: float) -> None:
    """Unsigned weights of this many inputs have a sum of more than 31 bits, that the zero point takes back."""
    inputs = 70_001
    weight = torch.ones(2, inputs)
    weight[1] = -1
    given = torch.full((3, inputs), sign)
    assert torch.equal(make("int8", weight)(given), int8_reference(given, weight))


@pytest.mark.parametrize("bits", [4, 8])
@given(outputs=st.integers(1, 100), groups=st.integers(1, 4), wide=st.integers(1, 4), rows=st.integers(1, 40))
@example(outputs=33, groups=16, wide=4, rows=300)
@settings(max_examples=EXAMPLES)
def test_groups_keep_their_values(bits: int, outputs: int, groups: int, wide: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    least, above = (-8, 8) if bits == 4 else (-128, 128)
    values = torch.randint(least, above, (outputs, groups * wide * 32), generator=generator, dtype=torch.int8)
    scale = random(outputs, groups, seed=3).abs().half().float() + 2.0**-8
    weights = GroupWeights(values, scale.half(), None, bits, 32 * wide)
    assert packs_groups(weights)
    given = random(rows, values.shape[1], seed=2)
    found, expected = make_groups(weights, None)(given).double(), group_reference(given, weights)
    largest = expected.abs().amax(1, keepdim=True)
    assert ((found - expected).abs() <= EXACT_SCALES * largest.clamp(min=1)).all()


@given(outputs=st.integers(1, 70), groups=st.integers(1, 6), rows=st.integers(1, 20), magnitude=st.integers(-30, 30))
@settings(max_examples=EXAMPLES)
def test_int4_has_shifts_of_any_size(outputs: int, groups: int, rows: int, magnitude: int) -> None:
    weights = quantize_groups(2.0**magnitude * (random(outputs, 32 * groups, seed=1) + 1), 4, 32)
    assert weights.shift is not None
    given = random(rows, 32 * groups, seed=2)
    found, expected = make_groups(weights, None)(given).double(), group_reference(given, weights)
    limit = ROUNDED_SCALES * (given.double().abs() @ weights.dense(torch.float64).abs().T)
    assert ((found - expected).abs() <= limit).all()


@pytest.mark.parametrize("value", [-8, 7])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_int4_sums_of_largest_values_are_exact(value: int, sign: float) -> None:
    values = torch.full((5, 2048), value, dtype=torch.int8)
    weights = GroupWeights(values, torch.ones(5, 64), None, 4, 32)
    found = make_groups(weights, None)(torch.full((9, 2048), sign * 127))
    assert torch.equal(found, torch.full((9, 5), sign * 127 * value * 2048.0))


@pytest.mark.parametrize("value", [-128, 127])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("pair", [(127.0, 0.0), (127.0, -127.0), (63.5, 63.5)])
def test_int8_groups_of_largest_values_are_exact(value: int, sign: float, pair: tuple[float, float]) -> None:
    """Both values of the last pair are quantized to 64, where a CPU adds pairs in int16."""
    values = torch.full((5, 2048), value, dtype=torch.int8)
    weights = GroupWeights(values, torch.ones(5, 64), None, 8, 32)
    given = sign * torch.tensor(pair).repeat(9, 1024)
    assert torch.equal(make_groups(weights, None)(given).double(), group_reference(given, weights))


def test_groups_quantize_activations_apart() -> None:
    """An outlier takes the precision of its own group alone."""
    # The scale of these weights is exact in float16.
    weight = torch.full((3, 64), 127 / 128)
    given = torch.zeros(1, 64)
    given[0, 0:32:2] = 0.01
    given[0, 40] = 1000.0
    found = make("int8_groups", weight)(given)
    assert found[0, 0].item() == pytest.approx((1000 + 16 * 0.01) * 127 / 128, abs=1e-3)


@pytest.mark.parametrize(("bits", "group", "has_shift"), [(8, 32, True), (4, 16, False), (8, 16, False)])
def test_other_groups_are_not_packed(bits: int, group: int, has_shift: bool) -> None:
    scale = torch.ones(4, 64 // group)
    weights = GroupWeights(torch.zeros(4, 64, dtype=torch.int8), scale, scale if has_shift else None, bits, group)
    assert not packs_groups(weights)
