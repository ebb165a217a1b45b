"""Load and store single float32, bfloat16 and float16 elements as float32, for loops that become vectors."""

from typing import Any

from llvmlite import ir
from numba import types

from frameworks.pytorch.compiled.jit import llvm_function

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOAT, _HALF = ir.FloatType(), ir.HalfType()
_HALF_BITS = 16


@llvm_function
def load_float32(_context: Any, _address: Any, _position: Any) -> Any:
    """(address of float32 elements, index) → the element."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(_element_pointer(builder, arguments, _FLOAT), align=4)

    return types.float32(types.int64, types.int64), write


@llvm_function
def load_bfloat16(_context: Any, _address: Any, _position: Any) -> Any:
    """(address of bfloat16 elements, index) → the element as float32."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = builder.zext(builder.load(_element_pointer(builder, arguments, _I16), align=2), _I32)
        return builder.bitcast(builder.shl(bits, ir.Constant(_I32, _HALF_BITS)), _FLOAT)

    return types.float32(types.int64, types.int64), write


@llvm_function
def load_float16(_context: Any, _address: Any, _position: Any) -> Any:
    """(address of float16 elements, index) → the element as float32."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.load(_element_pointer(builder, arguments, _HALF), align=2), _FLOAT)

    return types.float32(types.int64, types.int64), write


@llvm_function
def store_bfloat16(_context: Any, _address: Any, _position: Any, _value: Any) -> Any:
    """(address of bfloat16 elements, index, float32) → nothing; writes the nearest bfloat16, ties to even."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[2], _I32)
        high = builder.lshr(bits, ir.Constant(_I32, _HALF_BITS))
        is_odd = builder.and_(high, ir.Constant(_I32, 1))
        rounded = builder.add(bits, builder.add(is_odd, ir.Constant(_I32, (1 << (_HALF_BITS - 1)) - 1)))
        # Rounding could turn NaN into infinity; a set bit keeps it NaN.
        kept = builder.or_(high, ir.Constant(_I32, 1 << 6))
        is_number = builder.fcmp_ordered("ord", arguments[2], arguments[2])
        found = builder.select(is_number, builder.lshr(rounded, ir.Constant(_I32, _HALF_BITS)), kept)
        builder.store(builder.trunc(found, _I16), _element_pointer(builder, arguments, _I16), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), write


@llvm_function
def store_float16(_context: Any, _address: Any, _position: Any, _value: Any) -> Any:
    """(address of float16 elements, index, float32) → nothing; writes the nearest float16, ties to even."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(builder.fptrunc(arguments[2], _HALF), _element_pointer(builder, arguments, _HALF), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), write


def _element_pointer(builder: Any, arguments: Any, kind: Any) -> Any:
    return builder.gep(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])
