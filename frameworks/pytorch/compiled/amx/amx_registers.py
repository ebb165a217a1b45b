"""The tile registers of Intel's AMX (Advanced Matrix Extensions), in LLVM's language.

A register holds 16 rows of 64 bytes. One instruction multiplies 16 rows by 16 outputs over 32 inputs, and adds to
float32 accumulators.
"""

from itertools import chain
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import llvm_function
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, at, function, int64

INPUTS = 32
"""Inputs of a step: a row of a tile register holds so many bfloat16."""
ROWS = 16
"""Rows of a tile register."""
_ROW_BYTES = 64
TILE_BYTES = ROWS * _ROW_BYTES
STEP_BYTES = 2 * TILE_BYTES
"""Of the weights of a block, [pairs of inputs, outputs of a block, 2]: two registers side by side."""
_PARTS = 2
_PALETTE, _REGISTERS, _WIDTHS_OFFSET, _ROWS_OFFSET, _CONFIGURATION_BYTES = 1, 8, 16, 48, 64
# Registers: accumulators of up to two tiles of rows, then activations, then weights.
_SUMS, _GIVEN, _WEIGHTS = ((0, 1), (2, 3)), (4, 5), (6, 7)
_PRODUCTS = {1: ((0, 0),), 3: ((0, 2), (0, 1), (1, 1), (1, 0), (2, 0), (0, 0))}
"""Parts of activations and of weights that are multiplied, by the number of parts. Those of three are six, in an order
that loads few registers; the others are below the last bit of float32."""
_I8, _I64, _VOID = ir.IntType(8), ir.IntType(64), ir.VoidType()


def _configuration() -> bytes:
    """Return the bytes that the CPU reads: all registers have their full size."""
    found = bytearray(_CONFIGURATION_BYTES)
    found[0] = _PALETTE
    for register in range(_REGISTERS):
        found[_WIDTHS_OFFSET + 2 * register] = _ROW_BYTES
        found[_ROWS_OFFSET + register] = ROWS
    return bytes(found)


@llvm_function
def configure(_context: Any) -> Any:
    """() → nothing; sets the sizes of this thread's tile registers."""

    def write(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        value = cgutils.make_bytearray(_configuration())
        pointer = builder.bitcast(cgutils.global_constant(builder, "tile_configuration", value), BYTES)
        builder.call(function(builder, "llvm.x86.ldtilecfg", _VOID, [BYTES]), [pointer])
        return context.get_dummy_value()

    return types.void(), write


@llvm_function
def release(_context: Any) -> Any:
    """() → nothing; releases the tile registers, so that the system need not save them."""

    def write(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.call(function(builder, "llvm.x86.tilerelease", _VOID, []), [])
        return context.get_dummy_value()

    return types.void(), write


def unpack(builder: Any, values: Any, count: int) -> list[Any]:
    """Return the elements of a tuple of compiled code."""
    return [builder.extract_value(values, index) for index in range(count)]


def row_pointer(builder: Any, start: Any, row: Any, tile_bytes: Any) -> Any:
    """Return the address (bytes pointer) of a row in its tile. `start`: of the first tile. `tile_bytes`: from a tile to
    the next.
    """
    of_tile = builder.mul(builder.udiv(row, int64(ROWS)), tile_bytes)
    in_tile = builder.mul(builder.urem(row, int64(ROWS)), int64(_ROW_BYTES))
    return builder.gep(start, [builder.add(of_tile, in_tile)])


def zero_accumulators(builder: Any, row_tiles: int) -> None:
    """Zero the accumulators of one or two tiles of rows."""
    zero = function(builder, "llvm.x86.tilezero", _VOID, [_I8])
    for register in chain(*_SUMS[:row_tiles]):
        builder.call(zero, [_I8(register)])


def move_accumulators(builder: Any, instruction: str, start: Any, row_tiles: int, row_bytes: Any) -> None:
    """Load ("tileloadd64") or store ("tilestored64") accumulators, float32 [rows, BLOCK]. `start`: address (bytes
    pointer). `row_bytes`: from row to row.
    """
    move = function(builder, f"llvm.x86.{instruction}", _VOID, [_I8, BYTES, _I64])
    for index in range(row_tiles):
        rows = builder.gep(start, [builder.mul(row_bytes, int64(ROWS * index))])
        for part, register in enumerate(_SUMS[index]):
            builder.call(move, [_I8(register), at(builder, rows, _ROW_BYTES * part), row_bytes])


def matmul_step(
    builder: Any, pointers: Any, tile_bytes: Any, step: Any, row_tiles: int, *, reads_once: bool = False, parts: int = 1
) -> None:
    """Add activations @ weights of a step of inputs to the accumulators. `pointers`: bytes pointers to both.
    `tile_bytes`: from a tile of rows to the next. `reads_once`: activations bypass the first-level cache. `parts`: of
    each number, which is their sum; those of a step are one behind the other.
    """
    x, w = pointers
    load, load_once = (
        function(builder, f"llvm.x86.{name}", _VOID, [_I8, BYTES, _I64]) for name in ("tileloadd64", "tileloaddt164")
    )
    add = function(builder, "llvm.x86.tdpbf16ps", _VOID, [_I8, _I8, _I8])
    weights = builder.gep(w, [builder.mul(step, int64(parts * STEP_BYTES))])
    before = (-1, -1)
    for given, of_weights in _PRODUCTS[parts]:
        for index in range(row_tiles):
            if given != before[0]:
                offset = builder.add(
                    builder.mul(tile_bytes, int64(index)), builder.mul(step, int64(parts * TILE_BYTES))
                )
                rows = at(builder, builder.gep(x, [offset]), given * TILE_BYTES)
                builder.call(load_once if reads_once else load, [_I8(_GIVEN[index]), rows, int64(_ROW_BYTES)])
            for part, (register, own) in enumerate(zip(_SUMS[index], _WEIGHTS, strict=True)):
                if not index and of_weights != before[1]:
                    # The second register is loaded after the first multiplication, which does not wait for it.
                    pointer = at(builder, weights, of_weights * STEP_BYTES + _ROW_BYTES * part)
                    builder.call(load, [_I8(own), pointer, int64(_PARTS * _ROW_BYTES)])
                builder.call(add, [_I8(register), _I8(_GIVEN[index]), _I8(own)])
        before = (given, of_weights)
