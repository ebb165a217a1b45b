"""Products of bfloat16 by the matrix tiles of Intel's AMX (Advanced Matrix Extensions), in LLVM's language.

A tile register holds 16 rows of 64 bytes. One instruction adds the products of 16 rows and 16 outputs over 32 inputs to
float32 sums. Fewer rows are multiplied as 16: this costs no time, as the weights come from memory more slowly. The
results of the other rows are not read. A row's sums are made in one order, whatever rows are computed with it.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.bfloat16_rows import rounded_row_writer, write_rounded
from frameworks.pytorch.compiled.finishing import add_terms, write_any_row, write_sums
from frameworks.pytorch.compiled.formats import BLOCK, MOST_ROWS, Format, row_sizer
from frameworks.pytorch.compiled.jit import compiled, llvm_function, part, stack_floats
from frameworks.pytorch.compiled.tiles import BYTES, LINE_BYTES, TILE_SIGNATURE, at, function, number, prefetch

INPUTS = 32
"""Inputs of a step: a row of a tile register holds so many bfloat16."""
ROWS = 16
"""Rows of a tile register."""
_ROW_BYTES = 64
TILE_BYTES = ROWS * _ROW_BYTES
STEP_BYTES = 2 * TILE_BYTES
"""Of the weights of a block, [pairs of inputs, outputs of a block, 2]: two registers side by side."""
_PARTS = 2
_STEPS_AT_ONCE = 16
"""Steps of a block of weights, by which all rows are multiplied before the next ones. They stay in a core's first
cache, and the rows are read past it."""
ROWS_OF_STEP = 2
"""Rows of other sums that are worked on beside a step: their vectors take no longer than its tiles."""
NUM_WORK = 5
"""Numbers that say what the work is: addresses, sizes in bytes, an operation."""
_MOST_BYTES = 1024 * 1024
"""Of rows in order: with a block of weights and their sums they stay in a core's second cache."""
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
            tile_bytes = builder.mul(arguments[3], number(TILE_BYTES))
            registers = list(chain(*_SUMS[:row_tiles]))
            _begin(builder, registers)
            _add_steps(builder, arguments[:2], tile_bytes, arguments[3], row_tiles)
            _move_sums(builder, "tilestored64", arguments[2], registers)
            return context.get_dummy_value()

        return TILE_SIGNATURE, write

    return tile


WriteRow = Callable[[Any, Sequence[Any], Any], None]
"""IR builder, the NUM_WORK numbers of the work, row → nothing: what is done with a row of sums."""


def _adding_tile(row_tiles: int, write_row: WriteRow) -> Any:
    """Return a function for compiled code that adds some steps to one or two tiles of rows.

    (rows, weights, sums: addresses; whether there are sums; bytes from a tile of rows to the next, steps; address to
    fetch from, lines of a step, first row and end of the work; numbers of the work) → nothing. It works on other sums
    meanwhile, ROWS_OF_STEP rows a step: vectors wait for nothing that tiles need.
    """

    @llvm_function
    def tile(_context: Any, x: Any, w: Any, sums: Any, has: Any, sizes: Any, beside: Any, work: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            place, has = arguments[2:4]
            tile_bytes, steps = _parts_of(builder, arguments[4], 2)
            start, lines, first, end = _parts_of(builder, arguments[5], 4)
            numbers = _parts_of(builder, arguments[6], NUM_WORK)
            registers = list(chain(*_SUMS[:row_tiles]))

            def work_on(step: Any) -> None:
                _fetch_lines(builder, start, lines, step)
                row = builder.add(first, builder.mul(step, number(ROWS_OF_STEP)))
                for index in range(ROWS_OF_STEP):
                    own = builder.add(row, number(index))
                    with builder.if_then(builder.icmp_signed("<", own, end)):
                        write_row(builder, numbers, own)

            with builder.if_else(builder.icmp_signed("!=", has, number(0))) as (then, otherwise):
                with then:
                    _move_sums(builder, "tileloadd64", place, registers)
                with otherwise:
                    _begin(builder, registers)
            _add_steps(builder, arguments[:2], tile_bytes, steps, row_tiles, work_on)
            _move_sums(builder, "tilestored64", place, registers)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4, *(types.UniTuple(types.int64, each) for each in (2, 4, NUM_WORK))), write

    return tile


def _parts_of(builder: Any, numbers: Any, count: int) -> list[Any]:
    return [builder.extract_value(numbers, index) for index in range(count)]


def rows_writer(write_row: WriteRow) -> Any:
    """Return a function for compiled code: (numbers of the work, first row, end) → nothing, after working on them."""

    @llvm_function
    def write_rows(_context: Any, work: Any, first: Any, end: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            numbers = _parts_of(builder, arguments[0], NUM_WORK)
            with cgutils.for_range_slice(builder, arguments[1], arguments[2], number(1)) as (row, _):
                write_row(builder, numbers, row)
            return context.get_dummy_value()

        return types.void(types.UniTuple(types.int64, NUM_WORK), types.int64, types.int64), write

    return write_rows


def _begin(builder: Any, registers: list[int]) -> None:
    zero = function(builder, "llvm.x86.tilezero", _VOID, [_I8])
    for register in registers:
        builder.call(zero, [_I8(register)])


def _move_sums(builder: Any, how: str, place: Any, registers: list[int]) -> None:
    """Load or store float32 [rows, BLOCK]."""
    move = function(builder, f"llvm.x86.{how}", _VOID, [_I8, BYTES, _I64])
    start = builder.inttoptr(place, BYTES)
    for index, register in enumerate(registers):
        offset = ROWS * 4 * BLOCK * (index // _PARTS) + _ROW_BYTES * (index % _PARTS)
        builder.call(move, [_I8(register), at(builder, start, offset), number(4 * BLOCK)])


def _add_steps(
    builder: Any, places: Any, tile_bytes: Any, steps: Any, row_tiles: int, work_on: Callable[[Any], None] | None = None
) -> None:
    """Add the products of rows and weights to the registers of the sums. `places`: addresses of both. `tile_bytes`:
    from a tile of rows to the next. `work_on`: writes what is done beside a step.
    """
    x, w = (builder.inttoptr(each, BYTES) for each in places)
    load, load_once = (
        function(builder, f"llvm.x86.{name}", _VOID, [_I8, BYTES, _I64]) for name in ("tileloadd64", "tileloaddt164")
    )
    add = function(builder, "llvm.x86.tdpbf16ps", _VOID, [_I8, _I8, _I8])
    with cgutils.for_range_slice(builder, number(0), steps, number(1)) as (step, _):
        weights = builder.gep(w, [builder.mul(step, number(STEP_BYTES))])
        for index, register in enumerate(_WEIGHTS):
            place = at(builder, weights, _ROW_BYTES * index)
            builder.call(load, [_I8(register), place, number(_PARTS * _ROW_BYTES)])
        for index in range(row_tiles):
            offset = builder.add(builder.mul(tile_bytes, number(index)), builder.mul(step, number(TILE_BYTES)))
            load_rows = load if work_on is None else load_once
            builder.call(load_rows, [_I8(_GIVEN[index]), builder.gep(x, [offset]), number(_ROW_BYTES)])
            for register, own in zip(_SUMS[index], _WEIGHTS, strict=True):
                builder.call(add, [_I8(register), _I8(_GIVEN[index]), _I8(own)])
        if work_on is not None:
            work_on(step)


def _fetch_lines(builder: Any, start: Any, lines: Any, step: Any) -> None:
    """Fetch a step's share, so few lines at once that the tiles' own loads do not wait for them."""
    place = builder.gep(builder.inttoptr(start, BYTES), [builder.mul(builder.mul(step, lines), number(LINE_BYTES))])
    with cgutils.for_range_slice(builder, number(0), lines, number(1)) as (line, _):
        prefetch(builder, builder.gep(place, [builder.mul(line, number(LINE_BYTES))]))


def matrix_orderer(format_: Format) -> Callable[..., None]:
    """As `products.orderer`, for rows as [tiles of ROWS, steps, ROWS, INPUTS]."""
    write_rows, row_bytes = format_.write_rows, row_sizer(format_)

    @part
    def order(x: int, tiles: int, rows: int, inputs: int, number: int, threads: int) -> None:
        for index in range(number, (rows + ROWS - 1) // ROWS, threads):
            done = ROWS * index
            write_rows(x + 4 * done * inputs, tiles + done * row_bytes(inputs), min(ROWS, rows - done), inputs)

    return order


@compiled
def order_row(source: int, tiles: int, row: int, columns: Any) -> None:
    """Write a part of a row where `matrix_orderer` does. `source`: address of float32 [count]. `row`: its number.
    `columns`: inputs of the row, the first one of the part, and its count; all are multiples of INPUTS.
    """
    inputs, first, count = columns
    place = tiles + (row // ROWS * (inputs // INPUTS) + first // INPUTS) * TILE_BYTES + row % ROWS * _ROW_BYTES
    for step in range(count // INPUTS):
        write_rounded(source + 4 * INPUTS * step, place + TILE_BYTES * step)


def block_adder(write_row: WriteRow) -> Callable[..., None]:
    """Return, for compiled code, the function that multiplies ordered rows by one block of the weights.

    `write_row`: the work on other sums meanwhile.
    """
    tile1, tile2 = _adding_tile(1, write_row), _adding_tile(2, write_row)
    write_rows = rows_writer(write_row)

    @part
    def add_block(tiles: int, weights: int, sums: int, sizes: Any, work: Any, end: int) -> None:
        """Write float32 [rows, BLOCK], for whole tiles of rows, and fetch the next block. `sizes`: rows, steps. `work`,
        `end`: NUM_WORK numbers, and the rows to work on.
        """
        rows, steps = sizes
        pairs = (rows + 2 * ROWS - 1) // (2 * ROWS)
        at_once, lines = steps, 0
        if pairs > 1:
            at_once, lines = _STEPS_AT_ONCE, (STEP_BYTES // LINE_BYTES + pairs - 1) // pairs
        ahead = weights + steps * STEP_BYTES
        for first in range(0, steps, at_once):
            count = min(at_once, steps - first)
            for pair in range(pairs):
                x = tiles + (2 * pair * steps + first) * TILE_BYTES
                own, own_sums = weights + first * STEP_BYTES, sums + 2 * pair * ROWS * 4 * BLOCK
                done = first * pairs + pair * count
                beside = (ahead + done * lines * LINE_BYTES, lines, done * ROWS_OF_STEP, end)
                if rows - 2 * pair * ROWS > ROWS:
                    tile2(x, own, own_sums, first, (steps * TILE_BYTES, count), beside, work)
                else:
                    tile1(x, own, own_sums, first, (steps * TILE_BYTES, count), beside, work)
        write_rows(work, steps * pairs * ROWS_OF_STEP, end)

    return add_block


def _finish_row(builder: Any, work: Sequence[Any], row: Any) -> None:
    """As `finishing.finish` of a whole block. `work`: addresses of the sums, of the target and of the operand; bytes
    from row to row of these two; operation.
    """
    sums, target, other, row_bytes, operation = work
    offset = builder.mul(row, row_bytes)
    given = builder.inttoptr(builder.add(sums, builder.mul(row, number(4 * BLOCK))), BYTES)
    places = [builder.inttoptr(builder.add(each, offset), BYTES) for each in (target, other)]
    write_any_row(builder, operation, given, *places)


def matrix_multiplier() -> Callable[..., None]:
    """As `products.multiplier`."""
    add_block, write_rows = block_adder(_finish_row), rows_writer(_finish_row)
    num_sums, sums_bytes = 2 * MOST_ROWS * BLOCK, 4 * MOST_ROWS * BLOCK

    @part
    def multiply(weights: int, tiles: int, out: int, sizes: Any, how: Any, number: int, threads: int) -> None:
        rows, inputs, outputs = sizes
        blocks = (outputs + BLOCK - 1) // BLOCK
        steps = (inputs + INPUTS - 1) // INPUTS
        own = stack_floats(num_sums)
        operation, other, _, _ = how
        work, end = (0, 0, 0, 0, 0), 0
        configure()
        for index in range(blocks * number // threads, blocks * (number + 1) // threads):
            # A block is finished while the next one is multiplied.
            sums, first = own + index % 2 * sums_bytes, index * BLOCK
            add_block(tiles, weights + index * steps * STEP_BYTES, sums, (rows, steps), work, end)
            columns = (first, min(BLOCK, outputs - first), outputs)
            add_terms(sums, (0, rows), columns, how)
            work, end = (sums, out + 4 * first, other + 4 * first, 4 * outputs, operation), rows
            if columns[1] < BLOCK:
                write_sums(sums, out, (0, rows), columns, how)
                end = 0
        release()
        write_rows(work, 0, end)

    return multiply


FORMAT = Format(
    "bfloat16",
    INPUTS,
    STEP_BYTES,
    _ROW_BYTES,
    matrix_tile,
    rounded_row_writer(TILE_BYTES),
    rows_at_once=ROWS,
    most_bytes=_MOST_BYTES,
)
