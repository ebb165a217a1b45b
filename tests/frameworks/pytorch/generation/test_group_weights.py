"""Rounding to groups, and products of grouped weights, against double precision."""

import pytest
import torch

from frameworks.pytorch.generation.group_linear import make_group_linear
from frameworks.pytorch.generation.group_weights import GroupWeights, round_to_groups

INPUTS, OUTPUTS = 64, 24


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_is_within_half_a_step(bits: int) -> None:
    weight = random(OUTPUTS, INPUTS, seed=1)
    rounded = round_to_groups(weight, bits, 32)
    error = (rounded.dense() - weight).abs().reshape(OUTPUTS, 2, 32).amax(2)
    assert bool((error <= rounded.scale / 2 * (1 + 1e-4)).all())
    assert float(error.max()) > 0
    limit = 1 << bits - 1
    assert -limit <= int(rounded.values.min())
    assert int(rounded.values.max()) < limit


def test_scale_of_other_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="scale: expected"):
        GroupWeights(torch.zeros(2, 64, dtype=torch.int8), torch.ones(2, 3), None, 8, 32)


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("bits", [4, 8])
def test_group_product_matches_double_precision(bits: int, rows: int) -> None:
    weights, bias = round_to_groups(random(OUTPUTS, INPUTS, seed=1), bits, 32), random(OUTPUTS, seed=2)
    given = random(rows, INPUTS, seed=3)
    expected = torch.nn.functional.linear(given.double(), weights.dense(torch.float64), bias.double())
    found = make_group_linear(weights, bias)(given).double()
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5
