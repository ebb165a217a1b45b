"""Convert the dtype of rows, and write keys to the blocks of a KV cache, for compiled code."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import compiled, llvm_function, pointer_to_floats, stack_floats
from frameworks.pytorch.compiled.simd.float_dtypes import load_bfloat16, load_float16, store_bfloat16, store_float16
from frameworks.pytorch.compiled.simd.llvm_vectors import int64

FLOAT32, BFLOAT16, FLOAT16 = range(3)
"""The dtypes of a KV cache and of an embedding, as integers for compiled code."""
ROWS_AT_ONCE = 8
"""Rows that `scatter_rows` writes."""
_ROUNDED = 64
"""Elements that are rounded as vectors before each is written alone."""
_ROUNDED_FLOATS = _ROUNDED // 2


@compiled
def copy(source: int, target: int, size: int) -> None:
    """Copy `size` float32 elements."""
    x, out = pointer_to_floats(source), pointer_to_floats(target)
    for position in range(size):
        out[position] = x[position]


@compiled
def widen(source: int, target: int, size: int, dtype: int) -> None:
    """Copy `size` elements of a dtype as float32."""
    out = pointer_to_floats(target)
    if dtype == FLOAT32:
        copy(source, target, size)
    elif dtype == BFLOAT16:
        for position in range(size):
            out[position] = load_bfloat16(source, position)
    else:
        for position in range(size):
            out[position] = load_float16(source, position)


@compiled
def scatter(source: int, target: int, size: int, stride: int, dtype: int) -> None:
    """Write `size` float32 elements to a cache of a dtype, with a stride of `stride` elements."""
    x, out = pointer_to_floats(source), pointer_to_floats(target)
    if dtype == FLOAT32:
        for position in range(size):
            out[position * stride] = x[position]
        return
    rounded = stack_floats(_ROUNDED_FLOATS)
    for first in range(0, size, _ROUNDED):
        count = min(_ROUNDED, size - first)
        narrow(source + 4 * first, rounded, count, dtype)
        _scatter_16_bits(rounded, target + 2 * first * stride, count, stride)


@llvm_function
def _scatter_16_bits(_context: Any, _source: Any, _target: Any, _count: Any, _stride: Any) -> Any:
    """(addresses of 16-bit elements, and of the target; count; stride of the target in elements) → nothing."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.IntType(16).as_pointer()
        source, target = (builder.inttoptr(each, kind) for each in arguments[:2])
        count, stride = arguments[2:]
        with cgutils.for_range_slice(builder, int64(0), count, int64(1)) as (position, _):
            own = builder.load(builder.gep(source, [position]), align=2)
            builder.store(own, builder.gep(target, [builder.mul(position, stride)]), align=2)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), write


def _squares_writer(bits: int) -> Any:
    """Return a function for compiled code: (addresses of elements of so many bits, [ROWS_AT_ONCE, size], and of the
    target; size; elements from row to row of both) → nothing. It writes whole squares of ROWS_AT_ONCE elements, which
    are transposed in vectors.
    """

    @llvm_function
    def scatter_squares(_context: Any, _source: Any, _target: Any, _size: Any, _row: Any, _stride: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            element = ir.IntType(bits)
            source, target = (builder.inttoptr(each, element.as_pointer()) for each in arguments[:2])
            size, row_size, stride = arguments[2:]
            square = ir.VectorType(element, ROWS_AT_ONCE)
            end = builder.sub(size, builder.urem(size, int64(ROWS_AT_ONCE)))
            with cgutils.for_range_slice(builder, int64(0), end, int64(ROWS_AT_ONCE)) as (first, _):
                pointers = [
                    builder.gep(source, [builder.add(first, builder.mul(row_size, int64(row)))])
                    for row in range(ROWS_AT_ONCE)
                ]
                vectors = [
                    builder.load(builder.bitcast(each, square.as_pointer()), align=bits // 8) for each in pointers
                ]
                for index, vector in enumerate(_transposed(builder, vectors)):
                    pointer = builder.gep(target, [builder.mul(builder.add(first, int64(index)), stride)])
                    builder.store(vector, builder.bitcast(pointer, square.as_pointer()), align=bits // 8)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), write

    return scatter_squares


_scatter_squares, _scatter_float_squares = _squares_writer(16), _squares_writer(32)


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Return the columns of a square of elements: two rows are interleaved at a time, three times."""
    count = len(rows)
    masks = [
        ir.Constant(
            ir.VectorType(ir.IntType(32), count),
            [lane // 2 + start + count * (lane % 2) for lane in range(count)],
        )
        for start in (0, count // 2)
    ]
    for _ in range(count.bit_length() - 1):
        pairs = zip(rows[: count // 2], rows[count // 2 :], strict=True)
        rows = [builder.shuffle_vector(*pair, mask) for pair in pairs for mask in masks]
    return rows


@compiled
def scatter_rows(source: int, target: int, size: int, stride: int) -> None:
    """Write 16-bit elements, [ROWS_AT_ONCE, size], to a cache as [size, ROWS_AT_ONCE], with a stride of `stride`
    elements from row to row there.
    """
    _scatter_squares(source, target, size, size, stride)
    whole = size - size % ROWS_AT_ONCE
    for row in range(ROWS_AT_ONCE):
        address = target + 2 * (whole * stride + row)
        _scatter_16_bits(source + 2 * (row * size + whole), address, size - whole, stride)


@compiled
def scatter_float_rows(source: int, target: int, size: int, row_size: int, stride: int) -> None:
    """As `scatter_rows`, of float32. `row_size`: elements from row to row of the source."""
    _scatter_float_squares(source, target, size, row_size, stride)
    whole = size - size % ROWS_AT_ONCE
    for row in range(ROWS_AT_ONCE):
        address = target + 4 * (whole * stride + row)
        scatter(source + 4 * (row * row_size + whole), address, size - whole, stride, FLOAT32)


@compiled
def narrow(source: int, target: int, size: int, dtype: int) -> None:
    """Round `size` float32 elements to BFLOAT16 or FLOAT16. In place too, if the target is not behind the source."""
    x = pointer_to_floats(source)
    if dtype == BFLOAT16:
        for position in range(size):
            store_bfloat16(target, position, x[position])
    else:
        for position in range(size):
            store_float16(target, position, x[position])
