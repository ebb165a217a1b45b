"""int8 weights in groups of inputs for a GEMM by AMX, which multiplies bfloat16.

A block of weights is dequantized once for all rows of a GEMM.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.amx.amx_gemm import StoredWeights, amx_format
from frameworks.pytorch.compiled.amx.amx_registers import INPUTS, STEP_BYTES
from frameworks.pytorch.compiled.jit import llvm_function
from frameworks.pytorch.compiled.matmul.bfloat16_activations import store_bfloat16_vector
from frameworks.pytorch.compiled.matmul.packing import Floats, Integers, blocks_of, empty_buffer
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK, BYTES, PARTS, VECTORS, at, int64, load
from frameworks.pytorch.large_pages import Bytes

_SCALE_BYTES = 4 * BLOCK
_STORED_BYTES = _SCALE_BYTES + INPUTS * BLOCK
"""Of a block for a step: a float32 scale of each output, then int8 [pairs of inputs, outputs, 2]."""
_PAIR_BYTES = 2 * VECTORS.lanes
"""Of a pair of inputs for a vector of outputs."""


@llvm_function
def _dequantize(_context: Any, _weights: Any, _target: Any, _steps: Any) -> Any:
    """(addresses of the weights and of the target, steps) → nothing; writes bfloat16, in the same order."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        weights, target = (builder.inttoptr(each, BYTES) for each in arguments[:2])
        with cgutils.for_range_slice(builder, int64(0), arguments[2], int64(1)) as (step, _):
            source = builder.gep(weights, [builder.mul(step, int64(_STORED_BYTES))])
            _dequantize_step(builder, source, builder.gep(target, [builder.mul(step, int64(STEP_BYTES))]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), write


def _dequantize_step(builder: Any, source: Any, target: Any) -> None:
    lanes = VECTORS.lanes
    twice = ir.Constant(ir.VectorType(ir.IntType(32), 2 * lanes), [lane // 2 for lane in range(2 * lanes)])
    integers = ir.VectorType(ir.IntType(8), 2 * lanes)
    scales = []
    for part in PARTS:
        of_outputs = load(builder, at(builder, source, 4 * lanes * part), VECTORS.floats)
        scales.append(builder.shuffle_vector(of_outputs, of_outputs, twice))
    for pair in range(INPUTS // 2):
        for part in PARTS:
            offset = (len(PARTS) * pair + part) * _PAIR_BYTES
            values = load(builder, at(builder, source, _SCALE_BYTES + offset), integers)
            floats = builder.sitofp(values, ir.VectorType(ir.FloatType(), 2 * lanes))
            store_bfloat16_vector(builder, builder.fmul(floats, scales[part]), at(builder, target, 2 * offset))


STORED = StoredWeights(_STORED_BYTES, _dequantize)
FORMAT = amx_format("int8 dequantized to bfloat16", _STORED_BYTES)


def pack(values: Integers, scale: Floats, group: int) -> Bytes:
    """Return packed weights. `values`: int8 [outputs, inputs], whole steps of inputs. `scale`: float32 [outputs, inputs
    // group]. `group`: a multiple of INPUTS.
    """
    outputs, inputs = values.shape
    buffer = empty_buffer(FORMAT, outputs, inputs)
    steps = buffer.reshape(-1, inputs // INPUTS, _STORED_BYTES)
    for index, block in blocks_of(np.repeat(scale, group // INPUTS, 1)):
        steps[index, :, :_SCALE_BYTES] = np.ascontiguousarray(block.T, np.float32).view(np.uint8)
    for index, block in blocks_of(values):
        ordered = block.reshape(BLOCK, -1, INPUTS // 2, 2).transpose(1, 2, 0, 3)
        steps[index, :, _SCALE_BYTES:] = np.ascontiguousarray(ordered).view(np.uint8).reshape(len(ordered), -1)
    return buffer
