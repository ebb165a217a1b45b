"""Compiled GEMM of float weights against float64."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from frameworks.pytorch.compiled.matmul.float_linears import FormatName, compiled_bytes
from tests.frameworks.pytorch.compiled.layers import DTYPES, FLOATS, make, needs_vectors, random

pytestmark = [pytest.mark.isa, needs_vectors]

# Of the sum of the products' magnitudes: float32 sums of a chunk of 512, and of pairs whose sum is rounded once more.
TOLERANCE = 2e-6
EXAMPLES = 25


@pytest.mark.parametrize("name", FLOATS)
@given(outputs=st.integers(1, 100), inputs=st.integers(1, 130), rows=st.integers(1, 40))
@example(outputs=33, inputs=2049, rows=300)
@example(outputs=1, inputs=1, rows=1)
@settings(max_examples=EXAMPLES)
def test_gemm_equals_float64(name: FormatName, outputs: int, inputs: int, rows: int) -> None:
    weight = random(outputs, inputs, seed=1).to(DTYPES[name])
    # Rows of bfloat16 are what a model of bfloat16 has; others would be rounded where the CPU multiplies pairs.
    given = random(rows, inputs, seed=2).to(torch.bfloat16 if name == "bfloat16" else torch.float32).float()
    found = make(name, weight)(given).double()
    expected = given.double() @ weight.double().T
    magnitudes = given.double().abs() @ weight.double().abs().T
    assert found.shape == (rows, outputs)
    assert ((found - expected).abs() <= TOLERANCE * magnitudes).all()


@pytest.mark.parametrize("name", FLOATS)
def test_weights_are_held_in_their_width(name: FormatName) -> None:
    width = 3 * torch.bfloat16.itemsize if name == "float32_bfloat16x3" else DTYPES[name].itemsize
    assert compiled_bytes(name, 96, 64) == 96 * 64 * width


def test_float16_holds_subnormal_and_largest_weights() -> None:
    weight = torch.tensor([[6e-8, 65504.0], [-65504.0, 6.1e-5]]).half()
    found = make("float16", weight)(torch.eye(2))
    assert torch.equal(found, weight.float().T)


@pytest.mark.parametrize("name", FLOATS)
def test_large_values_become_infinite_alone(name: FormatName) -> None:
    weight = torch.tensor([[3e4, 1.0], [1.0, 1.0]])
    found = make(name, weight)(torch.tensor([[3e38, 1.0]]))
    # The parts of a float32 may overflow with both signs.
    assert found[0, 0] == torch.inf or (name == "float32_bfloat16x3" and found[0, 0].isnan())
    assert found[0, 1].isfinite()


def test_bfloat16_activations_round_to_nearest_even() -> None:
    rows = torch.tensor([[1.00390625, 1.01171875, -1.00390626, 3.1415927, 1e-30]])
    found = make("bfloat16", torch.eye(5))(rows)
    nearest = rows.bfloat16().float()
    # Widened weights multiply rows as they are.
    assert torch.equal(found, nearest) or torch.equal(found, rows)
