"""Norms and rotations of a decoder's rows, for compiled code."""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.formats import VECTORS
from frameworks.pytorch.compiled.jit import compiled, llvm_function, pointer_to_floats, stack_floats
from frameworks.pytorch.compiled.narrow_numbers import load_bfloat16, load_float16, store_bfloat16, store_float16
from frameworks.pytorch.compiled.tiles import BYTES, load, number

FLOAT32, BFLOAT16, FLOAT16 = range(3)
"""Kinds of numbers: of a cache, and of an embedding."""
ROWS_AT_ONCE = 8
"""Rows that `scatter_rows` writes."""
_LANES = VECTORS.lanes
_ROUNDED = 64
"""Numbers that are rounded as vectors before each is written alone."""
_ROUNDED_FLOATS = _ROUNDED // 2
_ZERO, _ONE = np.float32(0), np.float32(1)


@compiled
def normalize(source: int, target: int, weight: int, size: int, epsilon: Any) -> None:
    """x / √(mean(x²) + ε) · weight of `size` float32 numbers."""
    x, out, factors = pointer_to_floats(source), pointer_to_floats(target), pointer_to_floats(weight)
    total = _ZERO
    for position in range(size):
        total += x[position] * x[position]
    scale = _ONE / np.float32(math.sqrt(total / np.float32(size) + epsilon))
    for position in range(size):
        out[position] = x[position] * scale * factors[position]


@compiled
def rotate(head: int, cosines: int, sines: int, size: int) -> None:
    """Rotate a head of `size` numbers, its halves together (Su et al. 2021). `cosines`, `sines`: [size / 2]."""
    half = size // 2
    whole = half - half % _LANES
    _rotate_vectors(head, cosines, sines, half, whole)
    x, cosine, sine = pointer_to_floats(head), pointer_to_floats(cosines), pointer_to_floats(sines)
    for position in range(whole, half):
        first, second = x[position], x[position + half]
        x[position] = first * cosine[position] - second * sine[position]
        x[position + half] = second * cosine[position] + first * sine[position]


@llvm_function
def _rotate_vectors(_context: Any, _head: Any, _cosines: Any, _sines: Any, _half: Any, _whole: Any) -> Any:
    """(addresses of a head, cosines and sines; half of its size; numbers in whole vectors) → nothing, after rotating
    these. LLVM makes scalar code of a loop whose results take the place of what it reads.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        head, cosines, sines = (builder.inttoptr(each, BYTES) for each in arguments[:3])
        half, whole = arguments[3:]
        other = builder.gep(head, [builder.mul(half, number(4))])
        with cgutils.for_range_slice(builder, number(0), whole, number(VECTORS.lanes)) as (position, _):
            offset = [builder.mul(position, number(4))]
            own_places = [builder.gep(each, offset) for each in (head, other)]
            first, second = (load(builder, each, VECTORS.floats) for each in own_places)
            cosine, sine = (load(builder, builder.gep(each, offset), VECTORS.floats) for each in (cosines, sines))
            turned = (
                builder.fsub(builder.fmul(first, cosine), builder.fmul(second, sine)),
                builder.fadd(builder.fmul(second, cosine), builder.fmul(first, sine)),
            )
            for each, place in zip(turned, own_places, strict=True):
                builder.store(each, builder.bitcast(place, VECTORS.floats.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), write


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
