"""The GEMMs of LoRA adapters (Hu et al. 2021) beside those of the base: x · A, then · B, for the tokens of each
adapter.

The results are written beside the base's GEMM, whose epilogue adds them. So tokens of several adapters and of the base
share one GEMM of the base. A token's result does not depend on the tokens beside it.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from llvmlite import ir

from frameworks.pytorch.compiled.jit import address_of, compiled, inlined_early, pointer_to_floats, pointer_to_integers
from frameworks.pytorch.compiled.matmul.float_tiles import Shape, float_tile, widening_step
from frameworks.pytorch.compiled.matmul.gemm import DELTAS, INPUTS, OUTPUTS, X
from frameworks.pytorch.compiled.matmul.gemm_table import (
    A_COLUMNS,
    ADAPTER,
    COLUMNS_AT_ONCE,
    END_ROW,
    FIRST_COLUMN,
    FIRST_ROW,
    GEMM,
    GEMM_COLUMNS,
    GEMM_FIELDS,
    LOW,
    LOW_COLUMNS,
    LOW_ROWS,
    NUM_COLUMNS,
    NUM_FUSED,
    NUM_RUNS,
    PIECE_FIELDS,
    PIECES,
    RUN_FIELDS,
    RUNS,
    A,
    B,
)
from frameworks.pytorch.compiled.parallel import barrier, num_threads, thread_number
from frameworks.pytorch.compiled.simd.float_dtypes import load_bfloat16, load_float16, load_float32
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK, PARTS, VECTORS, at, load

_ZERO = np.float32(0)
_HALF_BITS = 16


def _load_16_bits(builder: Any, w: Any, kind: Any) -> list[Any]:
    vector = ir.VectorType(kind, VECTORS.lanes)
    return [load(builder, at(builder, w, 2 * VECTORS.lanes * part), vector) for part in PARTS]


def _load_float32(builder: Any, w: Any) -> list[list[Any]]:
    return [[load(builder, at(builder, w, 4 * VECTORS.lanes * part), VECTORS.floats) for part in PARTS]]


def _load_bfloat16(builder: Any, w: Any) -> list[list[Any]]:
    kind = VECTORS.integers(32)
    shift = ir.Constant(kind, [_HALF_BITS] * VECTORS.lanes)
    wide = [builder.shl(builder.zext(each, kind), shift) for each in _load_16_bits(builder, w, ir.IntType(16))]
    return [[builder.bitcast(each, VECTORS.floats) for each in wide]]


def _load_float16(builder: Any, w: Any) -> list[list[Any]]:
    return [[builder.fpext(each, VECTORS.floats) for each in _load_16_bits(builder, w, ir.HalfType())]]


def _dot_products(load_element: Any, width: int) -> Any:
    @compiled
    def dot_products(x: int, a: int, out: int, inputs: int) -> None:
        """Write the dot products of a row, float32 [inputs], and COLUMNS_AT_ONCE columns of A."""
        row, target = pointer_to_floats(x), pointer_to_floats(out)
        second, third, fourth = a + width * inputs, a + 2 * width * inputs, a + 3 * width * inputs
        sum0, sum1, sum2, sum3 = _ZERO, _ZERO, _ZERO, _ZERO
        for position in range(inputs):
            own = row[position]
            sum0 += own * load_element(a, position)
            sum1 += own * load_element(second, position)
            sum2 += own * load_element(third, position)
            sum3 += own * load_element(fourth, position)
        target[0], target[1], target[2], target[3] = sum0, sum1, sum2, sum3

    return dot_products


def _matmul_a(load_element: Any, width: int) -> Any:
    dot_products = _dot_products(load_element, width)

    @inlined_early
    def matmul_a(arguments: Any, thread: int, threads: int) -> None:
        """Compute this thread's share of x · A."""
        runs, total = pointer_to_integers(arguments[RUNS]), 0
        for each in range(arguments[NUM_FUSED]):
            for run in range(arguments[NUM_RUNS]):
                adapter = pointer_to_integers(runs[run * RUN_FIELDS + ADAPTER])
                total += adapter[(arguments[GEMM] + each) * GEMM_FIELDS + A_COLUMNS] // COLUMNS_AT_ONCE
        first, end, done = total * thread // threads, total * (thread + 1) // threads, 0
        inputs, columns = arguments[INPUTS], arguments[LOW_COLUMNS]
        for each in range(arguments[NUM_FUSED]):
            low = arguments[LOW] + 4 * each * arguments[LOW_ROWS] * columns
            for run in range(arguments[NUM_RUNS]):
                own = run * RUN_FIELDS
                adapter = pointer_to_integers(runs[own + ADAPTER])
                fields = (arguments[GEMM] + each) * GEMM_FIELDS
                count = adapter[fields + A_COLUMNS] // COLUMNS_AT_ONCE
                for index in range(max(first - done, 0), min(end - done, count)):
                    column = index * COLUMNS_AT_ONCE
                    a = adapter[fields + A] + width * column * inputs
                    for row in range(runs[own + FIRST_ROW], runs[own + END_ROW]):
                        dot_products(arguments[X] + 4 * row * inputs, a, low + 4 * (row * columns + column), inputs)
                done += count

    return matmul_a


def _matmul_b(load_vectors: Any, width: int) -> Any:
    tile = float_tile(VECTORS, Shape(1, width * BLOCK, 4), widening_step(VECTORS, load_vectors), 1)

    @inlined_early
    def matmul_b(arguments: Any, thread: int, threads: int) -> None:
        """Compute this thread's share of (x · A) · B: whole blocks of outputs. An adapter without the module adds
        zeros.
        """
        runs, columns = pointer_to_integers(arguments[RUNS]), arguments[LOW_COLUMNS]
        for each in range(arguments[NUM_FUSED]):
            low = arguments[LOW] + 4 * each * arguments[LOW_ROWS] * columns
            start = each * GEMM_COLUMNS
            blocks = (arguments[start + OUTPUTS] + BLOCK - 1) // BLOCK
            total, deltas = blocks * arguments[NUM_RUNS], arguments[start + DELTAS]
            for task in range(total * thread // threads, total * (thread + 1) // threads):
                own, block = task // blocks * RUN_FIELDS, task % blocks
                adapter = pointer_to_integers(runs[own + ADAPTER])
                pieces = adapter[(arguments[GEMM] + each) * GEMM_FIELDS + PIECES]
                first, count, b = 0, 0, 0
                if pieces:
                    piece = pointer_to_integers(pieces + 8 * PIECE_FIELDS * block)
                    first, count, b = piece[FIRST_COLUMN], piece[NUM_COLUMNS], piece[B]
                for row in range(runs[own + FIRST_ROW], runs[own + END_ROW]):
                    target = deltas + 4 * BLOCK * (row * blocks + block)
                    tile(low + 4 * (row * columns + first), b, target, count, 0)

    return matmul_b


def _region(load_element: Any, load_vectors: Any, width: int) -> Callable[[Any], None]:
    """Return the function of a row of the step's table that computes what adapters add. All threads run it."""
    matmul_a, matmul_b = _matmul_a(load_element, width), _matmul_b(load_vectors, width)

    @inlined_early
    def run(arguments: Any) -> None:
        thread, threads = thread_number(arguments), num_threads(arguments)
        matmul_a(arguments, thread, threads)
        barrier(arguments)
        matmul_b(arguments, thread, threads)
        barrier(arguments)

    return run


_run_float32 = _region(load_float32, _load_float32, 4)
_run_bfloat16 = _region(load_bfloat16, _load_bfloat16, 2)
_run_float16 = _region(load_float16, _load_float16, 2)


def _region_float32(arguments: Any) -> None:
    _run_float32(arguments)


def _region_bfloat16(arguments: Any) -> None:
    _run_bfloat16(arguments)


def _region_float16(arguments: Any) -> None:
    _run_float16(arguments)


_REGIONS = {torch.float32: _region_float32, torch.bfloat16: _region_bfloat16, torch.float16: _region_float16}


@cache
def region_address(dtype: torch.dtype) -> int:
    """Return the address of the region for adapters of a dtype. The first call compiles it, unless it is cached."""
    return address_of(_REGIONS[dtype], keeps_order=True)
