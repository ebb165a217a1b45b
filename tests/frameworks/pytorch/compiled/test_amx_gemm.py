"""GEMM by AMX on any CPU with vectors of 512 bits: NumPy computes what the instructions would."""

from collections.abc import Callable, Iterator
from typing import Any

import numba
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import types

from frameworks.pytorch.compiled.amx import amx_gemm, amx_int8_weights, amx_registers
from frameworks.pytorch.compiled.cpu_features import lanes
from frameworks.pytorch.compiled.matmul.formats import Format, PackedFormat
from frameworks.pytorch.compiled.matmul.gemm import (
    BLOCK_BYTES,
    NUM_ARGUMENTS,
    OPERATION,
    OTHER,
    OUT,
    ROWS,
    TILES,
    X,
    region,
)
from frameworks.pytorch.compiled.matmul.linear import CompiledLinear
from frameworks.pytorch.compiled.parallel import NUM_RESERVED, Region
from frameworks.pytorch.compiled.simd.elementwise import ADD
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK
from frameworks.pytorch.generation.weights.group_weights import quantize_groups
from tests.frameworks.pytorch.compiled.layers import random, threads
from tests.support.amx_tiles import AmxTiles

# As in test_float_gemm.
TOLERANCE = 2e-6
LANES = 16

pytestmark = pytest.mark.skipif(lanes() != LANES, reason="no CPU with AMX has shorter vectors")


@pytest.fixture(scope="module")
def tiles() -> AmxTiles:
    return AmxTiles()


def made(
    tiles: AmxTiles, format_: Format, stored: amx_gemm.StoredWeights, pack: Callable[..., Any]
) -> Iterator[PackedFormat]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(amx_registers, "function", tiles.function)
        run = region(format_, amx_gemm.amx_activation_packer(format_), amx_gemm.amx_matmul_loops(stored))

        def product(arguments: Any) -> None:
            run(arguments)

        function = numba.cfunc(types.void(types.CPointer(types.int64)), error_model="numpy")(product)
    yield PackedFormat(format_, function.address, pack)


@pytest.fixture(scope="module")
def packed(tiles: AmxTiles) -> Iterator[PackedFormat]:
    from frameworks.pytorch.compiled.dtypes.bfloat16 import pack

    yield from made(tiles, amx_gemm.FORMAT, amx_gemm.BFLOAT16, lambda weight: pack(weight, amx_gemm.FORMAT))


@pytest.fixture(scope="module")
def quantized(tiles: AmxTiles) -> Iterator[PackedFormat]:
    yield from made(tiles, amx_int8_weights.FORMAT, amx_int8_weights.STORED, amx_int8_weights.pack)


def multiplied(packed: PackedFormat, weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    outputs, inputs = weight.shape
    linear = CompiledLinear(packed.pack(weight.numpy()), (outputs, inputs), None, packed)
    with threads(1):
        return linear(rows)


@pytest.mark.extended
@given(outputs=st.integers(1, 100), inputs=st.integers(1, 130), rows=st.integers(1, 70))
@example(outputs=33, inputs=65, rows=300)
@example(outputs=1, inputs=1, rows=1)
@settings(max_examples=15)
def test_gemm_equals_float64(packed: PackedFormat, tiles: AmxTiles, outputs: int, inputs: int, rows: int) -> None:
    weight, given = (
        random(*shape, seed=seed).bfloat16() for shape, seed in (((outputs, inputs), 1), ((rows, inputs), 2))
    )
    found = multiplied(packed, weight.float(), given.float()).double()
    expected = given.double() @ weight.double().T
    magnitudes = given.double().abs() @ weight.double().abs().T
    assert found.shape == (rows, outputs)
    assert ((found - expected).abs() <= TOLERANCE * magnitudes).all()
    assert not tiles.errors
    assert not tiles.is_configured


def in_blocks(packed: PackedFormat, weight: torch.Tensor, rows: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Return the states [rows, outputs] plus the GEMM, computed in blocks."""
    outputs, inputs = weight.shape
    linear = CompiledLinear(packed.pack(weight.numpy()), (outputs, inputs), None, packed)
    own = Region(packed.address, NUM_ARGUMENTS - NUM_RESERVED)
    own.arguments[:] = linear.arguments
    count, whole = len(rows), -(-len(rows) // amx_registers.ROWS) * amx_registers.ROWS + 1
    blocks = torch.full((outputs // BLOCK, whole, BLOCK), torch.nan)
    blocks[:, :count] = states.view(count, -1, BLOCK).transpose(0, 1)
    tiles = torch.empty(linear.tile_bytes(count), dtype=torch.uint8)
    own.arguments[[ROWS, X, TILES, OUT]] = count, rows.data_ptr(), tiles.data_ptr(), blocks.data_ptr()
    own.arguments[[BLOCK_BYTES, OPERATION, OTHER]] = 4 * whole * BLOCK, ADD, blocks.data_ptr()
    own.run(1)
    assert blocks[:, -1].isnan().all()
    return blocks[:, :count].transpose(0, 1).reshape(count, outputs)


@pytest.mark.extended
@given(blocks=st.integers(1, 3), inputs=st.integers(1, 600), rows=st.integers(1, 70))
@example(blocks=2, inputs=1100, rows=530)
@settings(max_examples=10)
def test_gemm_in_blocks_is_added_to_states(
    packed: PackedFormat, tiles: AmxTiles, blocks: int, inputs: int, rows: int
) -> None:
    weight, given = (
        random(*shape, seed=seed).bfloat16() for shape, seed in (((BLOCK * blocks, inputs), 1), ((rows, inputs), 2))
    )
    states = random(rows, BLOCK * blocks, seed=3)
    found = in_blocks(packed, weight.float(), given.float(), states).double()
    expected = states.double() + given.double() @ weight.double().T
    magnitudes = states.double().abs() + given.double().abs() @ weight.double().abs().T
    assert ((found - expected).abs() <= TOLERANCE * magnitudes).all()
    assert not tiles.errors


def test_row_is_rounded_to_nearest_even(packed: PackedFormat) -> None:
    row = torch.tensor([[1.00390625, 1.01171875, -1.00390626, 3.1415927, 1e-30]])
    assert torch.equal(multiplied(packed, torch.eye(5), row), row.bfloat16().float())


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_infinite_row_leaves_others_alone(packed: PackedFormat, number: float) -> None:
    weight, rows = random(40, 64, seed=1), random(20, 64, seed=2)
    expected = multiplied(packed, weight, rows)
    rows[2, 17] = number
    found = multiplied(packed, weight, rows)
    assert not found[2].isfinite().any()
    assert torch.equal(torch.cat([found[:2], found[3:]]), torch.cat([expected[:2], expected[3:]]))


@pytest.mark.extended
@given(outputs=st.integers(1, 100), groups=st.integers(1, 4), rows=st.integers(1, 70), each=st.sampled_from([32, 64]))
@example(outputs=33, groups=19, rows=300, each=32)
@settings(max_examples=15)
def test_quantized_gemm_equals_float64(
    quantized: PackedFormat, tiles: AmxTiles, outputs: int, groups: int, rows: int, each: int
) -> None:
    given = random(rows, groups * each, seed=2).bfloat16()
    weights = quantize_groups(random(outputs, groups * each, seed=1), 8, each)
    buffer = quantized.pack(weights.values.numpy(), weights.scale.float().numpy(), each)
    with threads(1):
        found = CompiledLinear(buffer, (outputs, groups * each), None, quantized)(given.float()).double()
    dense = weights.dense().bfloat16().double()
    magnitudes = given.double().abs() @ dense.abs().T
    assert ((found - given.double() @ dense.T).abs() <= TOLERANCE * magnitudes).all()
    assert buffer.nbytes == quantized.format.held_bytes(outputs, groups * each)
    assert not tiles.errors


def test_weights_take_whole_steps(packed: PackedFormat) -> None:
    assert packed.pack(random(33, 33, seed=1).numpy()).nbytes == packed.format.held_bytes(33, 33) == 64 * 64 * 2
