"""Norms and rotations of a decoder's rows, for compiled code."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import compiled, llvm_function, pointer_to_floats, stack_floats
from frameworks.pytorch.compiled.simd.float_dtypes import load_bfloat16, load_float16, store_bfloat16, store_float16
from frameworks.pytorch.compiled.simd.llvm_vectors import number

FLOAT32, BFLOAT16, FLOAT16 = range(3)
"""Kinds of numbers: of a cache, and of an embedding."""
ROWS_AT_ONCE = 8
"""Rows that `scatter_rows` writes."""
_ROUNDED = 64
"""Numbers that are rounded as vectors before each is written alone."""
_ROUNDED_FLOATS = _ROUNDED // 2


@compiled
def copy(source: int, target: int, size: int) -> None:
    """Copy `size` float32 numbers."""
    x, out = pointer_to_floats(source), pointer_to_floats(target)
    for position in range(size):
        out[position] = x[position]


@compiled
def widen(source: int, target: int, size: int, kind: int) -> None:
    """Copy `size` numbers of a kind as float32."""
    out = pointer_to_floats(target)
    if kind == FLOAT32:
        copy(source, target, size)
    elif kind == BFLOAT16:
        for position in range(size):
            out[position] = load_bfloat16(source, position)
    else:
        for position in range(size):
            out[position] = load_float16(source, position)


@compiled
def scatter(source: int, target: int, size: int, stride: int, kind: int) -> None:
    """Write `size` float32 numbers to a cache, `stride` numbers from one to the next."""
    x, out = pointer_to_floats(source), pointer_to_floats(target)
    if kind == FLOAT32:
        for position in range(size):
            out[position * stride] = x[position]
        return
    rounded = stack_floats(_ROUNDED_FLOATS)
    for first in range(0, size, _ROUNDED):
        count = min(_ROUNDED, size - first)
        narrow(source + 4 * first, rounded, count, kind)
        _scatter_narrow(rounded, target + 2 * first * stride, count, stride)


@llvm_function
def _scatter_narrow(_context: Any, _source: Any, _target: Any, _count: Any, _stride: Any) -> Any:
    """(addresses of numbers of 16 bits, and of their place; count; numbers from one to the next there) → nothing."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.IntType(16).as_pointer()
        source, target = (builder.inttoptr(each, kind) for each in arguments[:2])
        count, stride = arguments[2:]
        with cgutils.for_range_slice(builder, number(0), count, number(1)) as (position, _):
            own = builder.load(builder.gep(source, [position]), align=2)
            builder.store(own, builder.gep(target, [builder.mul(position, stride)]), align=2)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), write


@llvm_function
def _scatter_parts(_context: Any, _source: Any, _target: Any, _size: Any, _stride: Any) -> Any:
    """As `scatter_rows`, for whole parts of ROWS_AT_ONCE numbers: the square of numbers is transposed in vectors."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.IntType(16).as_pointer()
        source, target = (builder.inttoptr(each, kind) for each in arguments[:2])
        size, stride = arguments[2:]
        square = ir.VectorType(ir.IntType(16), ROWS_AT_ONCE)
        end = builder.sub(size, builder.urem(size, number(ROWS_AT_ONCE)))
        with cgutils.for_range_slice(builder, number(0), end, number(ROWS_AT_ONCE)) as (first, _):
            places = [
                builder.gep(source, [builder.add(first, builder.mul(size, number(row)))]) for row in range(ROWS_AT_ONCE)
            ]
            vectors = [builder.load(builder.bitcast(each, square.as_pointer()), align=2) for each in places]
            for index, vector in enumerate(_transposed(builder, vectors)):
                place = builder.gep(target, [builder.mul(builder.add(first, number(index)), stride)])
                builder.store(vector, builder.bitcast(place, square.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), write


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Return the columns of a square of numbers, by numbers of two rows in turn, three times."""
    count = len(rows)
    masks = [
        ir.Constant(
            ir.VectorType(ir.IntType(32), count), [place // 2 + start + count * (place % 2) for place in range(count)]
        )
        for start in (0, count // 2)
    ]
    for _ in range(count.bit_length() - 1):
        pairs = zip(rows[: count // 2], rows[count // 2 :], strict=True)
        rows = [builder.shuffle_vector(*pair, mask) for pair in pairs for mask in masks]
    return rows


@compiled
def scatter_rows(source: int, target: int, size: int, stride: int) -> None:
    """Write numbers of 16 bits, [ROWS_AT_ONCE, size], to a cache as [size, ROWS_AT_ONCE], `stride` numbers from one row
    there to the next.
    """
    _scatter_parts(source, target, size, stride)
    whole = size - size % ROWS_AT_ONCE
    for row in range(ROWS_AT_ONCE):
        place = target + 2 * (whole * stride + row)
        _scatter_narrow(source + 2 * (row * size + whole), place, size - whole, stride)


@compiled
def narrow(source: int, target: int, size: int, kind: int) -> None:
    """Round `size` float32 numbers to those of a cache: kind BFLOAT16 or FLOAT16. In place too, if the target is not
    behind the source.
    """
    x = pointer_to_floats(source)
    if kind == BFLOAT16:
        for position in range(size):
            store_bfloat16(target, position, x[position])
    else:
        for position in range(size):
            store_float16(target, position, x[position])
