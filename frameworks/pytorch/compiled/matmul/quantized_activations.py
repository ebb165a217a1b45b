"""int8 activations, packed in the order of the tiles: each token, or each group of its inputs, is quantized by its
absolute maximum.

The arithmetic is that of `int8_matmul.quantize_activations`, so both give the same integers. Where a DotProduct limits
the pairs of a group, the absolute maximum counts sums of two adjacent values, too. A token or group with an infinity or
NaN becomes zeros with a scale that is not finite.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import (
    compiled,
    inlined,
    inlined_early,
    llvm_function,
    pointer_to_floats,
    stack_floats,
    store_float,
    store_integer,
)
from frameworks.pytorch.compiled.matmul.dot_products import GROUP, DotProduct
from frameworks.pytorch.compiled.matmul.formats import LARGEST_TILE
from frameworks.pytorch.compiled.matmul.integer_tiles import ROW_HEAD_BYTES
from frameworks.pytorch.compiled.simd.interleave import interleave
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, function, int64, load, splat
from frameworks.quantization.ranges import LARGEST_INT8

_TINY = np.float32(1e-12)
_I32, _I64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_GROUP_FLOATS, _GROUP_INTEGERS = ir.VectorType(_FLOAT, GROUP), ir.VectorType(_I32, GROUP)
_HALF_INTEGERS = ir.VectorType(_I32, GROUP // 2)
_MAGNITUDE = 0x7FFFFFFF


@llvm_function
def _absmax_bits(_context: Any, _source: Any, _groups: Any) -> Any:
    """(address of float32, number of whole groups) → the bits of the absolute maximum, int64; infinity and NaN are the
    largest.
    """

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, kind = builder.inttoptr(arguments[0], BYTES), _GROUP_INTEGERS
        larger_or_nan = function(builder, f"llvm.umax.v{GROUP}i32", kind, [kind, kind])
        found = cgutils.alloca_once_value(builder, ir.Constant(kind, [0] * GROUP))
        with cgutils.for_range_slice(builder, int64(0), arguments[1], int64(1)) as (group, _):
            bits = load(builder, builder.gep(source, [builder.mul(group, int64(4 * GROUP))]), kind)
            magnitudes = builder.and_(bits, ir.Constant(kind, [_MAGNITUDE] * GROUP))
            builder.store(builder.call(larger_or_nan, [builder.load(found), magnitudes]), found)
        largest = function(builder, f"llvm.vector.reduce.umax.v{GROUP}i32", _I32, [kind])
        return builder.zext(builder.call(largest, [builder.load(found)]), _I64)

    return types.int64(types.int64, types.int64), write


@llvm_function
def _absmax_bits_of_pairs(_context: Any, _source: Any) -> Any:
    """(address of a group's float32) → the bits of the absolute maximum of a value or of a sum of two adjacent ones,
    int64.
    """

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        values = load(builder, builder.inttoptr(arguments[0], BYTES), _GROUP_FLOATS)
        halves = [
            builder.shuffle_vector(values, values, ir.Constant(_HALF_INTEGERS, list(range(first, GROUP, 2))))
            for first in range(2)
        ]
        kind, found = _HALF_INTEGERS, None
        larger_or_nan = function(builder, f"llvm.umax.v{GROUP // 2}i32", kind, [kind, kind])
        for each in (*halves, builder.fadd(*halves)):
            magnitudes = builder.and_(builder.bitcast(each, kind), ir.Constant(kind, [_MAGNITUDE] * (GROUP // 2)))
            found = magnitudes if found is None else builder.call(larger_or_nan, [found, magnitudes])
        largest = function(builder, f"llvm.vector.reduce.umax.v{GROUP // 2}i32", _I32, [kind])
        return builder.zext(builder.call(largest, [found]), _I64)

    return types.int64(types.int64), write


@llvm_function
def _scale_of_bits(_context: Any, _bits: Any) -> Any:
    """(bits of the absolute maximum) → the scale, float32."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        largest = builder.bitcast(builder.trunc(arguments[0], _I32), _FLOAT)
        scale = builder.fdiv(largest, ir.Constant(_FLOAT, float(LARGEST_INT8)))
        tiny = ir.Constant(_FLOAT, float(_TINY))
        return builder.select(builder.fcmp_ordered("<", scale, tiny), tiny, scale)

    return types.float32(types.int64), write


def _group_quantizer(dot: DotProduct) -> Any:
    @llvm_function
    def quantize_group(_context: Any, _source: Any, _target: Any, _inverse: Any) -> Any:
        """(address of a group's float32, target, 1 / scale) → the sum, int64, of the quantized values that it
        writes.
        """

        def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            quantized = _write_quantized(builder, arguments, dot)
            return builder.sext(builder.call(_adder(builder), [quantized]), _I64)

        return types.int64(types.int64, types.int64, types.float32), write

    return quantize_group


def _group_adder(dot: DotProduct) -> Any:
    @llvm_function
    def add_group(_context: Any, _source: Any, _target: Any, _inverse: Any, _sums: Any) -> Any:
        """(address of a group's float32, target, 1 / scale, sums) → nothing; writes the quantized values. They are
        added to the sums, int32 [GROUP], where the weights have a zero point.
        """

        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            quantized = _write_quantized(builder, arguments, dot)
            if dot.zero_point:
                sums = builder.inttoptr(arguments[3], quantized.type.as_pointer())
                builder.store(builder.add(builder.load(sums, align=4), quantized), sums, align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.float32, types.int64), write

    return add_group


@llvm_function
def _sum_of_lanes(_context: Any, _sums: Any) -> Any:
    """(address of int32 [GROUP]) → their sum, int64."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        sums = load(builder, builder.inttoptr(arguments[0], BYTES), _GROUP_INTEGERS)
        return builder.sext(builder.call(_adder(builder), [sums]), _I64)

    return types.int64(types.int64), write


def _adder(builder: Any) -> Any:
    return function(builder, f"llvm.vector.reduce.add.v{GROUP}i32", _I32, [_GROUP_INTEGERS])


def _write_quantized(builder: Any, arguments: Any, dot: DotProduct) -> Any:
    """Write the quantized values of a group, and return them, int32 [GROUP]."""
    source, target = (builder.inttoptr(each, BYTES) for each in arguments[:2])
    kind = _GROUP_FLOATS
    scaled = builder.fmul(load(builder, source, kind), splat(builder, arguments[2], GROUP))
    # False for NaN, whose conversion to an integer is undefined.
    magnitude = builder.call(function(builder, f"llvm.fabs.v{GROUP}f32", kind, [kind]), [scaled])
    is_finite = builder.fcmp_ordered("<", magnitude, ir.Constant(kind, [LARGEST_INT8 + 1.0] * GROUP))
    finite = builder.select(is_finite, scaled, ir.Constant(kind, [0.0] * GROUP))
    rounded = builder.call(function(builder, f"llvm.roundeven.v{GROUP}f32", kind, [kind]), [finite])
    quantized = builder.fptosi(rounded, _GROUP_INTEGERS)
    narrow = builder.trunc(quantized, ir.VectorType(ir.IntType(8 * dot.activation_bytes), GROUP))
    builder.store(narrow, builder.bitcast(target, narrow.type.as_pointer()), align=4)
    return quantized


@inlined
def _group_address(row: int, step: int, inputs: int, pad: int) -> int:
    """Return the address of a group of a row; of the last, broken one, copied to `pad` with zeros behind."""
    return row + 4 * GROUP * step if inputs - GROUP * step >= GROUP else _last_group(row, inputs, pad)


@compiled
def _last_group(row: int, inputs: int, pad: int) -> int:
    """Return the address of a row's last, broken group, copied to `pad` with zeros behind."""
    source, target = pointer_to_floats(row), pointer_to_floats(pad)
    whole = inputs // GROUP * GROUP
    for position in range(GROUP):
        target[position] = source[whole + position] if whole + position < inputs else np.float32(0)
    return pad


def per_token_quantizer(dot: DotProduct) -> Any:
    """Return a `Format.pack_tile` for `per_token_tile`: one scale for each token."""
    add_group, group_bytes, zero_point = _group_adder(dot), GROUP * dot.activation_bytes, dot.zero_point
    scratch_floats, floats_of_sums, largest = LARGEST_TILE * group_bytes // 4, LARGEST_TILE * GROUP, LARGEST_TILE

    @inlined_early
    def pack_tile(x: int, tile: int, rows: int, inputs: int) -> None:
        steps, last, rounded = (inputs + GROUP - 1) // GROUP, stack_floats(32), stack_floats(scratch_floats)
        sums, inverses = stack_floats(floats_of_sums), pointer_to_floats(stack_floats(largest))
        for row in range(rows):
            bits = _absmax_bits(x + 4 * row * inputs, inputs // GROUP)
            if inputs % GROUP:
                bits = max(bits, _absmax_bits(_last_group(x + 4 * row * inputs, inputs, last), 1))
            scale = _scale_of_bits(bits)
            inverses[row] = np.float32(1) / scale
            store_float(tile + 4 * row, scale)
            own = pointer_to_floats(sums + 4 * GROUP * row)
            for position in range(GROUP):
                own[position] = 0
        for step in range(steps):
            for row in range(rows):
                group = _group_address(x + 4 * row * inputs, step, inputs, last)
                add_group(group, rounded + group_bytes * row, inverses[row], sums + 4 * GROUP * row)
            target = tile + (ROW_HEAD_BYTES + step * group_bytes) * rows
            interleave(rounded, group_bytes, target, rows, group_bytes // 4)
        for row in range(rows):
            store_integer(tile + 4 * (rows + row), np.int32(zero_point * _sum_of_lanes(sums + 4 * GROUP * row)))

    return pack_tile


def per_group_quantizer(dot: DotProduct, has_shift: bool) -> Any:
    """Return a `Format.pack_tile` for `per_group_tile`: a scale for each group of a token."""
    quantize_group, group_bytes, zero_point = _group_quantizer(dot), GROUP * dot.activation_bytes, dot.zero_point
    scratch_floats, limits_pairs = LARGEST_TILE * group_bytes // 4, dot.limits_pairs

    @inlined_early
    def pack_tile(x: int, tile: int, rows: int, inputs: int) -> None:
        last, rounded = stack_floats(32), stack_floats(scratch_floats)
        for step in range((inputs + GROUP - 1) // GROUP):
            target = tile + step * (group_bytes + ROW_HEAD_BYTES) * rows
            scales = target + group_bytes * rows
            sums = scales + 4 * rows
            for row in range(rows):
                group = _group_address(x + 4 * row * inputs, step, inputs, last)
                scale = _scale_of_bits(_absmax_bits_of_pairs(group) if limits_pairs else _absmax_bits(group, 1))
                total = quantize_group(group, rounded + group_bytes * row, np.float32(1) / scale)
                store_float(scales + 4 * row, scale)
                if has_shift:
                    store_float(sums + 4 * row, scale * np.float32(total))
                else:
                    store_integer(sums + 4 * row, np.int32(zero_point * total))
            interleave(rounded, group_bytes, target, rows, group_bytes // 4)

    return pack_tile
