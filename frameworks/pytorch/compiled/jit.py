"""numba's decorators with types, and calls of functions by their addresses."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from frameworks.pytorch.compiled.cache.cached_function import CachedFunction

_LINE_BYTES = 64
"""Of the CPU's caches: a vector that crosses lines is read and written as two."""
F = TypeVar("F", bound=Callable[..., Any])

# Sums may be made in any order and with fused operations; infinities and NaN stay what they are.
_MATH = {"contract", "reassoc", "arcp", "nsz"}


def compiled(function: F) -> F:
    """Compile a function that compiled functions call."""
    made: F = numba.njit(fastmath=_MATH, error_model="numpy", nogil=True)(function)
    return made


def strict_math(function: F) -> F:
    """As `compiled`, with float operations as they are written (no fast math), those of an `llvm_function` too."""
    made: F = numba.njit(error_model="numpy", nogil=True)(function)
    return made


def inlined_early(function: F) -> F:
    """As lines of the function that calls it: it is not compiled a second time alone, and computes as that one."""
    made: F = numba.njit(error_model="numpy", nogil=True, inline="always")(function)
    return made


def inlined(function: F) -> F:
    """As `compiled`, as a part of each function that calls it: its loops become vectors together with theirs."""
    made: F = numba.njit(fastmath=_MATH, error_model="numpy", nogil=True, forceinline=True)(function)
    return made


def llvm_function(write: Callable[..., Any]) -> Any:
    """Make a function for compiled code whose body is written in LLVM's language: numba's `intrinsic`."""
    return intrinsic(write)


def address_of(function: Callable[[Any], None], *, keeps_order: bool = False) -> int:
    """Compile a function of one pointer to int64 elements, or read it from the cache, and return its address.

    `keeps_order`: compute float operations as they are written, those of an `llvm_function` too. Otherwise the same
    values could have other last bits in another tile. Functions that this one calls keep their own choice.
    """
    signature = types.void(types.CPointer(types.int64))
    options = {"fastmath": False if keeps_order else _MATH, "error_model": "numpy"}
    made: Any = CFunc(function, (signature.args, signature.return_type), {}, options)
    # numba's own cache unpickles and links whatever its files hold.
    made._cache = CachedFunction(function, code_name(function.__module__, function.__name__))
    made.compile()
    _kept.append(made)
    return int(made.address)


_kept: list[Any] = []


def code_name(module: str, function: str) -> str:
    """Return the name of a function's code in the cache."""
    return f"{module.rpartition('.')[2]}.{function}"


@llvm_function
def call_for_int(_context: Any, _address: Any) -> Any:
    """(address) → the int that the C function of no arguments there returns, as int64."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        found = builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])
        return builder.sext(found, ir.IntType(64))

    return types.int64(types.int64), write


@llvm_function
def call(_context: Any, _address: Any) -> Any:
    """(address) → nothing; calls the C function of no arguments there."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), write


@llvm_function
def call_with(_context: Any, _address: Any, _argument: Any) -> Any:
    """(address, int64) → nothing; calls the C function there with the integer as a pointer."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer])
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        builder.call(function, [builder.inttoptr(arguments[1], pointer)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), write


@llvm_function
def pointer_to_floats(_context: Any, _address: Any) -> Any:
    """(address) → a pointer to float32 elements."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), write


@llvm_function
def pointer_to_integers(_context: Any, _address: Any) -> Any:
    """(address) → a pointer to int64 elements."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())

    return types.CPointer(types.int64)(types.int64), write


@llvm_function
def stack_floats(_context: Any, count: Any) -> Any:
    """(literal count) → the address of so many float32 on the stack, which live as long as the calling function."""
    if not isinstance(count, types.IntegerLiteral):
        return None

    def write(_context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        kind = ir.ArrayType(ir.FloatType(), count.literal_value)
        # cgutils.alloca_once would fill it with zeros, by an instruction that takes LLVM minutes if there are many.
        with builder.goto_entry_block():
            pointer = builder.alloca(kind)
        pointer.align = _LINE_BYTES
        return builder.ptrtoint(pointer, ir.IntType(64))

    return types.int64(count), write


@llvm_function
def store_float(_context: Any, _address: Any, _value: Any) -> Any:
    """(address, float32) → nothing; writes it there."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.FloatType().as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), write


@llvm_function
def store_integer(_context: Any, _address: Any, _value: Any) -> Any:
    """(address, int32) → nothing; writes it there."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(32).as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int32), write
