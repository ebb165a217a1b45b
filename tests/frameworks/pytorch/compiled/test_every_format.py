"""GEMM of every format: rows that do not depend on each other, epilogue operations, infinity and NaN."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.nn import functional

from frameworks.pytorch.compiled.matmul.float_linears import FormatName
from tests.frameworks.pytorch.compiled.layers import formats, make, needs_vectors, random, threads

pytestmark = [pytest.mark.isa, needs_vectors]

INPUTS, OUTPUTS = 160, 75
PROMPT_ROWS = 300


# One row is multiplied by four blocks at once: four or eight blocks, the last one broken; and some that are left.
@pytest.mark.parametrize("outputs", [120, 299])
@pytest.mark.parametrize("name", formats())
def test_row_is_same_alone_and_among_others(name: FormatName, outputs: int) -> None:
    linear = make(name, random(outputs, INPUTS, seed=1), random(outputs, seed=2))
    rows = random(PROMPT_ROWS, INPUTS, seed=3)
    alone = torch.cat([linear(row[None]) for row in rows])
    for count in (1, 2):
        with threads(count):
            for number in (*range(1, 41), PROMPT_ROWS):
                assert torch.equal(linear(rows[:number]), alone[:number]), (count, number)


@pytest.mark.parametrize("name", formats())
def test_epilogue_operations_follow_the_gemm(name: FormatName) -> None:
    linear = make(name, random(OUTPUTS, INPUTS, seed=1), random(OUTPUTS, seed=2))
    rows, other = random(7, INPUTS, seed=3), random(7, OUTPUTS, seed=4)
    product = linear(rows)
    torch.testing.assert_close(linear.fused_silu(rows), functional.silu(product), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(linear.fused_mul(rows, other), product * other, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(linear.fused_add(rows, other), product + other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("outputs", [64, OUTPUTS])
@pytest.mark.parametrize("name", formats())
def test_activation_functions_follow_the_gemm(name: FormatName, outputs: int) -> None:
    from frameworks.pytorch.compiled.simd import elementwise

    linear = make(name, random(outputs, INPUTS, seed=1), random(outputs, seed=2))
    functions: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {
        elementwise.GELU: functional.gelu,
        elementwise.GELU_TANH: partial(functional.gelu, approximate="tanh"),
        elementwise.QUICK_GELU: lambda x: x * torch.sigmoid(1.702 * x),
        elementwise.RELU: functional.relu,
    }
    for factor in (0.05, 1.0, 100.0):
        rows = factor * random(7, INPUTS, seed=3)
        product = linear(rows)
        for operation, function in functions.items():
            found = linear.computed(rows, operation)
            assert ((found - function(product)).abs() <= 3e-7 + 3e-6 * product.abs()).all(), operation


def test_activation_functions_keep_nan_and_infinity() -> None:
    from frameworks.pytorch.compiled.simd.elementwise import GELU, RELU

    linear = make("float32", torch.eye(64))
    for operation in (GELU, RELU):
        assert linear.computed(torch.full((1, 64), torch.nan), operation).isnan().all()
    rows = torch.full((2, 1), torch.inf)
    rows[1] = -torch.inf
    one = make("float32", torch.ones(64, 1))
    for operation in (GELU, RELU):
        largest, smallest = one.computed(rows, operation)[:, 0].tolist()
        assert largest == torch.inf
        assert abs(smallest) < torch.finfo(torch.float32).tiny


@pytest.mark.parametrize("name", formats())
def test_bias_is_added_once(name: FormatName) -> None:
    weight, bias, rows = random(OUTPUTS, INPUTS, seed=1), random(OUTPUTS, seed=2), random(5, INPUTS, seed=3)
    found = make(name, weight, bias)(rows) - make(name, weight)(rows)
    torch.testing.assert_close(found, bias.expand(5, -1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", formats())
def test_infinite_row_leaves_others_alone(name: FormatName, number: float) -> None:
    linear = make(name, random(OUTPUTS, INPUTS, seed=1))
    rows = random(6, INPUTS, seed=3)
    expected = linear(rows)
    rows[2, 17] = number
    found = linear(rows)
    assert not found[2].isfinite().any()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(found[others], expected[others])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", formats())
def test_result_has_dtype_of_activations(name: FormatName, dtype: torch.dtype) -> None:
    linear = make(name, random(OUTPUTS, INPUTS, seed=1))
    rows = random(5, INPUTS, seed=3).to(dtype)
    assert torch.equal(linear(rows), linear(rows.float()).to(dtype))


@pytest.mark.parametrize("name", formats())
def test_zero_rows_and_weights_give_zeros(name: FormatName) -> None:
    # The shifts of 4 bits are those of the smallest scale.
    assert make(name, torch.zeros(OUTPUTS, INPUTS))(random(3, INPUTS, seed=1)).abs().max() < 1e-12
    assert not make(name, random(OUTPUTS, INPUTS, seed=1))(torch.zeros(3, INPUTS)).any()


@pytest.mark.parametrize("name", formats())
def test_held_bytes_are_those_of_weights(name: FormatName) -> None:
    from frameworks.pytorch.compiled.matmul.float_linears import compiled_bytes

    linear = make(name, random(OUTPUTS, INPUTS, seed=1))
    assert linear.weights.nbytes == compiled_bytes(name, OUTPUTS, INPUTS)
    assert linear.tile_bytes(5) >= 5 * INPUTS


@pytest.mark.parametrize("name", formats())
def test_small_layers_share_memory(name: FormatName) -> None:
    from frameworks.pytorch.compiled.matmul.linear import join_small

    linears = [make(name, random(OUTPUTS + number, INPUTS, seed=number)) for number in range(5)]
    rows = random(7, INPUTS, seed=7)
    expected = [linear(rows) for linear in linears]
    join_small(linears)
    for linear, own in zip(linears, expected, strict=True):
        assert torch.equal(linear(rows), own)
    starts = [linear.weights.ctypes.data for linear in linears]
    assert [start % 64 for start in starts] == [0] * 5
    assert starts == sorted(starts)
    assert starts[-1] - starts[0] < sum(linear.weights.nbytes + 64 for linear in linears[:-1])


def test_large_layers_keep_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from frameworks.pytorch.compiled.matmul import linear as module

    linears = [make("float32", random(OUTPUTS, INPUTS, seed=number)) for number in range(3)]
    before = [linear.weights.ctypes.data for linear in linears]
    monkeypatch.setattr(module, "has_large_pages", lambda size: True)
    module.join_small(linears)
    assert [linear.weights.ctypes.data for linear in linears] == before
