"""The tile registers of Intel's AMX (Advanced Matrix Extensions), in LLVM's language.

A register holds 16 rows of 64 bytes. One instruction adds the products of 16 rows and 16 outputs over 32 inputs to
float32 sums.
"""

from itertools import chain
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.jit import llvm_function
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, at, function, number

INPUTS = 32
"""Inputs of a step: a row of a tile register holds so many bfloat16."""
ROWS = 16
"""Rows of a tile register."""
_ROW_BYTES = 64
TILE_BYTES = ROWS * _ROW_BYTES
STEP_BYTES = 2 * TILE_BYTES
"""Of the weights of a block, [pairs of inputs, outputs of a block, 2]: two registers side by side."""
_PARTS = 2
_PALETTE, _REGISTERS, _PLACE_OF_WIDTHS, _PLACE_OF_ROWS, _CONFIGURATION_BYTES = 1, 8, 16, 48, 64
# Registers: sums of up to two tiles of rows, then the rows, then the weights.
_SUMS, _GIVEN, _WEIGHTS = ((0, 1), (2, 3)), (4, 5), (6, 7)
_I8, _I64, _VOID = ir.IntType(8), ir.IntType(64), ir.VoidType()


def _configuration() -> bytes:
    """Return what the CPU reads: all registers have their full size."""
    found = bytearray(_CONFIGURATION_BYTES)
    found[0] = _PALETTE
    for register in range(_REGISTERS):
        found[_PLACE_OF_WIDTHS + 2 * register] = _ROW_BYTES
        found[_PLACE_OF_ROWS + register] = ROWS
    return bytes(found)


@llvm_function
def configure(_context: Any) -> Any:
    """() → nothing, after setting the sizes of this thread's tile registers."""

    def write(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        value = cgutils.make_bytearray(_configuration())
        place = builder.bitcast(cgutils.global_constant(builder, "tile_configuration", value), BYTES)
        builder.call(function(builder, "llvm.x86.ldtilecfg", _VOID, [BYTES]), [place])
        return context.get_dummy_value()

    return types.void(), write


@llvm_function
def release(_context: Any) -> Any:
    """() → nothing, after releasing the tile registers: the system need not save them."""

    def write(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.call(function(builder, "llvm.x86.tilerelease", _VOID, []), [])
        return context.get_dummy_value()

    return types.void(), write


def parts_of(builder: Any, numbers: Any, count: int) -> list[Any]:
    """Return the numbers of a tuple of compiled code."""
    return [builder.extract_value(numbers, index) for index in range(count)]


def place_of_row(builder: Any, start: Any, row: Any, tile_bytes: Any) -> Any:
    """Return the address (bytes pointer) of a row in its tile. `start`: of the first tile. `tile_bytes`: from a
    tile to the next.
    """
    of_tile = builder.mul(builder.udiv(row, number(ROWS)), tile_bytes)
    in_tile = builder.mul(builder.urem(row, number(ROWS)), number(_ROW_BYTES))
    return builder.gep(start, [builder.add(of_tile, in_tile)])


def begin_sums(builder: Any, row_tiles: int) -> None:
    """Make the sums of one or two tiles of rows zero."""
    zero = function(builder, "llvm.x86.tilezero", _VOID, [_I8])
    for register in chain(*_SUMS[:row_tiles]):
        builder.call(zero, [_I8(register)])


def move_sums(builder: Any, how: str, start: Any, row_tiles: int, row_bytes: Any) -> None:
    """Load ("tileloadd64") or store ("tilestored64") sums, float32 [rows, BLOCK]. `start`: address (bytes pointer).
    `row_bytes`: from row to row.
    """
    move = function(builder, f"llvm.x86.{how}", _VOID, [_I8, BYTES, _I64])
    for index in range(row_tiles):
        rows = builder.gep(start, [builder.mul(row_bytes, number(ROWS * index))])
        for part, register in enumerate(_SUMS[index]):
            builder.call(move, [_I8(register), at(builder, rows, _ROW_BYTES * part), row_bytes])


def multiply_step(
    builder: Any, places: Any, tile_bytes: Any, step: Any, row_tiles: int, *, reads_once: bool = False
) -> None:
    """Add the products of a step of rows and weights to the sums. `places`: addresses (bytes pointers) of both.
    `tile_bytes`: from a tile of rows to the next. `reads_once`: rows are read past the first cache.
    """
    x, w = places
    load, load_once = (
        function(builder, f"llvm.x86.{name}", _VOID, [_I8, BYTES, _I64]) for name in ("tileloadd64", "tileloaddt164")
    )
    add = function(builder, "llvm.x86.tdpbf16ps", _VOID, [_I8, _I8, _I8])
    weights = builder.gep(w, [builder.mul(step, number(STEP_BYTES))])
    for index in range(row_tiles):
        offset = builder.add(builder.mul(tile_bytes, number(index)), builder.mul(step, number(TILE_BYTES)))
        rows = builder.gep(x, [offset])
        builder.call(load_once if reads_once else load, [_I8(_GIVEN[index]), rows, number(_ROW_BYTES)])
        for part, (register, own) in enumerate(zip(_SUMS[index], _WEIGHTS, strict=True)):
            if not index:
                # The second register is loaded behind the first product, which does not wait for it.
                place = at(builder, weights, _ROW_BYTES * part)
                builder.call(load, [_I8(own), place, number(_PARTS * _ROW_BYTES)])
            builder.call(add, [_I8(register), _I8(_GIVEN[index]), _I8(own)])
