"""The norm of Llama equals torch's."""

import pytest
import torch

from frameworks.pytorch.generation.decoders.llama import RootMeanSquareNorm

pytestmark = pytest.mark.isa

# Compared with double precision. Rounding to the dtype adds half a unit in the last place.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (3, 5, 24), (0, 24)])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 200.0])
def test_norm_equals_torch(dtype: torch.dtype, shape: tuple[int, ...], scale: float) -> None:
    numbers = torch.Generator().manual_seed(0)
    states = (torch.randn(shape, generator=numbers) * scale).to(dtype)
    weight = torch.rand(24, generator=numbers).to(dtype) + 0.5
    expected = torch.nn.functional.rms_norm(states.double(), (24,), weight.double(), 1e-5)
    ours = RootMeanSquareNorm(weight, 1e-5)(states)
    assert ours.dtype == dtype
    assert torch.allclose(ours.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_norm_of_zeros_is_zeros() -> None:
    assert not RootMeanSquareNorm(torch.ones(8), 1e-6)(torch.zeros(2, 8)).any()


def test_norm_does_not_change_input() -> None:
    states = torch.ones(2, 8)
    RootMeanSquareNorm(torch.full((8,), 2.0), 1e-6)(states)
    assert torch.equal(states, torch.ones(2, 8))
