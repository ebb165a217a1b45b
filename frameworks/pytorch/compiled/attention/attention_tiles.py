"""The inner loops of attention, in LLVM's language: a few rows of queries, and a block of keys or values.

All is float32. Keys are stored as [head size, keys], so scores (Q·K) and outputs (weights·V) are the same loop: sums of
vectors, each times a factor of the row. A row is summed in one order, whatever the number of rows in the tile.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import llvm_function
from frameworks.pytorch.compiled.simd.elementwise import all_lanes, exponential, multiply_add
from frameworks.pytorch.compiled.simd.llvm_vectors import (
    BYTES,
    LINE_BYTES,
    NARROW_LANES,
    VECTORS,
    at,
    int64,
    load,
    prefetch,
    splat,
)

KEYS = 32
"""Keys of a block."""
BLOCKS_AT_ONCE = 4
"""Blocks of a step of the online softmax."""
LANES = VECTORS.lanes
TILE_ROWS = (4, 2, 1) if LANES == NARROW_LANES else (8, 4, 2, 1)
"""Counts of rows that tiles are compiled for: eight have twice the sums of a key's vectors at once."""
LOWEST_SCORE = -1e30
"""The largest score before the first one. Finite: the difference to itself is 0."""

_SCORES_BYTES = 4 * KEYS * BLOCKS_AT_ONCE
"""From a row of scores to the next."""
_VECTOR_BYTES = 4 * LANES
# Sixteen registers hold eight sums and their operands, thirty-two hold sixteen.
_SUMS = 8 if LANES == NARROW_LANES else 16
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
def softmax_row(_context: Any, _scores: Any, _state: Any, _first: Any, _end: Any, _blocks: Any) -> Any:
    """(addresses: scores of a row, its state; first, end: the visible keys of some blocks; blocks) → a factor, float32.

    One step of the online softmax: scores are replaced by exp(score - running maximum), and masked keys by 0. The
    factor rescales what was accumulated relative to an earlier maximum. `state`: float32, the running maximum, and from
    LANES on the sums of the exponentials, by lane.
    """

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _write_softmax(builder, arguments)

    return types.float32(*[types.int64] * 5), write


def _write_softmax(builder: Any, arguments: Any) -> Any:
    scores, state = (builder.inttoptr(each, BYTES) for each in arguments[:2])
    row = _Row(builder, scores, arguments[2:4])
    before = load(builder, state, _FLOAT)
    maximum = cgutils.alloca_once_value(builder, splat(builder, before, LANES))
    with cgutils.for_range_slice(builder, int64(0), arguments[4], int64(1)) as (block, _):
        for _, _, score in row.scores(block):
            builder.store(larger_or_nan(builder, builder.load(maximum), score), maximum)
    largest = max_across_lanes(builder, builder.load(maximum))
    factor = exponential(builder, builder.fsub(splat(builder, before, LANES), largest))
    totals = builder.bitcast(at(builder, state, _VECTOR_BYTES), _FLOATS.as_pointer())
    total = cgutils.alloca_once_value(builder, builder.fmul(builder.load(totals, align=4), factor))
    with cgutils.for_range_slice(builder, int64(0), arguments[4], int64(1)) as (block, _):
        for pointer, is_visible, score in row.scores(block):
            weight = exponential(builder, builder.fsub(score, largest))
            weight = builder.select(is_visible, weight, all_lanes(0.0))
            builder.store(weight, pointer, align=4)
            builder.store(builder.fadd(builder.load(total), weight), total)
    builder.store(builder.load(total), totals, align=4)
    of_lane = [builder.extract_element(each, ir.Constant(_I32, 0)) for each in (largest, factor)]
    builder.store(of_lane[0], builder.bitcast(state, _FLOAT.as_pointer()), align=4)
    return of_lane[1]


class _Row:
    """The scores of a row. `visible`: first and end of the visible keys, int64."""

    def __init__(self, builder: Any, start: Any, visible: Any) -> None:
        self._builder, self._start = builder, start
        self._first, self._end = (splat(builder, builder.trunc(each, _I32), LANES) for each in visible)

    def scores(self, block: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Yield address, mask and scores of each vector of a block; masked ones are LOWEST_SCORE."""
        builder = self._builder
        first_key = builder.mul(block, int64(KEYS))
        scores = builder.gep(self._start, [builder.mul(first_key, int64(4))])
        index = splat(builder, builder.trunc(first_key, _I32), LANES)
        for lane in range(0, KEYS, LANES):
            keys = builder.add(index, ir.Constant(_INTEGERS, list(range(lane, lane + LANES))))
            is_visible = builder.and_(
                builder.icmp_signed(">=", keys, self._first), builder.icmp_signed("<", keys, self._end)
            )
            pointer = builder.bitcast(at(builder, scores, 4 * lane), _FLOATS.as_pointer())
            score = builder.load(pointer, align=4)
            yield pointer, is_visible, builder.select(is_visible, score, all_lanes(LOWEST_SCORE))


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
    → nothing. It writes float32 [rows, KEYS], of rows of BLOCKS_AT_ONCE blocks; elements from the count on are
    undefined.
    """

    @llvm_function
    def scores(_context: Any, queries: Any, keys: Any, out: Any, size: Any, row_bytes: Any, count: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            queries, keys, out = (builder.inttoptr(each, BYTES) for each in arguments[:3])
            size, row_bytes, count = arguments[3:]
            sums = _Sums(builder, (queries, row_bytes), (keys, int64(4 * KEYS)), (out, int64(_SCORES_BYTES)), size)
            parts = min(KEYS // LANES, _SUMS // rows)
            end = builder.mul(count, int64(4))
            with cgutils.for_range_slice(builder, int64(0), end, int64(parts * _VECTOR_BYTES)) as (offset, _):
                sums.write(rows, parts, offset, None)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), write

    return scores


def weighted_values_tile(rows: int) -> Any:
    """Return a function for compiled code that computes sums · factor + weights·V for `rows` rows.

    (addresses: softmax weights [rows, KEYS], of rows of BLOCKS_AT_ONCE blocks; values, sums, factors [rows]; count of
    keys; row bytes: of a value, and of the sums of a row, in whole vectors) → nothing.
    """

    @llvm_function
    def add_weighted_values(
        _context: Any, weights: Any, values: Any, sums: Any, factors: Any, count: Any, row_bytes: Any
    ) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            weights, values, out, factors = (builder.inttoptr(each, BYTES) for each in arguments[:4])
            count, row_bytes = arguments[4:]
            sums = _Sums(builder, (weights, int64(_SCORES_BYTES)), (values, row_bytes), (out, row_bytes), count)
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
