"""Products of bfloat16 by the matrix tiles of Intel's AMX (Advanced Matrix Extensions), in LLVM's language.

A tile register holds 16 rows of 64 bytes. One instruction adds the products of 16 rows and 16 outputs over 32 inputs to
float32 sums. Fewer rows are multiplied as 16: this costs no time, as the weights come from memory more slowly. The
results of the other rows are not read. A row's sums are made in one order, whatever rows are computed with it.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.bfloat16_rows import rounded_row_writer
from frameworks.pytorch.compiled.finishing import finish
from frameworks.pytorch.compiled.formats import BLOCK, Format, row_sizer
from frameworks.pytorch.compiled.jit import llvm_function, part, stack_floats
from frameworks.pytorch.compiled.tiles import BYTES, TILE_SIGNATURE, at, function, number

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


def matrix_tile(row_tiles: int) -> Any:
    """Return a `Format.tile` for one or two tiles of ROWS rows; registers have been configured."""

    @llvm_function
    def tile(_context: Any, x: Any, w: Any, out: Any, steps: Any, following: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            _write_tile(builder, arguments, row_tiles)
            return context.get_dummy_value()

        return TILE_SIGNATURE, write

    return tile


def _write_tile(builder: Any, arguments: Any, row_tiles: int) -> None:
    x, w, out = (builder.inttoptr(each, BYTES) for each in arguments[:3])
    steps = arguments[3]
    zero = function(builder, "llvm.x86.tilezero", _VOID, [_I8])
    load = function(builder, "llvm.x86.tileloadd64", _VOID, [_I8, BYTES, _I64])
    add = function(builder, "llvm.x86.tdpbf16ps", _VOID, [_I8, _I8, _I8])
    store = function(builder, "llvm.x86.tilestored64", _VOID, [_I8, BYTES, _I64])
    for of_rows in _SUMS[:row_tiles]:
        for register in of_rows:
            builder.call(zero, [_I8(register)])
    with cgutils.for_range_slice(builder, number(0), steps, number(1)) as (step, _):
        weights = builder.gep(w, [builder.mul(step, number(STEP_BYTES))])
        for index, register in enumerate(_WEIGHTS):
            place = at(builder, weights, _ROW_BYTES * index)
            builder.call(load, [_I8(register), place, number(_PARTS * _ROW_BYTES)])
        for index in range(row_tiles):
            tile = builder.add(builder.mul(steps, number(index)), step)
            place = builder.gep(x, [builder.mul(tile, number(TILE_BYTES))])
            builder.call(load, [_I8(_GIVEN[index]), place, number(_ROW_BYTES)])
            for register, own in zip(_SUMS[index], _WEIGHTS, strict=True):
                builder.call(add, [_I8(register), _I8(_GIVEN[index]), _I8(own)])
    for index, of_rows in enumerate(_SUMS[:row_tiles]):
        for part_, register in enumerate(of_rows):
            place = at(builder, out, ROWS * 4 * BLOCK * index + _ROW_BYTES * part_)
            builder.call(store, [_I8(register), place, number(4 * BLOCK)])


def matrix_orderer(format_: Format) -> Callable[..., None]:
    """As `products.orderer`, for rows as [tiles of ROWS, steps, ROWS, INPUTS]."""
    write_rows, row_bytes = format_.write_rows, row_sizer(format_)

    @part
    def order(x: int, tiles: int, rows: int, inputs: int, number: int, threads: int) -> None:
        for index in range(number, (rows + ROWS - 1) // ROWS, threads):
            done = ROWS * index
            write_rows(x + 4 * done * inputs, tiles + done * row_bytes(inputs), min(ROWS, rows - done), inputs)

    return order


def matrix_multiplier(format_: Format) -> Callable[..., None]:
    """As `products.multiplier`."""
    tile1, tile2, row_bytes = matrix_tile(1), matrix_tile(2), row_sizer(format_)
    num_sums = 2 * ROWS * BLOCK

    @part
    def multiply(weights: int, tiles: int, out: int, sizes: Any, how: Any, number: int, threads: int) -> None:
        rows, inputs, outputs = sizes
        blocks = (outputs + BLOCK - 1) // BLOCK
        steps = (inputs + INPUTS - 1) // INPUTS
        row_size = row_bytes(inputs)
        sums = stack_floats(num_sums)
        configure()
        for index in range(blocks * number // threads, blocks * (number + 1) // threads):
            own = weights + index * steps * STEP_BYTES
            first = index * BLOCK
            columns = (first, min(BLOCK, outputs - first), outputs)
            done = 0
            while rows - done > ROWS:
                tile2(tiles + done * row_size, own, sums, steps, 0)
                finish(sums, out, (done, min(2 * ROWS, rows - done)), columns, how)
                done += 2 * ROWS
            if rows > done:
                tile1(tiles + done * row_size, own, sums, steps, 0)
                finish(sums, out, (done, rows - done), columns, how)
        release()

    return multiply


FORMAT = Format(
    "bfloat16", INPUTS, STEP_BYTES, _ROW_BYTES, matrix_tile, rounded_row_writer(TILE_BYTES), rows_at_once=ROWS
)
