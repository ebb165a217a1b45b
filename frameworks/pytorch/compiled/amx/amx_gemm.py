"""Products of bfloat16 by matrix tiles, in LLVM's language.

Fewer rows are multiplied as the 16 of a register: this costs no time, as the weights come from memory more slowly. The
results of the other rows are not read. A row's sums are made in one order, whatever rows are computed with it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.amx.amx_registers import (
    INPUTS,
    ROWS,
    STEP_BYTES,
    TILE_BYTES,
    begin_sums,
    configure,
    move_sums,
    multiply_step,
    parts_of,
    release,
)
from frameworks.pytorch.compiled.jit import compiled, inlined, llvm_function, part, stack_floats
from frameworks.pytorch.compiled.matmul.bfloat16_activations import rounded_row_writer, write_rounded
from frameworks.pytorch.compiled.matmul.epilogue import add_terms, write_any_row, write_sums
from frameworks.pytorch.compiled.matmul.float_tiles import TILE_SIGNATURE
from frameworks.pytorch.compiled.matmul.formats import MOST_ROWS, Format, row_sizer
from frameworks.pytorch.compiled.simd.elementwise import ADD
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK, BYTES, LINE_BYTES, at, number, prefetch

_MOST_STEPS = 16
"""Steps of a block of weights, by which all rows are multiplied before the next ones. They stay in a core's first
cache, and the rows are read past it."""
_FETCH = -1
"""In place of an operation: fetch."""
NUM_WORK = 5
"""Numbers that say what the work is: addresses, sizes in bytes, an operation."""
_MOST_BYTES = 1024 * 1024
"""Of rows in order: with a block of weights and their sums they stay in a core's second cache."""


def matrix_tile(row_tiles: int) -> Any:
    """Return a `Format.tile` for one or two tiles of ROWS rows; registers have been configured."""

    @llvm_function
    def tile(_context: Any, x: Any, w: Any, out: Any, steps: Any, following: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            tile_bytes = builder.mul(arguments[3], number(TILE_BYTES))
            begin_sums(builder, row_tiles)
            _add_steps(builder, arguments[:2], tile_bytes, arguments[3], row_tiles)
            sums = builder.inttoptr(arguments[2], BYTES)
            move_sums(builder, "tilestored64", sums, row_tiles, number(4 * BLOCK))
            return context.get_dummy_value()

        return TILE_SIGNATURE, write

    return tile


WriteRow = Callable[[Any, Sequence[Any], Any], None]
"""IR builder, the NUM_WORK numbers of the work, row → nothing: what is done with a row of sums."""


def _adding_tile(row_tiles: int, write_row: WriteRow) -> Any:
    """Return a function for compiled code that adds some steps to one or two tiles of rows.

    (rows, weights, sums: addresses; whether there are sums; bytes from a tile of rows to the next, steps; address to
    fetch from, lines of a step, first row and end of the work, its rows a step; numbers of the work) → nothing. It
    works on rows of other sums meanwhile: vectors wait for nothing that tiles need.
    """

    @llvm_function
    def tile(_context: Any, x: Any, w: Any, sums: Any, has: Any, sizes: Any, beside: Any, work: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            sums, has = builder.inttoptr(arguments[2], BYTES), arguments[3]
            tile_bytes, steps = parts_of(builder, arguments[4], 2)
            start, lines, first, end, rows_of_step = parts_of(builder, arguments[5], 5)
            numbers = parts_of(builder, arguments[6], NUM_WORK)

            def work_on(step: Any) -> None:
                _fetch_lines(builder, start, lines, step)
                row = builder.add(first, builder.mul(step, rows_of_step))
                behind = builder.add(row, rows_of_step)
                behind = builder.select(builder.icmp_signed("<", behind, end), behind, end)
                with cgutils.for_range_slice(builder, row, behind, number(1)) as (own, _):
                    write_row(builder, numbers, own)

            with builder.if_else(builder.icmp_signed("!=", has, number(0))) as (then, otherwise):
                with then:
                    move_sums(builder, "tileloadd64", sums, row_tiles, number(4 * BLOCK))
                with otherwise:
                    begin_sums(builder, row_tiles)
            _add_steps(builder, arguments[:2], tile_bytes, steps, row_tiles, work_on)
            move_sums(builder, "tilestored64", sums, row_tiles, number(4 * BLOCK))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4, *(types.UniTuple(types.int64, each) for each in (2, 5, NUM_WORK))), write

    return tile


def rows_writer(write_row: WriteRow) -> Any:
    """Return a function for compiled code: (numbers of the work, first row, end) → nothing, after working on them."""

    @llvm_function
    def write_rows(_context: Any, work: Any, first: Any, end: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            numbers = parts_of(builder, arguments[0], NUM_WORK)
            with cgutils.for_range_slice(builder, arguments[1], arguments[2], number(1)) as (row, _):
                write_row(builder, numbers, row)
            return context.get_dummy_value()

        return types.void(types.UniTuple(types.int64, NUM_WORK), types.int64, types.int64), write

    return write_rows


def _add_steps(
    builder: Any, places: Any, tile_bytes: Any, steps: Any, row_tiles: int, work_on: Callable[[Any], None] | None = None
) -> None:
    """Add the products of rows and weights to the registers of the sums. `places`: addresses of both. `tile_bytes`:
    from a tile of rows to the next. `work_on`: writes what is done beside a step.
    """
    pointers = [builder.inttoptr(each, BYTES) for each in places]
    with cgutils.for_range_slice(builder, number(0), steps, number(1)) as (step, _):
        multiply_step(builder, pointers, tile_bytes, step, row_tiles, reads_once=work_on is not None)
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


@inlined
def place_in_order(tiles: int, row: int, inputs: int) -> int:
    """Return the address of a row's first step where `matrix_orderer` writes it; the next one is TILE_BYTES further."""
    return tiles + row // ROWS * (inputs // INPUTS) * TILE_BYTES + row % ROWS * 2 * INPUTS


@compiled
def order_row(source: int, tiles: int, row: int, columns: Any) -> None:
    """Write a part of a row where `matrix_orderer` does. `source`: address of float32 [count]. `row`: its number.
    `columns`: inputs of the row, the first one of the part, and its count; all are multiples of INPUTS.
    """
    inputs, first, count = columns
    place = place_in_order(tiles, row, inputs) + first // INPUTS * TILE_BYTES
    for step in range(count // INPUTS):
        write_rounded(source + 4 * INPUTS * step, place + TILE_BYTES * step)


def block_adder(write_row: WriteRow) -> Callable[..., None]:
    """Return, for compiled code, the function that multiplies ordered rows by one block of the weights.

    `write_row`: the work on other sums meanwhile.
    """
    tile1, tile2 = _adding_tile(1, write_row), _adding_tile(2, write_row)

    @part
    def add_block(tiles: int, weights: int, sums: int, sizes: Any, work: Any, worked: Any) -> None:
        """Write float32 [rows, BLOCK], for whole tiles of rows, and fetch the next block. `sizes`: rows, steps, and 1
        if products are added to the sums that are there, else 0. `work`, `worked`: NUM_WORK numbers, and the rows to
        work on, first and end.
        """
        rows, steps, has_sums = sizes
        pairs = (rows + 2 * ROWS - 1) // (2 * ROWS)
        # A pair reads a block once: it need not stay in the first cache.
        chunks = (steps + _MOST_STEPS - 1) // _MOST_STEPS if pairs > 1 else 1
        at_once = (steps + chunks - 1) // chunks
        # A tile that is alone waits for memory in any case, and for less without other loads.
        lines = (STEP_BYTES // LINE_BYTES + pairs - 1) // pairs if rows > ROWS else 0
        ahead = weights + steps * STEP_BYTES
        worked_row, end = worked
        rows_of_step = (end - worked_row + steps * pairs - 1) // (steps * pairs)
        for first in range(0, steps, at_once):
            count = min(at_once, steps - first)
            for pair in range(pairs):
                x = tiles + (2 * pair * steps + first) * TILE_BYTES
                own, own_sums = weights + first * STEP_BYTES, sums + 2 * pair * ROWS * 4 * BLOCK
                done = first * pairs + pair * count
                beside = (ahead + done * lines * LINE_BYTES, lines, worked_row + done * rows_of_step, end, rows_of_step)
                if rows - 2 * pair * ROWS > ROWS:
                    tile2(x, own, own_sums, first + has_sums, (steps * TILE_BYTES, count), beside, work)
                else:
                    tile1(x, own, own_sums, first + has_sums, (steps * TILE_BYTES, count), beside, work)

    return add_block


def _finish_row(builder: Any, work: Sequence[Any], row: Any) -> None:
    """As `finishing.finish` of a whole block, or fetch. `work`: addresses of the sums, of the target and of the
    operand; bytes from row to row of these two; operation, which is _FETCH for the place of the next sums.
    """
    sums, target, other, row_bytes, operation = work
    offset = builder.mul(row, row_bytes)
    given = builder.inttoptr(builder.add(sums, builder.mul(row, number(4 * BLOCK))), BYTES)
    places = [builder.inttoptr(builder.add(each, offset), BYTES) for each in (target, other)]
    with builder.if_else(builder.icmp_signed("==", operation, number(_FETCH))) as (then, otherwise):
        with then:
            for line in range(0, 4 * BLOCK, LINE_BYTES):
                prefetch(builder, at(builder, given, line))
        with otherwise:
            write_any_row(builder, operation, given, *places)


def matrix_multiplier() -> Callable[..., None]:
    """As `products.multiplier`."""
    add_block, write_rows = block_adder(_finish_row), rows_writer(_finish_row)
    num_sums, sums_bytes = 2 * MOST_ROWS * BLOCK, 4 * MOST_ROWS * BLOCK

    @part
    def multiply(weights: int, tiles: int, out: int, sizes: Any, how: Any, number: int, threads: int) -> None:
        rows, inputs, outputs, block_bytes = sizes
        blocks = (outputs + BLOCK - 1) // BLOCK
        steps = (inputs + INPUTS - 1) // INPUTS
        own = stack_floats(num_sums)
        operation, other, _, _ = how
        has_sums = 1 if block_bytes and operation == ADD else 0
        work, end = (0, 0, 0, 0, 0), 0
        last = blocks * (number + 1) // threads
        configure()
        for index in range(blocks * number // threads, last):
            sums, first = own + index % 2 * sums_bytes, index * BLOCK
            if block_bytes:
                # The sums are where they stay. Those of the next block are fetched meanwhile.
                sums = out + index * block_bytes
                work, end = (sums + block_bytes, 0, 0, 0, _FETCH), rows if index + 1 < last else 0
            add_block(tiles, weights + index * steps * STEP_BYTES, sums, (rows, steps, has_sums), work, (0, end))
            columns = (first, min(BLOCK, outputs - first), outputs)
            add_terms(sums, (0, rows), columns, how)
            if not block_bytes:
                # A block is finished while the next one is multiplied.
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
    2 * INPUTS,
    matrix_tile,
    rounded_row_writer(TILE_BYTES),
    rows_at_once=ROWS,
    most_bytes=_MOST_BYTES,
)
