"""Rows of whole numbers in the order of the tiles, each row or each group of its inputs rounded by its largest number.

The arithmetic is that of `int8_products.round_rows`: a row has the same whole numbers. A row or group that has a number
that is not finite becomes zeros with a scale that is not finite.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from frameworks.pytorch.compiled.dots import GROUP, Dot
from frameworks.pytorch.compiled.integer_tiles import ROW_HEAD_BYTES
from frameworks.pytorch.compiled.jit import (
    compiled,
    llvm_function,
    part,
    pointer_to_floats,
    stack_floats,
    store_float,
    store_integer,
)
from frameworks.pytorch.compiled.tiles import BYTES, function, load, scatter, splat
from frameworks.quantization.ranges import LARGEST_INT8

_TINY = np.float32(1e-12)
_I32, _I64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_GROUP_FLOATS, _GROUP_INTEGERS = ir.VectorType(_FLOAT, GROUP), ir.VectorType(_I32, GROUP)
_MAGNITUDE = 0x7FFFFFFF


@llvm_function
def _largest_bits(_context: Any, _source: Any) -> Any:
    """(address of a group's floats) → the bits of the largest magnitude, int64: infinity and NaN are the largest."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = load(builder, builder.inttoptr(arguments[0], BYTES), _GROUP_INTEGERS)
        magnitudes = builder.and_(bits, ir.Constant(_GROUP_INTEGERS, [_MAGNITUDE] * GROUP))
        largest = function(builder, f"llvm.vector.reduce.umax.v{GROUP}i32", _I32, [_GROUP_INTEGERS])
        return builder.zext(builder.call(largest, [magnitudes]), _I64)

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
    def round_group(_context: Any, _source: Any, _target: Any, _stride: Any, _inverse: Any) -> Any:
        """(address of a group's floats, address of its first whole numbers, bytes from these to the next ones, 1 /
        scale) → the sum of the whole numbers, int64, after writing them.
        """

        def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return _write_rounded(builder, arguments, dot)

        return types.int64(types.int64, types.int64, types.int64, types.float32), write

    return round_group


def _write_rounded(builder: Any, arguments: Any, dot: Dot) -> Any:
    source, target = (builder.inttoptr(each, BYTES) for each in arguments[:2])
    stride, inverse = arguments[2:]
    kind = _GROUP_FLOATS
    scaled = builder.fmul(load(builder, source, kind), splat(builder, inverse, GROUP))
    # Not so for NaN, whose integer is not defined.
    magnitude = builder.call(function(builder, f"llvm.fabs.v{GROUP}f32", kind, [kind]), [scaled])
    is_number = builder.fcmp_ordered("<", magnitude, ir.Constant(kind, [LARGEST_INT8 + 1.0] * GROUP))
    finite = builder.select(is_number, scaled, ir.Constant(kind, [0.0] * GROUP))
    rounded = builder.call(function(builder, f"llvm.roundeven.v{GROUP}f32", kind, [kind]), [finite])
    whole = builder.fptosi(rounded, _GROUP_INTEGERS)
    narrow = builder.trunc(whole, ir.VectorType(ir.IntType(8 * dot.row_width), GROUP))
    count = GROUP // dot.at_once
    parts = builder.bitcast(narrow, ir.VectorType(_I32, count))
    scatter(builder, parts, target, stride, count)
    total = function(builder, f"llvm.vector.reduce.add.v{GROUP}i32", _I32, [_GROUP_INTEGERS])
    return builder.sext(builder.call(total, [whole]), _I64)


@compiled
def _last_group(row: int, inputs: int, place: int) -> int:
    """Return the address of a row's last, broken group, copied to `place` with zeros behind."""
    source, target = pointer_to_floats(row), pointer_to_floats(place)
    whole = inputs // GROUP * GROUP
    for position in range(GROUP):
        target[position] = source[whole + position] if whole + position < inputs else np.float32(0)
    return place


def whole_row_writer(dot: Dot) -> Any:
    """Return a `Format.write_row` for `row_tile`."""
    round_group, step_bytes, offset = _group_rounder(dot), GROUP * dot.row_width, dot.offset

    @part
    def write_row(row: int, tile: int, size: int, index: int, inputs: int) -> None:
        steps = (inputs + GROUP - 1) // GROUP
        last = row + 4 * GROUP * (steps - 1)
        if inputs % GROUP:
            last = _last_group(row, inputs, stack_floats(32))
        bits = _largest_bits(last)
        for step in range(steps - 1):
            bits = max(bits, _largest_bits(row + 4 * GROUP * step))
        scale = _scale_of_bits(bits)
        inverse = np.float32(1) / scale
        place = tile + ROW_HEAD_BYTES * size + 4 * index
        total = 0
        for step in range(steps - 1):
            total += round_group(row + 4 * GROUP * step, place + step * step_bytes * size, 4 * size, inverse)
        total += round_group(last, place + (steps - 1) * step_bytes * size, 4 * size, inverse)
        store_float(tile + 4 * index, scale)
        store_integer(tile + 4 * (size + index), np.int32(offset * total))

    return write_row


def grouped_row_writer(dot: Dot, has_shift: bool) -> Any:
    """Return a `Format.write_row` for `group_tile`."""
    round_group, offset = _group_rounder(dot), dot.offset
    step_bytes = GROUP * dot.row_width + ROW_HEAD_BYTES
    head = GROUP * dot.row_width

    @part
    def write_row(row: int, tile: int, size: int, index: int, inputs: int) -> None:
        steps = (inputs + GROUP - 1) // GROUP
        for step in range(steps):
            group = row + 4 * GROUP * step
            if inputs - GROUP * step < GROUP:
                group = _last_group(row, inputs, stack_floats(32))
            scale = _scale_of_bits(_largest_bits(group))
            place = tile + step * step_bytes * size
            total = round_group(group, place + 4 * index, 4 * size, np.float32(1) / scale)
            store_float(place + head * size + 4 * index, scale)
            after = place + (head + 4) * size + 4 * index
            if has_shift:
                store_float(after, scale * np.float32(total))
            else:
                store_integer(after, np.int32(offset * total))

    return write_row
