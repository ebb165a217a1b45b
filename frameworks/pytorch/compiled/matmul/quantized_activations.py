"""Rows of whole numbers in the order of the tiles, each row or each group of its inputs rounded by its largest number.

The arithmetic is that of `int8_products.round_rows`: a row has the same whole numbers. Where a Dot limits the pairs of
a group, the largest sum of two neighbours counts as a number, too. A row or group that has a number that is not finite
becomes zeros with a scale that is not finite.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import (
    compiled,
    inlined,
    llvm_function,
    part,
    pointer_to_floats,
    stack_floats,
    store_float,
    store_integer,
)
from frameworks.pytorch.compiled.matmul.dot_products import GROUP, Dot
from frameworks.pytorch.compiled.matmul.formats import LARGEST_TILE
from frameworks.pytorch.compiled.matmul.integer_tiles import ROW_HEAD_BYTES
from frameworks.pytorch.compiled.simd.interleave import interleave
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, function, load, number, splat
from frameworks.quantization.ranges import LARGEST_INT8

_TINY = np.float32(1e-12)
_I32, _I64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_GROUP_FLOATS, _GROUP_INTEGERS = ir.VectorType(_FLOAT, GROUP), ir.VectorType(_I32, GROUP)
_HALF_INTEGERS = ir.VectorType(_I32, GROUP // 2)
_MAGNITUDE = 0x7FFFFFFF


@llvm_function
def _largest_bits(_context: Any, _source: Any, _groups: Any) -> Any:
    """(address of floats, number of whole groups) → the bits of the largest magnitude, int64: infinity and NaN are the
    largest.
    """

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, kind = builder.inttoptr(arguments[0], BYTES), _GROUP_INTEGERS
        larger = function(builder, f"llvm.umax.v{GROUP}i32", kind, [kind, kind])
        found = cgutils.alloca_once_value(builder, ir.Constant(kind, [0] * GROUP))
        with cgutils.for_range_slice(builder, number(0), arguments[1], number(1)) as (group, _):
            bits = load(builder, builder.gep(source, [builder.mul(group, number(4 * GROUP))]), kind)
            magnitudes = builder.and_(bits, ir.Constant(kind, [_MAGNITUDE] * GROUP))
            builder.store(builder.call(larger, [builder.load(found), magnitudes]), found)
        largest = function(builder, f"llvm.vector.reduce.umax.v{GROUP}i32", _I32, [kind])
        return builder.zext(builder.call(largest, [builder.load(found)]), _I64)

    return types.int64(types.int64, types.int64), write


@llvm_function
def _largest_bits_of_pairs(_context: Any, _source: Any) -> Any:
    """(address of a group's floats) → the bits of the largest magnitude of a number or of a sum of two neighbours,
    int64.
    """

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        numbers = load(builder, builder.inttoptr(arguments[0], BYTES), _GROUP_FLOATS)
        halves = [
            builder.shuffle_vector(numbers, numbers, ir.Constant(_HALF_INTEGERS, list(range(first, GROUP, 2))))
            for first in range(2)
        ]
        kind, found = _HALF_INTEGERS, None
        larger = function(builder, f"llvm.umax.v{GROUP // 2}i32", kind, [kind, kind])
        for each in (*halves, builder.fadd(*halves)):
            magnitudes = builder.and_(builder.bitcast(each, kind), ir.Constant(kind, [_MAGNITUDE] * (GROUP // 2)))
            found = magnitudes if found is None else builder.call(larger, [found, magnitudes])
        largest = function(builder, f"llvm.vector.reduce.umax.v{GROUP // 2}i32", _I32, [kind])
        return builder.zext(builder.call(largest, [found]), _I64)

    return types.int64(types.int64), write


@llvm_function
def _scale_of_bits(_context: Any, _bits: Any) -> Any:
    """(bits of the largest magnitude) → the scale, float32."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        largest = builder.bitcast(builder.trunc(arguments[0], _I32), _FLOAT)
        scale = builder.fdiv(largest, ir.Constant(_FLOAT, float(LARGEST_INT8)))
        tiny = ir.Constant(_FLOAT, float(_TINY))
        return builder.select(builder.fcmp_ordered("<", scale, tiny), tiny, scale)

    return types.float32(types.int64), write


def _group_rounder(dot: Dot) -> Any:
    @llvm_function
    def round_group(_context: Any, _source: Any, _target: Any, _inverse: Any) -> Any:
        """(address of a group's floats, target, 1 / scale) → the sum, int64, of the whole numbers that it writes."""

        def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            whole = _write_rounded(builder, arguments, dot)
            return builder.sext(builder.call(_adder(builder), [whole]), _I64)

        return types.int64(types.int64, types.int64, types.float32), write

    return round_group


def _group_adder(dot: Dot) -> Any:
    @llvm_function
    def add_group(_context: Any, _source: Any, _target: Any, _inverse: Any, _sums: Any) -> Any:
        """(address of a group's floats, target, 1 / scale, sums) → nothing, after writing the whole numbers. They are
        added to the sums, int32 [GROUP], where the weights have an offset.
        """

        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            whole = _write_rounded(builder, arguments, dot)
            if dot.offset:
                place = builder.inttoptr(arguments[3], whole.type.as_pointer())
                builder.store(builder.add(builder.load(place, align=4), whole), place, align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.float32, types.int64), write

    return add_group


@llvm_function
def _total(_context: Any, _sums: Any) -> Any:
    """(address of int32 [GROUP]) → their sum, int64."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        sums = load(builder, builder.inttoptr(arguments[0], BYTES), _GROUP_INTEGERS)
        return builder.sext(builder.call(_adder(builder), [sums]), _I64)

    return types.int64(types.int64), write


def _adder(builder: Any) -> Any:
    return function(builder, f"llvm.vector.reduce.add.v{GROUP}i32", _I32, [_GROUP_INTEGERS])


def _write_rounded(builder: Any, arguments: Any, dot: Dot) -> Any:
    """Write the whole numbers of a group, and return them, int32 [GROUP]."""
    source, target = (builder.inttoptr(each, BYTES) for each in arguments[:2])
    kind = _GROUP_FLOATS
    scaled = builder.fmul(load(builder, source, kind), splat(builder, arguments[2], GROUP))
    # Not so for NaN, whose integer is not defined.
    magnitude = builder.call(function(builder, f"llvm.fabs.v{GROUP}f32", kind, [kind]), [scaled])
    is_number = builder.fcmp_ordered("<", magnitude, ir.Constant(kind, [LARGEST_INT8 + 1.0] * GROUP))
    finite = builder.select(is_number, scaled, ir.Constant(kind, [0.0] * GROUP))
    rounded = builder.call(function(builder, f"llvm.roundeven.v{GROUP}f32", kind, [kind]), [finite])
    whole = builder.fptosi(rounded, _GROUP_INTEGERS)
    narrow = builder.trunc(whole, ir.VectorType(ir.IntType(8 * dot.row_width), GROUP))
    builder.store(narrow, builder.bitcast(target, narrow.type.as_pointer()), align=4)
    return whole


@inlined
def _group_of(row: int, step: int, inputs: int, place: int) -> int:
    """Return the address of a group of a row; of the last, broken one, copied to `place` with zeros behind."""
    return row + 4 * GROUP * step if inputs - GROUP * step >= GROUP else _last_group(row, inputs, place)


@compiled
def _last_group(row: int, inputs: int, place: int) -> int:
    """Return the address of a row's last, broken group, copied to `place` with zeros behind."""
    source, target = pointer_to_floats(row), pointer_to_floats(place)
    whole = inputs // GROUP * GROUP
    for position in range(GROUP):
        target[position] = source[whole + position] if whole + position < inputs else np.float32(0)
    return place


def whole_row_writer(dot: Dot) -> Any:
    """Return a `Format.write_rows` for `row_tile`."""
    add_group, group_bytes, offset = _group_adder(dot), GROUP * dot.row_width, dot.offset
    room, room_of_sums, largest = LARGEST_TILE * group_bytes // 4, LARGEST_TILE * GROUP, LARGEST_TILE

    @part
    def write_rows(x: int, tile: int, rows: int, inputs: int) -> None:
        steps, last, rounded = (inputs + GROUP - 1) // GROUP, stack_floats(32), stack_floats(room)
        sums, inverses = stack_floats(room_of_sums), pointer_to_floats(stack_floats(largest))
        for row in range(rows):
            bits = _largest_bits(x + 4 * row * inputs, inputs // GROUP)
            if inputs % GROUP:
                bits = max(bits, _largest_bits(_last_group(x + 4 * row * inputs, inputs, last), 1))
            scale = _scale_of_bits(bits)
            inverses[row] = np.float32(1) / scale
            store_float(tile + 4 * row, scale)
            own = pointer_to_floats(sums + 4 * GROUP * row)
            for position in range(GROUP):
                own[position] = 0
        for step in range(steps):
            for row in range(rows):
                group = _group_of(x + 4 * row * inputs, step, inputs, last)
                add_group(group, rounded + group_bytes * row, inverses[row], sums + 4 * GROUP * row)
            place = tile + (ROW_HEAD_BYTES + step * group_bytes) * rows
            interleave(rounded, group_bytes, place, rows, group_bytes // 4)
        for row in range(rows):
            store_integer(tile + 4 * (rows + row), np.int32(offset * _total(sums + 4 * GROUP * row)))

    return write_rows


def grouped_row_writer(dot: Dot, has_shift: bool) -> Any:
    """Return a `Format.write_rows` for `group_tile`."""
    round_group, group_bytes, offset = _group_rounder(dot), GROUP * dot.row_width, dot.offset
    room, limits_pairs = LARGEST_TILE * group_bytes // 4, dot.limits_pairs

    @part
    def write_rows(x: int, tile: int, rows: int, inputs: int) -> None:
        last, rounded = stack_floats(32), stack_floats(room)
        for step in range((inputs + GROUP - 1) // GROUP):
            place = tile + step * (group_bytes + ROW_HEAD_BYTES) * rows
            scales = place + group_bytes * rows
            sums = scales + 4 * rows
            for row in range(rows):
                group = _group_of(x + 4 * row * inputs, step, inputs, last)
                scale = _scale_of_bits(_largest_bits_of_pairs(group) if limits_pairs else _largest_bits(group, 1))
                total = round_group(group, rounded + group_bytes * row, np.float32(1) / scale)
                store_float(scales + 4 * row, scale)
                if has_shift:
                    store_float(sums + 4 * row, scale * np.float32(total))
                else:
                    store_integer(sums + 4 * row, np.int32(offset * total))
            interleave(rounded, group_bytes, place, rows, group_bytes // 4)

    return write_rows
