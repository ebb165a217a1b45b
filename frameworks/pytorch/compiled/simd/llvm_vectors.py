"""This CPU's SIMD vectors: loads, broadcasts and prefetches in LLVM's language."""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from frameworks.pytorch.compiled.cpu_features import lanes

BLOCK_VECTORS = 2
"""Vectors of outputs in a block of the weights."""
LINE_BYTES = 64
"""Of the CPU's caches."""
NARROW_LANES = 8
"""Of vectors of 256 bits, for which a CPU has sixteen registers."""
# Of LLVM's prefetch: first-level and second-level cache of a core.
FIRST_CACHE, _SECOND_CACHE = 3, 2


PARTS = range(BLOCK_VECTORS)
BYTES = ir.IntType(8).as_pointer()
_I32, _I64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()


@dataclass(frozen=True, slots=True)
class Vectors:
    """The types of this CPU's SIMD vectors. `lanes`: float32 elements in one."""

    lanes: int

    @property
    def floats(self) -> Any:
        return ir.VectorType(_FLOAT, self.lanes)

    def integers(self, bits: int) -> Any:
        return ir.VectorType(ir.IntType(bits), self.lanes)

    @property
    def block(self) -> int:
        """Outputs of a block of the weights."""
        return BLOCK_VECTORS * self.lanes


VECTORS = Vectors(lanes())
BLOCK = VECTORS.block
"""Outputs of a block of the weights."""


def at(builder: Any, address: Any, offset: int) -> Any:
    """Return the address (bytes pointer) `offset` bytes further."""
    return builder.gep(address, [int64(offset)])


def load(builder: Any, address: Any, kind: Any) -> Any:
    """Read a value of the LLVM type `kind` at an address (bytes pointer)."""
    return builder.load(builder.bitcast(address, kind.as_pointer()), align=1)


def splat(builder: Any, value: Any, lanes: int) -> Any:
    """Return a vector of `lanes` times the value."""
    kind = ir.VectorType(value.type, lanes)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)


def prefetch(builder: Any, address: Any, cache: int = _SECOND_CACHE) -> None:
    """Prefetch the line of an address (bytes pointer): to the second-level cache, unless it is needed soon.

    In the first level it would replace the activations of a tile, and the tile would be slower than without.
    """
    kind = [ir.Constant(_I32, each) for each in (0, cache, 1)]  # a read, of data
    builder.call(function(builder, "llvm.prefetch.p0", ir.VoidType(), [BYTES, _I32, _I32, _I32]), [address, *kind])


def function(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """Return a function of LLVM."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def int64(value: int) -> Any:
    """Return an int64 constant."""
    return ir.Constant(_I64, value)
