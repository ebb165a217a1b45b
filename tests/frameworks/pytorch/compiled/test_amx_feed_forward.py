"""The fused feed-forward block equals its GEMMs one after the other, by AMX or NumPy in its place."""

from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import types

from frameworks.pytorch.compiled.cpu_features import lanes
from frameworks.pytorch.compiled.matmul.formats import PackedFormat
from frameworks.pytorch.compiled.matmul.linear import CompiledLinear
from tests.frameworks.pytorch.compiled.layers import random, threads
from tests.support.amx_tiles import AmxTiles

LANES = 16

pytestmark = [
    pytest.mark.skipif(lanes() != LANES, reason="no CPU with AMX has shorter vectors"),
    pytest.mark.extended,
]


class Compiled(NamedTuple):
    packed: PackedFormat
    together: Any
    tiles: AmxTiles


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    from frameworks.pytorch.compiled.amx import amx_feed_forward, amx_gemm, amx_registers
    from frameworks.pytorch.compiled.dtypes.bfloat16 import pack
    from frameworks.pytorch.compiled.matmul.gemm import region

    format_, tiles = amx_gemm.FORMAT, AmxTiles()
    run = region(format_, amx_gemm.amx_activation_packer(format_), amx_gemm.amx_matmul_loops())
    feed_forward = amx_feed_forward.feed_forward

    def product(arguments: Any) -> None:
        run(arguments)

    def together(arguments: Any) -> None:
        feed_forward(arguments)

    signature = types.void(types.CPointer(types.int64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(amx_registers, "function", tiles.function)
        made = [numba.cfunc(signature, error_model="numpy")(each) for each in (product, together)]
    packed = PackedFormat(format_, made[0].address, lambda weight: pack(weight, format_))
    return Compiled(packed, made[1], tiles)


def layer(compiled: Compiled, outputs: int, inputs: int, seed: int, *, has_bias: bool) -> CompiledLinear:
    packed = compiled.packed.pack(random(outputs, inputs, seed=seed).numpy())
    bias = random(outputs, seed=seed + 1) if has_bias else None
    return CompiledLinear(packed, (outputs, inputs), bias, compiled.packed)


def computed_together(
    compiled: Compiled, layers: list[CompiledLinear], rows: torch.Tensor, states: torch.Tensor
) -> torch.Tensor:
    from frameworks.pytorch.compiled.matmul.gemm import NUM_ARGUMENTS, OPERATION, OTHER, OUT, ROWS, TILES, X
    from frameworks.pytorch.compiled.matmul.gemm_table import GEMM_COLUMNS
    from frameworks.pytorch.compiled.simd.elementwise import ADD

    gate, _, down = layers
    table = np.zeros((3, GEMM_COLUMNS), dtype=np.int64)
    for own, each in zip(table, layers, strict=True):
        own[:NUM_ARGUMENTS] = each.arguments
        own[ROWS] = len(rows)
    found = states.clone()
    ordered = torch.zeros(gate.tile_bytes(len(rows)), dtype=torch.uint8)
    middle = torch.zeros(len(rows) + 16, down.inputs + 32)
    table[0, X], table[0, TILES], table[0, OUT] = rows.data_ptr(), ordered.data_ptr(), middle.data_ptr()
    table[2, OUT] = table[2, OTHER] = found.data_ptr()
    table[2, OPERATION] = ADD
    compiled.together.ctypes(table.ctypes.data_as(compiled.together.ctypes.argtypes[0]))
    return found


@given(hidden=st.integers(1, 100), middle=st.integers(1, 130), rows=st.integers(1, 70), has_bias=st.booleans())
@example(hidden=64, middle=64, rows=32, has_bias=False)
@example(hidden=40, middle=1100, rows=300, has_bias=True)
@settings(max_examples=10)
def test_fused_feed_forward_equals_separate_gemms(
    compiled: Compiled, hidden: int, middle: int, rows: int, has_bias: bool
) -> None:
    sizes = ((middle, hidden), (middle, hidden), (hidden, middle))
    layers = [layer(compiled, *size, 3 * seed, has_bias=has_bias) for seed, size in enumerate(sizes)]
    given, states = random(rows, hidden, seed=11), random(rows, hidden, seed=12)
    gate, up, down = layers
    with threads(1):
        expected = down.fused_add(up.fused_mul(given, gate.fused_silu(given)), states)
    assert torch.equal(computed_together(compiled, layers, given, states), expected)
    assert not compiled.tiles.errors
    assert not compiled.tiles.is_configured
