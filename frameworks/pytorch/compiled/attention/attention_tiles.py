"""The inner loops of attention, in LLVM's language: a few rows of queries, and a block of keys or values.

All is float32. Keys are stored as [head size, keys], so scores (Q·K) and outputs (weights·V) are the same loop: sums of
vectors, each times a factor of the row. A row is summed in one order, whatever the number of rows in the tile.
"""

import math
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import llvm_function
from frameworks.pytorch.compiled.simd.elementwise import all_lanes, exponential, multiply_add
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, LINE_BYTES, VECTORS, at, int64, load, prefetch, splat

KEYS = 32
"""Keys of a block."""
TILE_ROWS = (4, 2, 1)
"""Counts of rows that tiles are compiled for."""
LANES = VECTORS.lanes
LOWEST_SCORE = -1e30
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
    """(address, bytes) → nothing; prefetches these bytes to the second-level cache.

    A step reads all keys and values once, in blocks that lie anywhere: the CPU does not predict the next one.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], BYTES)
        with cgutils.for_range_slice(builder, int64(0), arguments[1], int64(LINE_BYTES)) as (offset, _):
            prefetch(builder, builder.gep(start, [offset]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), write


@llvm_function
def softmax_row(_context: Any, _scores: Any, _state: Any, _first: Any, _end: Any) -> Any:
    """(addresses: scores of a row, its state; first, end: the visible keys of a block) → a factor, float32.

    One step of the online softmax: scores are replaced by exp(score - running maximum), and masked keys by 0. The
    factor rescales what was accumulated relative to an earlier maximum. `state`: float32, the running maximum, and from
    LANES on the sums of the exponentials, by lane.
    """

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _write_softmax(builder, arguments)

    return types.float32(*[types.int64] * 4), write


def _write_softmax(builder: Any, arguments: Any) -> Any:
    offsets = range(0, 4 * KEYS, _VECTOR_BYTES)
    scores, state = (builder.inttoptr(each, BYTES) for each in arguments[:2])
    first, end = (splat(builder, builder.trunc(each, _I32), LANES) for each in arguments[2:])
    before = load(builder, state, _FLOAT)
    given = [load(builder, at(builder, scores, each), _FLOATS) for each in offsets]
    key_indices = [
        ir.Constant(_INTEGERS, list(range(each, each + LANES))) for each in range(0, LANES * len(offsets), LANES)
    ]
    visible_masks = [
        builder.and_(builder.icmp_signed(">=", each, first), builder.icmp_signed("<", each, end))
        for each in key_indices
    ]
    visible = [
        builder.select(is_visible, each, all_lanes(LOWEST_SCORE))
        for is_visible, each in zip(visible_masks, given, strict=True)
    ]
    largest = splat(builder, before, LANES)
    for each in visible:
        largest = larger_or_nan(builder, largest, each)
    largest = max_across_lanes(builder, largest)
    factor = exponential(builder, builder.fsub(splat(builder, before, LANES), largest))
    totals = builder.bitcast(at(builder, state, _VECTOR_BYTES), _FLOATS.as_pointer())
    total = builder.fmul(builder.load(totals, align=4), factor)
    for offset, is_visible, each in zip(offsets, visible_masks, visible, strict=True):
        weight = builder.select(is_visible, exponential(builder, builder.fsub(each, largest)), all_lanes(0.0))
        pointer = builder.bitcast(at(builder, scores, offset), _FLOATS.as_pointer())
        builder.store(weight, pointer, align=4)
        total = builder.fadd(total, weight)
    builder.store(total, totals, align=4)
    of_lane = [builder.extract_element(each, ir.Constant(_I32, 0)) for each in (largest, factor)]
    builder.store(of_lane[0], builder.bitcast(state, _FLOAT.as_pointer()), align=4)
    return of_lane[1]


def larger_or_nan(builder: Any, first: Any, second: Any) -> Any:
    """Return the larger lanes of two float vectors. NaN in `second` is returned, so that its exponential is NaN."""
    return builder.select(builder.fcmp_ordered(">", first, second), first, second)


def max_across_lanes(builder: Any, values: Any) -> Any:
    """Return the maximum of a float32 vector in all lanes."""
    for distance in (1 << step for step in range(int(math.log2(LANES)))):
        lanes = ir.Constant(_INTEGERS, [lane ^ distance for lane in range(LANES)])
        values = larger_or_nan(builder, values, builder.shuffle_vector(values, values, lanes))
    return values


def scores_tile(rows: int) -> Any:
    """Return a function for compiled code that computes Q·K, the scores of `rows` queries and a block of keys.

    (addresses: queries, keys [head size, KEYS], scores; head size; row bytes: from a query to the next; count of keys)
    → nothing. It writes float32 [rows, KEYS]; elements from the count on are undefined.
    """

    @llvm_function
    def scores(_context: Any, queries: Any, keys: Any, out: Any, size: Any, row_bytes: Any, count: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            queries, keys, out = (builder.inttoptr(each, BYTES) for each in arguments[:3])
            size, row_bytes, count = arguments[3:]
            sums = _Sums(builder, (queries, row_bytes), (keys, int64(4 * KEYS)), (out, int64(4 * KEYS)), size)
            parts = min(KEYS // LANES, _SUMS // rows)
            end = builder.mul(count, int64(4))
            with cgutils.for_range_slice(builder, int64(0), end, int64(parts * _VECTOR_BYTES)) as (offset, _):
                sums.write(rows, parts, offset, None)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), write

    return scores


def weighted_values_tile(rows: int) -> Any:
    """Return a function for compiled code that computes sums · factor + weights·V for `rows` rows.

    (addresses: softmax weights [rows, KEYS], values, sums, factors [rows]; count of keys; row bytes: of a value, and of
    the sums of a row, in whole vectors) → nothing.
    """

    @llvm_function
    def add_weighted_values(
        _context: Any, weights: Any, values: Any, sums: Any, factors: Any, count: Any, row_bytes: Any
    ) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            weights, values, out, factors = (builder.inttoptr(each, BYTES) for each in arguments[:4])
            count, row_bytes = arguments[4:]
            sums = _Sums(builder, (weights, int64(4 * KEYS)), (values, row_bytes), (out, row_bytes), count)
            begin = int64(0)
            # As many vectors of a row at once as there are, then fewer.
            for parts in sorted({min(each, _SUMS // rows) for each in _PARTS}, reverse=True):
                wide = int64(parts * _VECTOR_BYTES)
                end = builder.sub(row_bytes, builder.urem(row_bytes, wide))
                with cgutils.for_range_slice(builder, begin, end, wide) as (offset, _):
                    sums.write(rows, parts, offset, factors)
                begin = end
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), write

    return add_weighted_values


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
        """Write `parts` vectors of each row, at an offset in bytes. `scales`: address of what the accumulated sums are
        multiplied by first; None: they are replaced.
        """
        builder = self.builder
        pointers, own = [], []
        for row in range(rows):
            start = builder.gep(self.out[0], [builder.add(offset, builder.mul(self.out[1], int64(row)))])
            for part in range(parts):
                pointer = builder.bitcast(at(builder, start, part * _VECTOR_BYTES), _FLOATS.as_pointer())
                first = all_lanes(0.0)
                if scales is not None:
                    scale = splat(builder, load(builder, at(builder, scales, 4 * row), _FLOAT), LANES)
                    first = builder.fmul(builder.load(pointer, align=4), scale)
                pointers.append(pointer)
                own.append(cgutils.alloca_once(builder, _FLOATS))
                builder.store(first, own[-1])
        of_rows = [builder.gep(self.factors[0], [builder.mul(self.factors[1], int64(row))]) for row in range(rows)]
        begin = builder.gep(self.vectors[0], [offset])
        with cgutils.for_range_slice(builder, int64(0), self.steps, int64(1)) as (step, _):
            start = builder.gep(begin, [builder.mul(step, self.vectors[1])])
            vectors = [load(builder, at(builder, start, part * _VECTOR_BYTES), _FLOATS) for part in range(parts)]
            for row, address in enumerate(of_rows):
                pointer = builder.gep(address, [builder.mul(step, int64(4))])
                factor = splat(builder, load(builder, pointer, _FLOAT), LANES)
                for vector, variable in zip(vectors, own[row * parts : (row + 1) * parts], strict=True):
                    builder.store(multiply_add(builder, factor, vector, builder.load(variable)), variable)
        for pointer, variable in zip(pointers, own, strict=True):
            builder.store(builder.load(variable), pointer, align=4)
