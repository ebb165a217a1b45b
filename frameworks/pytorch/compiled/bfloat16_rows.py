"""Rows of bfloat16 in the order of the tiles: pairs of neighbouring inputs."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from frameworks.pytorch.compiled.jit import llvm_function, part, pointer_to_floats, stack_floats
from frameworks.pytorch.compiled.tiles import BYTES, load, scatter

_AT_ONCE = 32
_I32 = ir.IntType(32)
_INTEGERS = ir.VectorType(_I32, _AT_ONCE)
_HALF_BITS, _BELOW_HALF = 16, 0x7FFF
_MAGNITUDE, _INFINITY, _QUIET = 0x7FFFFFFF, 0x7F800000, 0x7FC00000


@llvm_function
def _write_rounded(_context: Any, _source: Any, _target: Any, _stride: Any) -> Any:
    """(address of _AT_ONCE floats, address of the first pair, bytes from a pair to the next) → nothing, after writing
    the nearest bfloat16, of two the even one.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, target = (builder.inttoptr(each, BYTES) for each in arguments[:2])
        bits = load(builder, source, _INTEGERS)
        odd = builder.and_(builder.lshr(bits, _all(_HALF_BITS)), _all(1))
        rounded = builder.add(bits, builder.add(odd, _all(_BELOW_HALF)))
        is_nan = builder.icmp_unsigned(">", builder.and_(bits, _all(_MAGNITUDE)), _all(_INFINITY))
        high = builder.lshr(builder.select(is_nan, _all(_QUIET), rounded), _all(_HALF_BITS))
        narrow = builder.trunc(high, ir.VectorType(ir.IntType(16), _AT_ONCE))
        pairs = builder.bitcast(narrow, ir.VectorType(_I32, _AT_ONCE // 2))
        scatter(builder, pairs, target, arguments[2], _AT_ONCE // 2)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), write


def _all(value: int) -> Any:
    return ir.Constant(_INTEGERS, [value] * _AT_ONCE)


@part
def write_pairs(row: int, tile: int, size: int, index: int, inputs: int) -> None:
    """A `Format.write_row`: bfloat16 [pairs of inputs, rows of the tile, 2], with a zero behind an odd number."""
    whole = inputs // _AT_ONCE
    for step in range(whole):
        place = tile + 2 * _AT_ONCE * step * size + 4 * index
        _write_rounded(row + 4 * _AT_ONCE * step, place, 4 * size)
    rest = inputs - _AT_ONCE * whole
    if rest:
        given, filled = pointer_to_floats(row + 4 * _AT_ONCE * whole), stack_floats(32)
        copy = pointer_to_floats(filled)
        for position in range(_AT_ONCE):
            copy[position] = given[position] if position < rest else np.float32(0)
        # The pairs take the first half of the room of their numbers, which are read before.
        _write_rounded(filled, filled, 4)
        target = pointer_to_floats(tile + 2 * _AT_ONCE * whole * size)
        for pair in range((rest + 1) // 2):
            target[pair * size + index] = copy[pair]
