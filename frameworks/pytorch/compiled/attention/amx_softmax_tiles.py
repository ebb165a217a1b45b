"""The shares of keys in rows of attention, from scores of matrix tiles to the order of the next product.

Scores are exponents of 2: their factor is in the scale of the queries. A share is 2 to the score, relative to a
reference of its row. It is rounded to bfloat16 next, so powers need not be more exact than 3e-6.

The reference is the row's first score. So scores are read once: shares and their sums are float32 and bfloat16, whose
range is wide enough for scores that are larger by _MOST_ABOVE. Where sums are larger still, the caller sets another
reference, and computes the shares again.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.amx.amx_registers import (
    ROWS,
    TILE_BYTES,
    begin_sums,
    move_sums,
    multiply_step,
    parts_of,
    place_of_row,
)
from frameworks.pytorch.compiled.attention.attention_tiles import KEYS, LANES, LOWEST
from frameworks.pytorch.compiled.attention.flash_attention import END, STATE_NUMBERS
from frameworks.pytorch.compiled.jit import llvm_function
from frameworks.pytorch.compiled.matmul.bfloat16_activations import store_rounded
from frameworks.pytorch.compiled.simd.elementwise import all_lanes, multiply_add
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, PARTS, VECTORS, at, function, load, number, splat

LOG2_E = 1.4426950408889634
BLOCK_BYTES = 4 * 2 * ROWS * KEYS
"""Of the scores of a block of keys, float32 [2 * ROWS, KEYS]."""
_MOST_ABOVE = 64.0
"""Sums of shares stay far below the largest float32."""
# Of 2 to the x, from 0 to 1: the largest relative error is 2.9e-6, and there is none at 0.
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
_STATE_BYTES, _END_BYTES = 4 * STATE_NUMBERS, 8 * END


def shares_of_block(row_tiles: int, *, is_whole: bool) -> Any:
    """Return a function for compiled code that writes the shares of a block of keys in one or two tiles of rows.

    (scores of the block, states of the rows, the shares' place: addresses; rows, bytes to the place of the second tile;
    position of the first key, window; queries and keys of the next block, the place of its scores: addresses; steps of
    a head; whether there is a next block) → nothing. `is_whole`: all rows see all keys, and have a reference.
    Otherwise the shares of keys that a row does not see are 0, and its first score becomes the reference. The next
    block is multiplied meanwhile: tiles wait for nothing that vectors need.

    `states`: as `attention_tiles.shares_of_row` has it, with the reference in place of the largest score.
    """

    @llvm_function
    def shares(_context: Any, places: Any, sizes: Any, seen: Any, following: Any, sized: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            places, (rows, tile_bytes) = _addresses(builder, arguments[0], 3), parts_of(builder, arguments[1], 2)
            seen = parts_of(builder, arguments[2], 2)
            next_places, (steps, has_next) = _addresses(builder, arguments[3], 3), parts_of(builder, arguments[4], 2)
            queries_bytes = builder.mul(steps, number(TILE_BYTES))
            is_followed = builder.icmp_signed("!=", has_next, number(0))
            at_once = builder.add(builder.sdiv(rows, builder.add(steps, number(1))), number(1))

            def write_rows(first: Any) -> None:
                behind = builder.add(first, at_once)
                end = builder.select(builder.icmp_signed("<", behind, rows), behind, rows)
                with cgutils.for_range_slice(builder, first, end, number(1)) as (row, _):
                    _write_row(builder, (*places, tile_bytes), row, None if is_whole else seen)

            with builder.if_then(is_followed):
                begin_sums(builder, row_tiles)
            with cgutils.for_range_slice(builder, number(0), steps, number(1)) as (step, _):
                with builder.if_then(is_followed):
                    multiply_step(builder, next_places[:2], queries_bytes, step, row_tiles)
                write_rows(builder.mul(step, at_once))
            with builder.if_then(is_followed):
                move_sums(builder, "tilestored64", next_places[2], row_tiles, number(4 * KEYS))
            write_rows(builder.mul(steps, at_once))
            return context.get_dummy_value()

        return types.void(*(types.UniTuple(types.int64, count) for count in (3, 2, 2, 3, 2))), write

    return shares


def values_adder(row_tiles: int) -> Any:
    """Return a function for compiled code that adds values, each times its share, to the sums of rows.

    (shares, values in the order of the tiles, sums float32 [rows, size of a head]: addresses of 32 outputs; blocks of
    keys; bytes from row to row of the sums) → nothing.
    """

    @llvm_function
    def add_values(_context: Any, shares: Any, values: Any, sums: Any, blocks: Any, row_bytes: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            shares, values, sums = (builder.inttoptr(each, BYTES) for each in arguments[:3])
            blocks, row_bytes = arguments[3:]
            tile_bytes = builder.mul(blocks, number(TILE_BYTES))
            move_sums(builder, "tileloadd64", sums, row_tiles, row_bytes)
            with cgutils.for_range_slice(builder, number(0), blocks, number(1)) as (block, _):
                multiply_step(builder, (shares, values), tile_bytes, block, row_tiles)
            move_sums(builder, "tilestored64", sums, row_tiles, row_bytes)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), write

    return add_values


@llvm_function
def exceeds(_context: Any, _state: Any) -> Any:
    """(address of the state of a row) → whether a sum of its shares is above 2 to the _MOST_ABOVE, a number."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        total = load(builder, at(builder, builder.inttoptr(arguments[0], BYTES), _VECTOR_BYTES), VECTORS.floats)
        above = builder.bitcast(builder.fcmp_ordered(">", total, all_lanes(2.0**_MOST_ABOVE)), _I16)
        return builder.zext(builder.icmp_unsigned("!=", above, _I16(0)), _I64)

    return types.int64(types.int64), write


@llvm_function
def power_of_two(_context: Any, _x: Any) -> Any:
    """(float32) → 2 to this, as the shares are computed."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.extract_element(_power_of_two(builder, splat(builder, arguments[0], LANES)), _I32(0))

    return types.float32(types.float32), write


def _addresses(builder: Any, numbers: Any, count: int) -> list[Any]:
    return [builder.inttoptr(each, BYTES) for each in parts_of(builder, numbers, count)]


def _write_row(builder: Any, places: tuple[Any, ...], row: Any, seen: Any) -> None:
    """Write the shares of a row. `places`: scores, states, shares, and bytes to the second tile of these. `seen`:
    position of the first key, window; None if the row sees all keys.
    """
    scores, states, target, tile_bytes = places
    own = builder.gep(scores, [builder.mul(row, number(4 * KEYS))])
    state = builder.gep(states, [builder.mul(row, number(_STATE_BYTES))])
    given = [load(builder, at(builder, own, _VECTOR_BYTES * part), VECTORS.floats) for part in PARTS]
    masks = None if seen is None else _masks(builder, own, state, seen)
    reference = splat(builder, load(builder, state, _FLOAT), LANES)
    shares = [_power_of_two(builder, builder.fsub(each, reference)) for each in given]
    if masks is not None:
        shares = [builder.select(mask, each, all_lanes(0.0)) for mask, each in zip(masks, shares, strict=True)]
    totals = builder.bitcast(at(builder, state, _VECTOR_BYTES), VECTORS.floats.as_pointer())
    builder.store(builder.fadd(builder.load(totals, align=4), builder.fadd(*shares)), totals, align=4)
    order = ir.Constant(ir.VectorType(_I32, KEYS), list(range(KEYS)))
    place = place_of_row(builder, target, row, tile_bytes)
    store_rounded(builder, builder.shuffle_vector(*shares, order), place)


def _masks(builder: Any, scores: Any, state: Any, seen: Any) -> list[Any]:
    """Return which keys a row sees, after making its first score the reference if there is none yet."""
    start, window = seen
    end = builder.sub(load(builder, at(builder, state, _END_BYTES), _I64), start)
    is_limited = builder.icmp_signed("!=", window, number(0))
    first = builder.select(is_limited, builder.sub(end, window), number(0))
    first = builder.select(builder.icmp_signed(">", first, number(0)), first, number(0))
    end = builder.select(builder.icmp_signed("<", end, number(KEYS)), end, number(KEYS))
    is_first = builder.fcmp_ordered("<=", load(builder, state, _FLOAT), ir.Constant(_FLOAT, LOWEST))
    with builder.if_then(builder.and_(builder.icmp_signed("<", first, end), is_first)):
        score = load(builder, builder.gep(scores, [builder.mul(first, number(4))]), _FLOAT)
        builder.store(score, builder.bitcast(state, _FLOAT.as_pointer()), align=4)
    bounds = [splat(builder, builder.trunc(each, _I32), LANES) for each in (first, end)]
    found = []
    for part in PARTS:
        numbers = ir.Constant(_INTEGERS, list(range(LANES * part, LANES * (part + 1))))
        is_behind = builder.icmp_signed(">=", numbers, bounds[0])
        found.append(builder.and_(is_behind, builder.icmp_signed("<", numbers, bounds[1])))
    return found


def _power_of_two(builder: Any, x: Any) -> Any:
    """Return 2 to the x; 0 for minus infinity. A number that is none stays so."""
    kind = VECTORS.floats
    mask = ir.Constant(_I16, _ALL_LANES)
    reduce = function(builder, "llvm.x86.avx512.mask.reduce.ps.512", kind, [kind, _I32, kind, _I16, _I32])
    scale = function(builder, "llvm.x86.avx512.mask.scalef.ps.512", kind, [kind, kind, kind, _I16, _I32])
    rest = builder.call(reduce, [x, _I32(_DOWN), x, mask, _I32(_CURRENT)])
    power = all_lanes(_POLYNOMIAL[0])
    for factor in _POLYNOMIAL[1:]:
        power = multiply_add(builder, power, rest, all_lanes(factor))
    return builder.call(scale, [power, x, x, mask, _I32(_CURRENT)])
