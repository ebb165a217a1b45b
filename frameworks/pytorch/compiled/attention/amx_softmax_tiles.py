"""The softmax of attention between two AMX GEMMs: from float32 scores to bfloat16 weights, tile by tile.

Scores are exponents of 2: log2(e) is a factor of the scale of the queries. A weight is 2^(score - reference), and is
divided by the sum of the row's weights at the end. Weights are rounded to bfloat16, so exp2 need not be more exact than
3e-6.

The reference is the row's first score in place of the running maximum, so scores are read once. Weights are bfloat16
and their sums float32: both hold weights of scores that are _MAX_LOG2_SUM above the reference. If a sum is larger, the
caller sets another reference and computes the weights again.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.amx.amx_registers import (
    ROWS,
    TILE_BYTES,
    matmul_step,
    move_accumulators,
    row_pointer,
    unpack,
    zero_accumulators,
)
from frameworks.pytorch.compiled.attention.attention_tiles import KEYS, LANES, LOWEST_SCORE
from frameworks.pytorch.compiled.attention.flash_attention import KEY_END, STATE_FLOATS
from frameworks.pytorch.compiled.jit import llvm_function
from frameworks.pytorch.compiled.matmul.bfloat16_activations import store_bfloat16_vector
from frameworks.pytorch.compiled.simd.elementwise import all_lanes, multiply_add
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, PARTS, VECTORS, at, function, int64, load, splat

LOG2_E = 1.4426950408889634
BLOCK_BYTES = 4 * 2 * ROWS * KEYS
"""Of the scores of a block of keys, float32 [2 * ROWS, KEYS]."""
_MAX_LOG2_SUM = 64.0
"""Of the sums of weights: they stay far below the largest float32."""
# Of 2^x, x from 0 to 1: the largest relative error is 2.9e-6, and 0 at 0.
_POLYNOMIAL = (1.342669186e-2, 5.224246147e-2, 2.412802112e-1, 6.930448440e-1, 1.0)
# Of the instructions: round down without exceptions; all lanes; as the current mode rounds.
_DOWN, _ALL_LANES, _CURRENT = 9, -1, 4
_I16, _I32, _I64, _FLOAT, _INTEGERS = (
    ir.IntType(16),
    ir.IntType(32),
    ir.IntType(64),
    ir.FloatType(),
    VECTORS.integers(32),
)
_VECTOR_BYTES = 4 * LANES
_STATE_BYTES, _END_BYTES = 4 * STATE_FLOATS, 8 * KEY_END


def softmax_of_block(row_tiles: int, *, is_unmasked: bool) -> Any:
    """Return a function for compiled code that computes the softmax weights of a block of keys for one or two tiles of
    rows.

    (addresses: float32 scores of the block, states of the rows, bfloat16 weights; rows, bytes to the second tile of
    weights; position of the first key, window, keys from there on; addresses: queries and keys of the next block, its
    scores; steps of a head; whether there is a next block) → nothing. `is_unmasked`: every row sees every key, and has
    a reference. Otherwise the weights of masked keys are 0, and a row without a reference takes its first score. The
    scores of the next block are multiplied meanwhile: AMX and vector instructions overlap.

    `states`: as in `attention_tiles.softmax_row`, with the reference in place of the maximum.
    """

    @llvm_function
    def weights(_context: Any, addresses: Any, sizes: Any, span: Any, next_block: Any, sized: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointers, (rows, tile_bytes) = _addresses(builder, arguments[0], 3), unpack(builder, arguments[1], 2)
            span = unpack(builder, arguments[2], 3)
            next_pointers, (steps, has_next) = _addresses(builder, arguments[3], 3), unpack(builder, arguments[4], 2)
            queries_bytes = builder.mul(steps, int64(TILE_BYTES))
            is_followed = builder.icmp_signed("!=", has_next, int64(0))
            at_once = builder.add(builder.sdiv(rows, builder.add(steps, int64(1))), int64(1))

            def write_rows(first: Any) -> None:
                after = builder.add(first, at_once)
                end = builder.select(builder.icmp_signed("<", after, rows), after, rows)
                with cgutils.for_range_slice(builder, first, end, int64(1)) as (row, _):
                    _write_row(builder, (*pointers, tile_bytes), row, None if is_unmasked else span)

            with builder.if_then(is_followed):
                zero_accumulators(builder, row_tiles)
            with cgutils.for_range_slice(builder, int64(0), steps, int64(1)) as (step, _):
                with builder.if_then(is_followed):
                    matmul_step(builder, next_pointers[:2], queries_bytes, step, row_tiles)
                write_rows(builder.mul(step, at_once))
            with builder.if_then(is_followed):
                move_accumulators(builder, "tilestored64", next_pointers[2], row_tiles, int64(4 * KEYS))
            write_rows(builder.mul(steps, at_once))
            return context.get_dummy_value()

        return types.void(*(types.UniTuple(types.int64, count) for count in (3, 2, 3, 3, 2))), write

    return weights


def weighted_values_adder(row_tiles: int) -> Any:
    """Return a function for compiled code that adds softmax weights @ values to the accumulators of rows.

    (addresses: bfloat16 weights, packed values, sums float32 [rows, head size] of 32 columns; blocks of keys; bytes
    from row to row of the sums) → nothing.
    """

    @llvm_function
    def add_values(_context: Any, weights: Any, values: Any, sums: Any, blocks: Any, row_bytes: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            weights, values, sums = (builder.inttoptr(each, BYTES) for each in arguments[:3])
            blocks, row_bytes = arguments[3:]
            tile_bytes = builder.mul(blocks, int64(TILE_BYTES))
            move_accumulators(builder, "tileloadd64", sums, row_tiles, row_bytes)
            with cgutils.for_range_slice(builder, int64(0), blocks, int64(1)) as (block, _):
                matmul_step(builder, (weights, values), tile_bytes, block, row_tiles)
            move_accumulators(builder, "tilestored64", sums, row_tiles, row_bytes)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), write

    return add_values


@llvm_function
def sum_exceeds(_context: Any, _state: Any) -> Any:
    """(address of the state of a row) → 1 if a lane of its sum of weights is above 2^_MAX_LOG2_SUM, else 0, int64."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        total = load(builder, at(builder, builder.inttoptr(arguments[0], BYTES), _VECTOR_BYTES), VECTORS.floats)
        above = builder.bitcast(builder.fcmp_ordered(">", total, all_lanes(2.0**_MAX_LOG2_SUM)), _I16)
        return builder.zext(builder.icmp_unsigned("!=", above, _I16(0)), _I64)

    return types.int64(types.int64), write


@llvm_function
def exp2(_context: Any, _x: Any) -> Any:
    """(float32 x) → 2^x, as the softmax computes it."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.extract_element(_exp2(builder, splat(builder, arguments[0], LANES)), _I32(0))

    return types.float32(types.float32), write


def _addresses(builder: Any, values: Any, count: int) -> list[Any]:
    return [builder.inttoptr(each, BYTES) for each in unpack(builder, values, count)]


def _write_row(builder: Any, pointers: tuple[Any, ...], row: Any, span: Any) -> None:
    """Write the softmax weights of a row. `pointers`: scores, states, weights, and bytes to the second tile of these.
    `span`: position of the first key, window, keys from there on; None if the row sees all keys.
    """
    scores, states, target, tile_bytes = pointers
    own = builder.gep(scores, [builder.mul(row, int64(4 * KEYS))])
    state = builder.gep(states, [builder.mul(row, int64(_STATE_BYTES))])
    given = [load(builder, at(builder, own, _VECTOR_BYTES * part), VECTORS.floats) for part in PARTS]
    masks = None if span is None else _key_masks(builder, own, state, span)
    reference = splat(builder, load(builder, state, _FLOAT), LANES)
    weights = [_exp2(builder, builder.fsub(each, reference)) for each in given]
    if masks is not None:
        weights = [builder.select(mask, each, all_lanes(0.0)) for mask, each in zip(masks, weights, strict=True)]
    totals = builder.bitcast(at(builder, state, _VECTOR_BYTES), VECTORS.floats.as_pointer())
    builder.store(builder.fadd(builder.load(totals, align=4), builder.fadd(*weights)), totals, align=4)
    order = ir.Constant(ir.VectorType(_I32, KEYS), list(range(KEYS)))
    pointer = row_pointer(builder, target, row, tile_bytes)
    store_bfloat16_vector(builder, builder.shuffle_vector(*weights, order), pointer)


def _key_masks(builder: Any, scores: Any, state: Any, span: Any) -> list[Any]:
    """Return the mask of the keys that a row sees. Its first score becomes the reference if there is none yet."""
    start, window, limit = span
    end = builder.sub(load(builder, at(builder, state, _END_BYTES), _I64), start)
    is_limited = builder.icmp_signed("!=", window, int64(0))
    first = builder.select(is_limited, builder.sub(end, window), int64(0))
    first = builder.select(builder.icmp_signed(">", first, int64(0)), first, int64(0))
    end = builder.select(builder.icmp_signed("<", end, limit), end, limit)
    is_first = builder.fcmp_ordered("<=", load(builder, state, _FLOAT), ir.Constant(_FLOAT, LOWEST_SCORE))
    with builder.if_then(builder.and_(builder.icmp_signed("<", first, end), is_first)):
        score = load(builder, builder.gep(scores, [builder.mul(first, int64(4))]), _FLOAT)
        builder.store(score, builder.bitcast(state, _FLOAT.as_pointer()), align=4)
    bounds = [splat(builder, builder.trunc(each, _I32), LANES) for each in (first, end)]
    found = []
    for part in PARTS:
        key_indices = ir.Constant(_INTEGERS, list(range(LANES * part, LANES * (part + 1))))
        is_after = builder.icmp_signed(">=", key_indices, bounds[0])
        found.append(builder.and_(is_after, builder.icmp_signed("<", key_indices, bounds[1])))
    return found


def _exp2(builder: Any, x: Any) -> Any:
    """Return 2^x for float32 lanes: 0 for minus infinity, NaN for NaN."""
    kind = VECTORS.floats
    mask = ir.Constant(_I16, _ALL_LANES)
    reduce = function(builder, "llvm.x86.avx512.mask.reduce.ps.512", kind, [kind, _I32, kind, _I16, _I32])
    scale = function(builder, "llvm.x86.avx512.mask.scalef.ps.512", kind, [kind, kind, kind, _I16, _I32])
    rest = builder.call(reduce, [x, _I32(_DOWN), x, mask, _I32(_CURRENT)])
    power = all_lanes(_POLYNOMIAL[0])
    for factor in _POLYNOMIAL[1:]:
        power = multiply_add(builder, power, rest, all_lanes(factor))
    return builder.call(scale, [power, x, x, mask, _I32(_CURRENT)])
