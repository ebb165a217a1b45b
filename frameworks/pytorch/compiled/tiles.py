"""The inner loops of a product, written in LLVM's language: a few rows times one block of the weights' outputs.

A tile is R rows times BLOCK_VECTORS vectors of outputs. Its sums stay in registers while the inputs pass. Each sum is
made in the order of the inputs, in parts of CHUNK inputs. So a row's result does not depend on the rows beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import llvm_function

BLOCK_VECTORS = 2
"""Vectors of outputs in a block of the weights."""
CHUNK = 512
"""Inputs whose products are added to one sum; rounding errors grow with the length of a sum."""

_I8, _I32, _I64, _FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()

LoadWeights = Callable[[Any, Any, Any], list[list[Any]]]
"""IR builder, address of the block (bytes), index of a step of the inputs (int64) → for each input of the step, the
weights as BLOCK_VECTORS vectors of float32."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """The types of this CPU's vectors. `lanes`: float32 numbers in one."""

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


def load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    """Read a value of the LLVM type `kind` at an address (bytes pointer) that is a multiple of `align`."""
    return builder.load(builder.bitcast(address, kind.as_pointer()), align=align)


def splat(builder: Any, value: Any, lanes: int) -> Any:
    """Return a vector of `lanes` times the value."""
    kind = ir.VectorType(value.type, lanes)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)


def float_tile(vectors: Vectors, rows: int, inputs_at_once: int, load_weights: LoadWeights) -> Any:
    """Return a function for compiled code: (rows' address, weights' address, sums' address, inputs) → nothing.

    It multiplies float32 [inputs, rows] and one block of weights, and writes float32 [rows, block]. `inputs_at_once`:
    inputs of a step; the number of inputs is a multiple of it.
    """

    @llvm_function
    def tile(_context: Any, x: Any, w: Any, out: Any, inputs: Any) -> Any:
        signature = types.void(types.int64, types.int64, types.int64, types.int64)

        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            _write_float_tile(builder, arguments, vectors, rows, inputs_at_once, load_weights)
            return context.get_dummy_value()

        return signature, write

    return tile


def _write_float_tile(
    builder: Any, arguments: Any, vectors: Vectors, rows: int, inputs_at_once: int, load_weights: LoadWeights
) -> None:
    bytes_pointer = _I8.as_pointer()
    x, w, out = (builder.inttoptr(each, bytes_pointer) for each in arguments[:3])
    inputs = arguments[3]
    kind = vectors.floats
    multiply_add = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fma.v{vectors.lanes}f32"
    )
    zero = ir.Constant(kind, [0.0] * vectors.lanes)
    places = [[_place(builder, out, row, part, vectors) for part in range(BLOCK_VECTORS)] for row in range(rows)]
    sums = [[cgutils.alloca_once(builder, kind) for _ in range(BLOCK_VECTORS)] for _ in range(rows)]
    for of_row in places:
        for place in of_row:
            builder.store(zero, place, align=4)
    chunk = _constant(CHUNK)
    with cgutils.for_range_slice(builder, _constant(0), inputs, chunk) as (first, _):
        for of_row in sums:
            for each in of_row:
                builder.store(zero, each)
        after = builder.add(first, chunk)
        end = builder.select(builder.icmp_signed("<", after, inputs), after, inputs)
        with cgutils.for_range_slice(builder, first, end, _constant(inputs_at_once)) as (start, _):
            weights = load_weights(builder, w, start)
            for index, of_input in enumerate(weights):
                position = builder.mul(builder.add(start, _constant(index)), _constant(4 * rows))
                for row in range(rows):
                    address = builder.gep(x, [builder.add(position, _constant(4 * row))])
                    factor = splat(builder, load(builder, address, _FLOAT, 4), vectors.lanes)
                    for part in range(BLOCK_VECTORS):
                        own = sums[row][part]
                        builder.store(builder.call(multiply_add, [of_input[part], factor, builder.load(own)]), own)
        for own_sums, own_places in zip(sums, places, strict=True):
            for each, place in zip(own_sums, own_places, strict=True):
                builder.store(builder.fadd(builder.load(place, align=4), builder.load(each)), place, align=4)


def _place(builder: Any, out: Any, row: int, part: int, vectors: Vectors) -> Any:
    offset = 4 * (row * vectors.block + part * vectors.lanes)
    return builder.bitcast(builder.gep(out, [_constant(offset)]), vectors.floats.as_pointer())


def _constant(value: int) -> Any:
    return ir.Constant(_I64, value)
