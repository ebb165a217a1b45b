"""The inner loops of a GEMM of floats, in LLVM's language: a few rows of activations times one block of weights.

A tile is R rows times BLOCK_VECTORS vectors of outputs. Its accumulators stay in registers while the inputs pass. Each
sum is made in the order of the inputs, in chunks of CHUNK inputs. So a row's result does not depend on the rows beside
it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import llvm_function
from frameworks.pytorch.compiled.simd.llvm_vectors import (
    BLOCK_VECTORS,
    BYTES,
    FIRST_CACHE,
    LINE_BYTES,
    NARROW_LANES,
    PARTS,
    Vectors,
    at,
    function,
    int64,
    load,
    prefetch,
    splat,
)

CHUNK = 512
"""Inputs that are added to one accumulator; rounding errors grow with the length of a sum."""

_MOST_NARROW_SUMS = 8
# A tile of one row takes several blocks at once instead.
_FETCHING_ROWS = 2
ALL_OF_BLOCK, SLOWER, MOST_SLOWER, _OPTIONS = 1, 2, 7, 16
"""Options that are added to the address of the next weights, see `fetch`."""
_BYTES_AHEAD = 2048
"""Of each block, while one row is multiplied by several: a CPU's own prefetching of several streams is too late."""
TILE_SIGNATURE = types.void(*[types.int64] * 5)
_FLOAT = ir.FloatType()

Step = Callable[[Any, Any, Any, int, list[list[Any]]], None]
"""Adds activations @ weights of one step of inputs: IR builder, addresses (bytes) of the step in the
tile's activations and in the block's weights, number of rows, the accumulators [rows][BLOCK_VECTORS]."""
LoadWeights = Callable[[Any, Any], list[list[Any]]]
"""IR builder, address (bytes) of a step in the block's weights → for each input of the step, the weights as
BLOCK_VECTORS vectors of float32."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`inputs_at_once`: of a step. `step_bytes`: of the weights of a block for a step. `row_step_bytes`: of a row."""

    inputs_at_once: int
    step_bytes: int
    row_step_bytes: int


def float_tile(vectors: Vectors, shape: Shape, add_step: Step, rows: int, blocks: int = 1) -> Any:
    """Return a function for compiled code: (addresses of activations, weights and sums; steps; address of the next
    weights) → nothing.

    It multiplies the packed rows of a tile by some adjacent blocks of weights, and writes float32 [blocks, rows,
    outputs of a block]. Meanwhile it prefetches the next weights, or a part of them, see `fetch`.
    """

    @llvm_function
    def tile(_context: Any, x: Any, w: Any, out: Any, steps: Any, following: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            _write_float_tile(builder, arguments, (vectors, shape), add_step, (rows, blocks))
            return context.get_dummy_value()

        return TILE_SIGNATURE, write

    return tile


def _write_float_tile(
    builder: Any, arguments: Any, layout: tuple[Vectors, Shape], add_step: Step, sizes: tuple[int, int]
) -> None:
    vectors, shape = layout
    rows, blocks = sizes
    x, w, out = (builder.inttoptr(each, BYTES) for each in arguments[:3])
    steps, kind = arguments[3], vectors.floats
    zero = ir.Constant(kind, [0.0] * vectors.lanes)
    pointers = sum_pointers(builder, out, rows * blocks, vectors)
    sums = accumulators(builder, rows * blocks, kind)
    starts = block_starts(builder, w, builder.mul(steps, int64(shape.step_bytes)), blocks)
    for pointer in chain(*pointers):
        builder.store(zero, pointer, align=4)
    chunk = int64(CHUNK // shape.inputs_at_once)
    is_crowded = vectors.lanes == NARROW_LANES and rows * BLOCK_VECTORS >= _MOST_NARROW_SUMS
    with cgutils.for_range_slice(builder, int64(0), steps, chunk) as (first, _):
        for each in chain(*sums):
            builder.store(zero, each)
        after = builder.add(first, chunk)
        end = builder.select(builder.icmp_signed("<", after, steps), after, steps)
        with cgutils.for_range_slice(builder, first, end, int64(1)) as (step, _):
            of_rows = builder.gep(x, [builder.mul(step, int64(shape.row_step_bytes * rows))])
            fetch(builder, arguments[4], (step, steps), shape.step_bytes, rows, is_crowded=is_crowded)
            for start, own in zip(starts, of_blocks(sums, rows), strict=True):
                of_weights = builder.gep(start, [builder.mul(step, int64(shape.step_bytes))])
                fetch_ahead(builder, of_weights, shape.step_bytes, blocks)
                add_step(builder, of_rows, of_weights, rows, own)
        for each, pointer in zip(chain(*sums), chain(*pointers), strict=True):
            builder.store(builder.fadd(builder.load(pointer, align=4), builder.load(each)), pointer, align=4)


def block_starts(builder: Any, w: Any, block_bytes: Any, blocks: int) -> list[Any]:
    """Return the addresses of so many blocks of the weights, which follow each other."""
    return [builder.gep(w, [builder.mul(block_bytes, int64(block))]) for block in range(blocks)]


def of_blocks(sums: list[list[Any]], rows: int) -> list[list[list[Any]]]:
    """Return the sums of each block, [rows][BLOCK_VECTORS]."""
    return [sums[first : first + rows] for first in range(0, len(sums), rows)]


def fetch(
    builder: Any, following: Any, steps: tuple[Any, Any], step_bytes: int, rows: int, *, is_crowded: bool = False
) -> None:
    """Prefetch this step's share of half a block of the next weights, and of the half behind it. `following`: 0 for
    nothing, or the address of the half, of a multiple of 16. Added to it, as another argument would take a register:
    ALL_OF_BLOCK for both halves; SLOWER times n for the first 2^-n of the half. `steps`: the step, and their number.
    `is_crowded`: the accumulators leave no register, so one half is prefetched at most.

    With AVX2 the tile's own reads need all of the CPU's loads: at 64 rows and more, prefetching takes a tenth of the
    time.
    """
    if rows < _FETCHING_ROWS:
        return
    with builder.if_then(builder.icmp_signed("!=", following, int64(0))):
        start = builder.and_(following, int64(-_OPTIONS))
        slower = builder.and_(builder.lshr(following, int64(1)), int64(MOST_SLOWER))
        _fetch_share(builder, start, builder.lshr(steps[0], slower), step_bytes // 2)
        if not is_crowded:
            with builder.if_then(builder.trunc(following, ir.IntType(1))):
                _fetch_share(builder, start, builder.add(*steps), step_bytes // 2)


def _fetch_share(builder: Any, start: Any, index: Any, num_bytes: int) -> None:
    pointer = builder.gep(builder.inttoptr(start, BYTES), [builder.mul(index, int64(num_bytes))])
    for offset in range(0, num_bytes, LINE_BYTES):
        prefetch(builder, at(builder, pointer, offset))


def fetch_ahead(builder: Any, of_weights: Any, step_bytes: int, blocks: int) -> None:
    """Prefetch the weights of a later step, if several blocks are read at once. `of_weights`: address of this
    step's.
    """
    if blocks > 1:
        for offset in range(_BYTES_AHEAD, _BYTES_AHEAD + step_bytes, LINE_BYTES):
            prefetch(builder, at(builder, of_weights, offset), FIRST_CACHE)


def widening_step(vectors: Vectors, load_weights: LoadWeights) -> Step:
    """Return a step whose weights are converted to float32. Activations are float32 [inputs of the step, rows]."""

    def add_step(builder: Any, x: Any, w: Any, rows: int, sums: list[list[Any]]) -> None:
        kind = vectors.floats
        multiply_add = function(builder, f"llvm.fma.v{vectors.lanes}f32", kind, [kind] * 3)
        for index, of_input in enumerate(load_weights(builder, w)):
            for row in range(rows):
                factor = splat(builder, load(builder, at(builder, x, 4 * (index * rows + row)), _FLOAT), vectors.lanes)
                for weights, own in zip(of_input, sums[row], strict=True):
                    builder.store(builder.call(multiply_add, [weights, factor, builder.load(own)]), own)

    return add_step


def sum_pointers(builder: Any, out: Any, rows: int, vectors: Vectors) -> list[list[Any]]:
    """Return the addresses of float32 [rows, block] at `out`, as vectors."""
    offsets = [[4 * (row * vectors.block + part * vectors.lanes) for part in PARTS] for row in range(rows)]
    return [[builder.bitcast(at(builder, out, each), vectors.floats.as_pointer()) for each in of] for of in offsets]


def accumulators(builder: Any, rows: int, kind: Any) -> list[list[Any]]:
    """Return accumulators of the LLVM type `kind`, [rows][BLOCK_VECTORS]."""
    return [[cgutils.alloca_once(builder, kind) for _ in PARTS] for _ in range(rows)]
