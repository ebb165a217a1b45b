"""Instructions that numba has no functions for: reads and writes at addresses, wide products, counts of bits."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_BYTE, _WORD, _WIDE = ir.IntType(8), ir.IntType(64), ir.IntType(128)
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
F = TypeVar("F", bound=Callable[..., Any])


def inlined(function: F) -> F:
    """Compile a function as a part of each one that calls it, with float operations as they are written."""
    made: F = numba.njit(error_model="numpy", nogil=True, forceinline=True)(function)
    return made


def llvm_function(write: Callable[..., Any]) -> Any:
    """Make a function for compiled code whose body is written in LLVM's language."""
    return intrinsic(write)


def _at(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@llvm_function
def load_byte(_context: Any, _address: Any) -> Any:
    """(address) → the byte there, as uint64."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.load(_at(builder, arguments[0], _BYTE)), _WORD)

    return types.uint64(types.int64), write


@llvm_function
def load_word(_context: Any, _address: Any) -> Any:
    """(address) → the eight bytes there, as uint64 whose lowest byte is the first one."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(_at(builder, arguments[0], _WORD), align=1)

    return types.uint64(types.int64), write


@llvm_function
def load_double(_context: Any, _address: Any) -> Any:
    """(address) → the float64 there."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(_at(builder, arguments[0], _DOUBLE), align=8)

    return types.float64(types.int64), write


@llvm_function
def store_float(_context: Any, _address: Any, _value: Any) -> Any:
    """(address, float32) → nothing; writes it there."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _at(builder, arguments[0], _FLOAT), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), write


@llvm_function
def store_word(_context: Any, _address: Any, _value: Any) -> Any:
    """(address, uint64) → nothing; writes it there."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _at(builder, arguments[0], _WORD), align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), write


@llvm_function
def high_product(_context: Any, _one: Any, _other: Any) -> Any:
    """(uint64, uint64) → the upper 64 bits of their product."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        product = builder.mul(*(builder.zext(each, _WIDE) for each in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(_WIDE, 64)), _WORD)

    return types.uint64(types.uint64, types.uint64), write


@llvm_function
def leading_zeros(_context: Any, _word: Any) -> Any:
    """(uint64) → the number of zero bits above its highest one; 64 for 0."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), write


@llvm_function
def trailing_zeros(_context: Any, _word: Any) -> Any:
    """(uint64) → the number of zero bits below its lowest one; 64 for 0."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), write


@llvm_function
def bits_of(_context: Any, _value: Any) -> Any:
    """(float64) → its bits, as uint64."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _WORD)

    return types.uint64(types.float64), write


@llvm_function
def double_of(_context: Any, _bits: Any) -> Any:
    """(uint64) → the float64 of these bits."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _DOUBLE)

    return types.float64(types.uint64), write
