"""The inner loops of a GEMM of quantized activations and weights, with their scales (dequantization).

Each sum is made in the order of the inputs, so a token's result does not depend on the tokens beside it.
"""

from itertools import chain
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import llvm_function
from frameworks.pytorch.compiled.matmul.dot_products import DotProduct
from frameworks.pytorch.compiled.matmul.float_tiles import (
    TILE_SIGNATURE,
    Shape,
    accumulators,
    block_starts,
    fetch,
    fetch_ahead,
    of_blocks,
    sum_pointers,
)
from frameworks.pytorch.compiled.simd.llvm_vectors import (
    BLOCK,
    BYTES,
    PARTS,
    VECTORS,
    at,
    function,
    int64,
    load,
    splat,
)

ROW_HEAD_BYTES = 8
"""Of a row, or of a row's group: the scale, float32; and the sum of its quantized values, times
the zero point of the weights, int32, or times the scale, float32, for weights with shifts."""
HEAD_BYTES = 4 * BLOCK
"""Of a block: a scale for each output, float32."""
_HALVES = ir.VectorType(ir.HalfType(), VECTORS.lanes)
_I32, _FLOAT = ir.IntType(32), ir.FloatType()


def per_token_tile(dot: DotProduct, rows: int, blocks: int) -> Any:
    """Return a `Format.tile` for activations with a scale for each token, and weights with one for each output.

    A tile of rows begins with the scales and the sums of the rows; a block of weights with the scales of its outputs.
    """

    @llvm_function
    def tile(_context: Any, x: Any, w: Any, out: Any, steps: Any, following: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            _write_per_token_tile(builder, arguments, dot, rows, blocks)
            return context.get_dummy_value()

        return TILE_SIGNATURE, write

    return tile


def _write_per_token_tile(builder: Any, arguments: Any, dot: DotProduct, rows: int, blocks: int) -> None:
    x, w, out = (builder.inttoptr(each, BYTES) for each in arguments[:3])
    sums = accumulators(builder, rows * blocks, VECTORS.integers(32))
    for of_block in of_blocks(sums, rows):
        _start(builder, at(builder, x, 4 * rows), dot, of_block)
    shape = Shape(0, dot.group_bytes, 32 * dot.activation_bytes)
    first_x, starts = at(builder, x, ROW_HEAD_BYTES * rows), _block_starts(builder, w, arguments[3], shape, blocks)
    with cgutils.for_range_slice(builder, int64(0), arguments[3], int64(1)) as (step, _):
        of_rows = builder.gep(first_x, [builder.mul(step, int64(shape.row_step_bytes * rows))])
        fetch(builder, arguments[4], (step, arguments[3]), shape.step_bytes, rows)
        of_weights = [builder.gep(each, [builder.mul(step, int64(shape.step_bytes))]) for each in starts]
        for each in of_weights:
            fetch_ahead(builder, at(builder, each, HEAD_BYTES), shape.step_bytes, blocks)
        dot.add(builder, of_rows, [at(builder, each, HEAD_BYTES) for each in of_weights], rows, of_blocks(sums, rows))
    pointers = sum_pointers(builder, out, rows * blocks, VECTORS)
    for row in range(rows * blocks):
        scale = _row_factor(builder, x, row % rows)
        for part in PARTS:
            product = builder.sitofp(builder.load(sums[row][part]), VECTORS.floats)
            of_weight = load(builder, at(builder, starts[row // rows], 4 * VECTORS.lanes * part), VECTORS.floats)
            builder.store(builder.fmul(builder.fmul(product, of_weight), scale), pointers[row][part], align=4)


def per_group_tile(dot: DotProduct, has_shift: bool, rows: int, blocks: int) -> Any:
    """Return a `Format.tile` for activations and weights with a scale for each group of inputs.

    A group of activations: the int8 values, then the scales, then the sums. A group of weights: the scales, then the
    shifts, float16, then the integers: LLVM reads the scales first, and a CPU prefetches lines that are read in order.
    They are multiplied by the scale of the output that the block begins with.
    """

    @llvm_function
    def tile(_context: Any, x: Any, w: Any, out: Any, steps: Any, following: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            _write_per_group_tile(builder, arguments, dot, has_shift, (rows, blocks))
            return context.get_dummy_value()

        return TILE_SIGNATURE, write

    return tile


def per_group_shape(dot: DotProduct, has_shift: bool) -> Shape:
    """Return the bytes of a group."""
    return Shape(32, factor_bytes(has_shift) + dot.group_bytes, 32 * dot.activation_bytes + ROW_HEAD_BYTES)


def factor_bytes(has_shift: bool) -> int:
    """Return the bytes of the scales, and of the shifts, of a group of weights."""
    return 2 * BLOCK * (2 if has_shift else 1)


def _write_per_group_tile(
    builder: Any, arguments: Any, dot: DotProduct, has_shift: bool, sizes: tuple[int, int]
) -> None:
    rows, blocks = sizes
    x, w, out = (builder.inttoptr(each, BYTES) for each in arguments[:3])
    kind = VECTORS.floats
    shape = per_group_shape(dot, has_shift)
    sums, whole = accumulators(builder, rows * blocks, kind), accumulators(builder, rows, VECTORS.integers(32))
    for each in chain(*sums):
        builder.store(ir.Constant(kind, [0.0] * VECTORS.lanes), each)
    starts = _block_starts(builder, w, arguments[3], shape, blocks)
    with cgutils.for_range_slice(builder, int64(0), arguments[3], int64(1)) as (step, _):
        of_rows = builder.gep(x, [builder.mul(step, int64(shape.row_step_bytes * rows))])
        fetch(builder, arguments[4], (step, arguments[3]), shape.step_bytes, rows)
        for start, own in zip(starts, of_blocks(sums, rows), strict=True):
            pointer = builder.gep(at(builder, start, HEAD_BYTES), [builder.mul(step, int64(shape.step_bytes))])
            fetch_ahead(builder, pointer, shape.step_bytes, blocks)
            _add_group(builder, (of_rows, pointer), (dot, has_shift), whole, own)
    pointers = sum_pointers(builder, out, rows * blocks, VECTORS)
    for row in range(rows * blocks):
        for part in PARTS:
            of_output = load(builder, at(builder, starts[row // rows], 4 * VECTORS.lanes * part), kind)
            builder.store(builder.fmul(builder.load(sums[row][part]), of_output), pointers[row][part], align=4)


def _add_group(
    builder: Any,
    pointers: tuple[Any, Any],
    layout: tuple[DotProduct, bool],
    whole: list[list[Any]],
    sums: list[list[Any]],
) -> None:
    """Add the dequantized dot products of a group to the sums. `pointers`: its activations and weights. `whole`: int32
    accumulators of the group.
    """
    (of_rows, of_weights), (dot, has_shift) = pointers, layout
    kind, rows = VECTORS.floats, len(sums)
    multiply_add = function(builder, f"llvm.fma.v{VECTORS.lanes}f32", kind, [kind] * 3)
    row_scales = at(builder, of_rows, 32 * dot.activation_bytes * rows)
    row_sums = at(builder, row_scales, 4 * rows)
    _start(builder, row_sums, None if has_shift else dot, whole)
    dot.add(builder, of_rows, [at(builder, of_weights, factor_bytes(has_shift))], rows, [whole])
    scales = [_half(builder, of_weights, 2 * VECTORS.lanes * part) for part in PARTS]
    shifts = [_half(builder, of_weights, 2 * (BLOCK + VECTORS.lanes * part)) for part in PARTS]
    for row in range(rows):
        row_scale = _row_factor(builder, row_scales, row)
        row_sum = _row_factor(builder, row_sums, row)
        for part in PARTS:
            own = sums[row][part]
            product = builder.fmul(builder.sitofp(builder.load(whole[row][part]), kind), row_scale)
            total = builder.call(multiply_add, [product, scales[part], builder.load(own)])
            if has_shift:
                total = builder.call(multiply_add, [row_sum, shifts[part], total])
            builder.store(total, own)


def _block_starts(builder: Any, w: Any, steps: Any, shape: Shape, blocks: int) -> list[Any]:
    block_bytes = builder.add(builder.mul(steps, int64(shape.step_bytes)), int64(HEAD_BYTES))
    return block_starts(builder, w, block_bytes, blocks)


def _start(builder: Any, row_sums: Any, dot: DotProduct | None, sums: list[list[Any]]) -> None:
    """Set the accumulators to minus what the zero point of the weights adds."""
    zero = ir.Constant(VECTORS.integers(32), [0] * VECTORS.lanes)
    for row, of_row in enumerate(sums):
        start = zero
        if dot is not None and dot.zero_point:
            start = builder.neg(splat(builder, load(builder, at(builder, row_sums, 4 * row), _I32), VECTORS.lanes))
        for each in of_row:
            builder.store(start, each)


def _row_factor(builder: Any, address: Any, row: int) -> Any:
    return splat(builder, load(builder, at(builder, address, 4 * row), _FLOAT), VECTORS.lanes)


def _half(builder: Any, address: Any, offset: int) -> Any:
    return builder.fpext(load(builder, at(builder, address, offset), _HALVES), VECTORS.floats)
