"""Activations rounded to bfloat16, packed in the order of the tiles."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from frameworks.pytorch.compiled.cpu_features import has_bfloat16
from frameworks.pytorch.compiled.jit import compiled, inlined_early, llvm_function, pointer_to_floats, stack_floats
from frameworks.pytorch.compiled.matmul.formats import LARGEST_TILE
from frameworks.pytorch.compiled.simd.interleave import interleave
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, function, load

_HAS_BFLOAT16 = has_bfloat16()
_AT_ONCE = 32
# Of float32, for the rounded activations of a tile.
_SCRATCH_FLOATS = LARGEST_TILE * _AT_ONCE // 2
_I32 = ir.IntType(32)
_INTEGERS = ir.VectorType(_I32, _AT_ONCE)
_PARTS = 3
"""bfloat16 whose sum is a float32, but for denormals: 8 bits of its significand each."""
_HALF_BITS, _BELOW_HALF = 16, 0x7FFF
_MAGNITUDE, _INFINITY, _QUIET = 0x7FFFFFFF, 0x7F800000, 0x7FC00000


class _BFloat16(ir.HalfType):  # type: ignore[misc]
    """LLVM's type, which llvmlite has no name for."""

    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"


_BFloat16._create_instance()


@llvm_function
def write_bfloat16(_context: Any, _source: Any, _target: Any) -> Any:
    """(address of _AT_ONCE float32, target) → nothing; writes the nearest bfloat16, ties to even."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, target = (builder.inttoptr(each, BYTES) for each in arguments[:2])
        values = load(builder, source, ir.VectorType(ir.FloatType(), _AT_ONCE))
        store_bfloat16_vector(builder, values, target)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), write


@llvm_function
def _write_bfloat16_parts(_context: Any, _source: Any, _target: Any, _part_bytes: Any) -> Any:
    """(address of _AT_ONCE float32, target, bytes from a part to the next) → nothing; writes three bfloat16 whose sum
    is the number.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, target = (builder.inttoptr(each, BYTES) for each in arguments[:2])
        rest = load(builder, source, ir.VectorType(ir.FloatType(), _AT_ONCE))
        for _ in range(_PARTS):
            rounded = store_bfloat16_vector(builder, rest, target)
            bits = builder.shl(builder.zext(rounded, _INTEGERS), _all(_HALF_BITS))
            rest = builder.fsub(rest, builder.bitcast(bits, rest.type))
            target = builder.gep(target, [arguments[2]])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), write


def store_bfloat16_vector(builder: Any, values: Any, target: Any) -> Any:
    """Write _AT_ONCE float32 values as the nearest bfloat16, ties to even, and return their bits. `target`: address
    (bytes pointer).

    The CPU's instruction rounds denormals, below 2^-126, to zero; its dot products of bfloat16 take them for zero, too.
    """
    narrow = _bfloat16_by_instruction(builder, values) if _HAS_BFLOAT16 else _bfloat16_by_shifts(builder, values)
    builder.store(narrow, builder.bitcast(target, narrow.type.as_pointer()), align=4)
    return narrow


def _bfloat16_by_instruction(builder: Any, values: Any) -> Any:
    half = _AT_ONCE // 2
    kind = ir.VectorType(ir.FloatType(), half)
    parts = [
        builder.shuffle_vector(values, values, ir.Constant(ir.VectorType(_I32, half), list(range(first, first + half))))
        for first in (half, 0)
    ]
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    narrow = builder.call(function(builder, name, ir.VectorType(_BFloat16(), _AT_ONCE), [kind] * 2), parts)
    return builder.bitcast(narrow, ir.VectorType(ir.IntType(16), _AT_ONCE))


def _bfloat16_by_shifts(builder: Any, values: Any) -> Any:
    bits = builder.bitcast(values, _INTEGERS)
    odd = builder.and_(builder.lshr(bits, _all(_HALF_BITS)), _all(1))
    rounded = builder.add(bits, builder.add(odd, _all(_BELOW_HALF)))
    is_nan = builder.icmp_unsigned(">", builder.and_(bits, _all(_MAGNITUDE)), _all(_INFINITY))
    high = builder.lshr(builder.select(is_nan, _all(_QUIET), rounded), _all(_HALF_BITS))
    return builder.trunc(high, ir.VectorType(ir.IntType(16), _AT_ONCE))


def _all(value: int) -> Any:
    return ir.Constant(_INTEGERS, [value] * _AT_ONCE)


@inlined_early
def pack_bfloat16_pairs(x: int, tile: int, rows: int, inputs: int) -> None:
    """A `Format.pack_tile`: bfloat16 [pairs of inputs, rows of the tile, 2], padded with a zero behind an odd input."""
    rounded, filled = stack_floats(_SCRATCH_FLOATS), stack_floats(_AT_ONCE)
    for first in range(0, inputs, _AT_ONCE):
        count = min(_AT_ONCE, inputs - first)
        for row in range(rows):
            source = x + 4 * (row * inputs + first)
            if count < _AT_ONCE:
                source = _padded(source, filled, count)
            write_bfloat16(source, rounded + 2 * _AT_ONCE * row)
        interleave(rounded, 2 * _AT_ONCE, tile + 2 * first * rows, rows, (count + 1) // 2)


def bfloat16_packer(part_bytes: int, parts: int = 1) -> Any:
    """Return a `Format.pack_tile`: bfloat16 [steps, parts, rows, _AT_ONCE], padded with zeros behind the inputs.

    `part_bytes`: from one part to the next. `parts`: of each activation, 1 or _PARTS.
    """
    step_bytes, has_parts = parts * part_bytes, parts > 1

    @inlined_early
    def pack_tile(x: int, tile: int, rows: int, inputs: int) -> None:
        filled = stack_floats(_AT_ONCE)
        for step in range((inputs + _AT_ONCE - 1) // _AT_ONCE):
            count = min(_AT_ONCE, inputs - _AT_ONCE * step)
            for row in range(rows):
                source = x + 4 * (row * inputs + _AT_ONCE * step)
                if count < _AT_ONCE:
                    source = _padded(source, filled, count)
                target = tile + step_bytes * step + 2 * _AT_ONCE * row
                if has_parts:
                    _write_bfloat16_parts(source, target, part_bytes)
                else:
                    write_bfloat16(source, target)

    return pack_tile


@compiled
def _padded(source: int, address: int, count: int) -> int:
    """Return the address of _AT_ONCE float32, copied to `address` with zeros behind the first `count`."""
    given, copy = pointer_to_floats(source), pointer_to_floats(address)
    for position in range(_AT_ONCE):
        copy[position] = given[position] if position < count else np.float32(0)
    return address
