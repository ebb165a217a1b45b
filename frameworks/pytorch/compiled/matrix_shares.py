"""The shares of keys in a row of attention, from scores of matrix tiles to the order of the next product.

Scores are exponents of 2: their factor is in the scale of the queries. A share is rounded to bfloat16 next, so powers
need not be more exact than 3e-6.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.attention_tiles import KEYS, LANES, LOWEST, larger, largest_lane
from frameworks.pytorch.compiled.bfloat16_rows import store_rounded
from frameworks.pytorch.compiled.elementwise import all_lanes, multiply_add
from frameworks.pytorch.compiled.formats import VECTORS
from frameworks.pytorch.compiled.jit import llvm_function
from frameworks.pytorch.compiled.matrix_tiles import ROWS, TILE_BYTES
from frameworks.pytorch.compiled.tiles import BYTES, PARTS, at, function, load, number, splat

LOG2_E = 1.4426950408889634
BLOCK_BYTES = 4 * 2 * ROWS * KEYS
"""From the scores of a block of keys, float32 [2 * ROWS, KEYS], to those of the next."""
# Sums of shares stay far below the largest float32.
_MOST_ABOVE = 32.0
# Of 2 to the x, from 0 to 1: the largest relative error is 2.9e-6, and there is none at 0.
_POLYNOMIAL = (1.342669186e-2, 5.224246147e-2, 2.412802112e-1, 6.930448440e-1, 1.0)
# Of the instructions: round down without exceptions; all lanes; as the current mode rounds.
_DOWN, _ALL_LANES, _CURRENT = 9, -1, 4
_I16, _I32, _FLOAT, _INTEGERS = ir.IntType(16), ir.IntType(32), ir.FloatType(), VECTORS.integers(32)
_VECTOR_BYTES = 4 * LANES


@llvm_function
def rounded_shares_of_row(
    _context: Any, _scores: Any, _state: Any, _target: Any, _blocks: Any, _first: Any, _end: Any
) -> Any:
    """(scores of a row, its state, the shares' place: addresses; blocks; first, end: the visible keys) → a factor.

    It writes bfloat16 [blocks, KEYS], a block each TILE_BYTES: 2 to the score, relative to a reference; 0 for other
    keys. The factor, float32, is for what was added up relative to an earlier reference. `state`: as
    `attention_tiles.shares_of_row` has it, with the reference in place of the largest score.

    The reference is the largest score of the row's first block: scores are read once, and the others may be larger by
    _MOST_ABOVE. Where one is even larger, the shares are written again, relative to the largest.
    """

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        scores, state, target = (builder.inttoptr(each, BYTES) for each in arguments[:3])
        blocks, first, end = arguments[3:]
        places = (scores, target)
        _hide(
            builder,
            scores,
            (number(0), _least(builder, blocks, _blocks_before(builder, first, KEYS - 1))),
            (first, end),
        )
        _hide(builder, scores, (_blocks_before(builder, end, 0), blocks), (first, end))
        before = load(builder, state, _FLOAT)
        reference = cgutils.alloca_once_value(builder, splat(builder, before, LANES))
        with builder.if_then(builder.fcmp_ordered("<=", before, ir.Constant(_FLOAT, LOWEST))):
            found = [load(builder, at(builder, scores, _VECTOR_BYTES * part), VECTORS.floats) for part in PARTS]
            largest = largest_lane(builder, larger(builder, *found))
            builder.store(larger(builder, builder.load(reference), largest), reference)
        total = cgutils.alloca_once(builder, VECTORS.floats)
        largest = _write_shares(builder, places, blocks, builder.load(reference), total)
        limit = builder.fadd(builder.load(reference), all_lanes(_MOST_ABOVE))
        is_above = builder.bitcast(builder.fcmp_ordered(">", largest, limit), _I16)
        with builder.if_then(builder.icmp_unsigned("!=", is_above, _I16(0)), likely=False):
            builder.store(largest_lane(builder, largest), reference)
            _write_shares(builder, places, blocks, builder.load(reference), total)
        found = builder.load(reference)
        factor = _power_of_two(builder, builder.fsub(splat(builder, before, LANES), found))
        totals = builder.bitcast(at(builder, state, _VECTOR_BYTES), VECTORS.floats.as_pointer())
        added = multiply_add(builder, builder.load(totals, align=4), factor, builder.load(total))
        builder.store(added, totals, align=4)
        of_lane = [builder.extract_element(each, ir.Constant(_I32, 0)) for each in (found, factor)]
        builder.store(of_lane[0], builder.bitcast(state, _FLOAT.as_pointer()), align=4)
        return of_lane[1]

    return types.float32(*[types.int64] * 6), write


def _block(builder: Any, scores: Any, block: Any) -> Any:
    return builder.gep(scores, [builder.mul(block, number(BLOCK_BYTES))])


def _write_shares(builder: Any, places: tuple[Any, Any], blocks: Any, reference: Any, total: Any) -> Any:
    """Write the shares relative to a reference, and their sum to `total`. Return the largest scores, by lane."""
    scores, target = places
    order = ir.Constant(ir.VectorType(_I32, KEYS), list(range(KEYS)))
    largest = cgutils.alloca_once_value(builder, reference)
    builder.store(all_lanes(0.0), total)
    with cgutils.for_range_slice(builder, number(0), blocks, number(1)) as (block, _):
        place = _block(builder, scores, block)
        found = [load(builder, at(builder, place, _VECTOR_BYTES * part), VECTORS.floats) for part in PARTS]
        builder.store(larger(builder, builder.load(largest), larger(builder, *found)), largest)
        shares = [_power_of_two(builder, builder.fsub(each, reference)) for each in found]
        builder.store(builder.fadd(builder.load(total), builder.fadd(*shares)), total)
        own = builder.gep(target, [builder.mul(block, number(TILE_BYTES))])
        store_rounded(builder, builder.shuffle_vector(*shares, order), own)
    return builder.load(largest)


def _blocks_before(builder: Any, key: Any, added: int) -> Any:
    """Return the number of whole blocks before a key, counted from the first score, or with the block that it is in."""
    shifted = builder.add(key, number(added))
    found = builder.sdiv(shifted, number(KEYS))
    return builder.select(builder.icmp_signed(">", shifted, number(0)), found, number(0))


def _least(builder: Any, first: Any, second: Any) -> Any:
    return builder.select(builder.icmp_signed("<", first, second), first, second)


def _hide(builder: Any, scores: Any, blocks: tuple[Any, Any], seen: tuple[Any, Any]) -> None:
    """Make the scores of some blocks minus infinity, but those of the keys that are seen. `blocks`, `seen`: from the
    first to before the second.
    """
    with cgutils.for_range_slice(builder, *blocks, number(1)) as (block, _):
        place, start = _block(builder, scores, block), builder.mul(block, number(KEYS))
        bounds = [splat(builder, builder.trunc(builder.sub(each, start), _I32), LANES) for each in seen]
        for part in PARTS:
            own = at(builder, place, _VECTOR_BYTES * part)
            numbers = ir.Constant(_INTEGERS, list(range(LANES * part, LANES * (part + 1))))
            is_seen = builder.and_(
                builder.icmp_signed(">=", numbers, bounds[0]), builder.icmp_signed("<", numbers, bounds[1])
            )
            left = builder.select(is_seen, load(builder, own, VECTORS.floats), all_lanes(float("-inf")))
            builder.store(left, builder.bitcast(own, VECTORS.floats.as_pointer()), align=4)


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
