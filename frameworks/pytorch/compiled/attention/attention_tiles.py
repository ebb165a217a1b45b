"""The inner loops of attention, in LLVM's language: a few rows of queries, and a block of a text's keys or values.

Numbers are float32. Keys lie as [numbers of a key, keys], so scores and outputs are the same sums: of vectors, each
times a factor of the row. A row's sums are made in one order, whatever the number of rows in the tile.
"""

import math
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import llvm_function
from frameworks.pytorch.compiled.simd.elementwise import all_lanes, exponential, multiply_add
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, LINE_BYTES, VECTORS, at, load, number, prefetch, splat

KEYS = 32
"""Keys of a block."""
TILE_ROWS = (4, 2, 1)
"""Numbers of rows that tiles are compiled for."""
LANES = VECTORS.lanes
LOWEST = -1e30
"""The largest score before the first one. Finite: the difference to itself is 0."""

_WIDE_LANES = 16
_VECTOR_BYTES = 4 * LANES
# Sixteen registers hold eight sums and their operands, thirty-two hold sixteen.
_SUMS = 8 if LANES == _WIDE_LANES // 2 else 16
_PARTS = (8, 4, 1)
_FLOATS, _INTEGERS = VECTORS.floats, VECTORS.integers(32)
_I32, _FLOAT = ir.IntType(32), ir.FloatType()


@llvm_function
def fetch_lines(_context: Any, _address: Any, _size: Any) -> Any:
    """(address, bytes) → nothing, while they are fetched to the second cache.

    A step reads all keys and values once, in blocks that lie anywhere: the CPU does not foresee the next one.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], BYTES)
        with cgutils.for_range_slice(builder, number(0), arguments[1], number(LINE_BYTES)) as (offset, _):
            prefetch(builder, builder.gep(start, [offset]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), write


@llvm_function
def shares_of_row(_context: Any, _scores: Any, _state: Any, _first: Any, _end: Any) -> Any:
    """(scores of a row, its state: addresses; first, end: the visible keys of a block) → a factor, float32.

    It replaces scores by their exponentials, relative to the largest score so far; those of other keys become 0. The
    factor is for what was added up relative to an earlier largest score. `state`: float32, the largest score, and from
    LANES on the sums of the exponentials, by lane.
    """

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _write_shares(builder, arguments)

    return types.float32(*[types.int64] * 4), write


def _write_shares(builder: Any, arguments: Any) -> Any:
    offsets = range(0, 4 * KEYS, _VECTOR_BYTES)
    scores, state = (builder.inttoptr(each, BYTES) for each in arguments[:2])
    first, end = (splat(builder, builder.trunc(each, _I32), LANES) for each in arguments[2:])
    before = load(builder, state, _FLOAT)
    given = [load(builder, at(builder, scores, each), _FLOATS) for each in offsets]
    numbers = [
        ir.Constant(_INTEGERS, list(range(each, each + LANES))) for each in range(0, LANES * len(offsets), LANES)
    ]
    seen = [
        builder.and_(builder.icmp_signed(">=", each, first), builder.icmp_signed("<", each, end)) for each in numbers
    ]
    visible = [builder.select(is_seen, each, all_lanes(LOWEST)) for is_seen, each in zip(seen, given, strict=True)]
    largest = splat(builder, before, LANES)
    for each in visible:
        largest = larger(builder, largest, each)
    largest = largest_lane(builder, largest)
    factor = exponential(builder, builder.fsub(splat(builder, before, LANES), largest))
    totals = builder.bitcast(at(builder, state, _VECTOR_BYTES), _FLOATS.as_pointer())
    total = builder.fmul(builder.load(totals, align=4), factor)
    for offset, is_seen, each in zip(offsets, seen, visible, strict=True):
        share = builder.select(is_seen, exponential(builder, builder.fsub(each, largest)), all_lanes(0.0))
        place = builder.bitcast(at(builder, scores, offset), _FLOATS.as_pointer())
        builder.store(share, place, align=4)
        total = builder.fadd(total, share)
    builder.store(total, totals, align=4)
    of_lane = [builder.extract_element(each, ir.Constant(_I32, 0)) for each in (largest, factor)]
    builder.store(of_lane[0], builder.bitcast(state, _FLOAT.as_pointer()), align=4)
    return of_lane[1]


def larger(builder: Any, first: Any, second: Any) -> Any:
    """Return the larger numbers. One that is none is the second's: its exponential is none either."""
    return builder.select(builder.fcmp_ordered(">", first, second), first, second)


def largest_lane(builder: Any, numbers: Any) -> Any:
    """Return the largest number of a vector in all lanes."""
    for distance in (1 << step for step in range(int(math.log2(LANES)))):
        lanes = ir.Constant(_INTEGERS, [lane ^ distance for lane in range(LANES)])
        numbers = larger(builder, numbers, builder.shuffle_vector(numbers, numbers, lanes))
    return numbers


def scores_of(rows: int) -> Any:
    """Return a function for compiled code that multiplies the queries of `rows` rows with the keys of a block.

    (queries, keys [size, KEYS], scores: addresses; size of a head; row bytes: from a query to the next; count: of the
    keys) → nothing. It writes float32 [rows, KEYS]; the numbers behind the count are arbitrary.
    """

    @llvm_function
    def scores(_context: Any, queries: Any, keys: Any, out: Any, size: Any, row_bytes: Any, count: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            queries, keys, out = (builder.inttoptr(each, BYTES) for each in arguments[:3])
            size, row_bytes, count = arguments[3:]
            sums = _Sums(builder, (queries, row_bytes), (keys, number(4 * KEYS)), (out, number(4 * KEYS)), size)
            parts = min(KEYS // LANES, _SUMS // rows)
            end = builder.mul(count, number(4))
            with cgutils.for_range_slice(builder, number(0), end, number(parts * _VECTOR_BYTES)) as (offset, _):
                sums.write(rows, parts, offset, None)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), write

    return scores


def mix_of(rows: int) -> Any:
    """Return a function for compiled code that adds up the values of a block, each times its share, for `rows` rows.

    (shares [rows, KEYS], values, sums, factors [rows]: addresses; count: of the keys; row bytes: of a value, and of the
    sums of a row, in whole vectors) → nothing. The sums are multiplied by the row's factor before.
    """

    @llvm_function
    def mix(_context: Any, shares: Any, values: Any, sums: Any, factors: Any, count: Any, row_bytes: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            shares, values, out, factors = (builder.inttoptr(each, BYTES) for each in arguments[:4])
            count, row_bytes = arguments[4:]
            sums = _Sums(builder, (shares, number(4 * KEYS)), (values, row_bytes), (out, row_bytes), count)
            begin = number(0)
            # As many vectors of a row at once as there are, then fewer.
            for parts in sorted({min(each, _SUMS // rows) for each in _PARTS}, reverse=True):
                wide = number(parts * _VECTOR_BYTES)
                end = builder.sub(row_bytes, builder.urem(row_bytes, wide))
                with cgutils.for_range_slice(builder, begin, end, wide) as (offset, _):
                    sums.write(rows, parts, offset, factors)
                begin = end
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), write

    return mix


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums of vectors, each times a factor of the row. Each of the three is an address, and the bytes from row to row.

    `steps`: number of factors of a row, and of vectors.
    """

    builder: Any
    factors: tuple[Any, Any]
    vectors: tuple[Any, Any]
    out: tuple[Any, Any]
    steps: Any

    def write(self, rows: int, parts: int, offset: Any, scales: Any) -> None:
        """Write `parts` vectors of each row, at an offset in bytes. `scales`: address of what the numbers there are
        multiplied by before; None: they are replaced.
        """
        builder = self.builder
        places, own = [], []
        for row in range(rows):
            start = builder.gep(self.out[0], [builder.add(offset, builder.mul(self.out[1], number(row)))])
            for part in range(parts):
                place = builder.bitcast(at(builder, start, part * _VECTOR_BYTES), _FLOATS.as_pointer())
                first = all_lanes(0.0)
                if scales is not None:
                    scale = splat(builder, load(builder, at(builder, scales, 4 * row), _FLOAT), LANES)
                    first = builder.fmul(builder.load(place, align=4), scale)
                places.append(place)
                own.append(cgutils.alloca_once(builder, _FLOATS))
                builder.store(first, own[-1])
        of_rows = [builder.gep(self.factors[0], [builder.mul(self.factors[1], number(row))]) for row in range(rows)]
        begin = builder.gep(self.vectors[0], [offset])
        with cgutils.for_range_slice(builder, number(0), self.steps, number(1)) as (step, _):
            start = builder.gep(begin, [builder.mul(step, self.vectors[1])])
            vectors = [load(builder, at(builder, start, part * _VECTOR_BYTES), _FLOATS) for part in range(parts)]
            for row, address in enumerate(of_rows):
                place = builder.gep(address, [builder.mul(step, number(4))])
                factor = splat(builder, load(builder, place, _FLOAT), LANES)
                for vector, variable in zip(vectors, own[row * parts : (row + 1) * parts], strict=True):
                    builder.store(multiply_add(builder, factor, vector, builder.load(variable)), variable)
        for place, variable in zip(places, own, strict=True):
            builder.store(builder.load(variable), place, align=4)
