"""GEMM of bfloat16 by Intel's AMX, in LLVM's language. float32 is the sum of three bfloat16.

Fewer rows are multiplied as the 16 of a register: this costs no time, as the weights come from memory more slowly. The
other rows of the result are not read. A row is summed in one order, whatever rows are computed with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.amx.amx_registers import (
    INPUTS,
    ROWS,
    STEP_BYTES,
    TILE_BYTES,
    configure,
    matmul_step,
    move_accumulators,
    release,
    unpack,
    zero_accumulators,
)
from frameworks.pytorch.compiled.jit import compiled, inlined, inlined_early, llvm_function, stack_floats
from frameworks.pytorch.compiled.matmul.bfloat16_activations import bfloat16_packer, write_bfloat16
from frameworks.pytorch.compiled.matmul.epilogue import add_bias_and_deltas, store_row, store_sums
from frameworks.pytorch.compiled.matmul.float_tiles import TILE_SIGNATURE
from frameworks.pytorch.compiled.matmul.formats import MOST_ROWS, Format, row_sizer
from frameworks.pytorch.compiled.simd.elementwise import ADD
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK, BYTES, LINE_BYTES, at, int64, prefetch

_MOST_STEPS = 16
"""Steps of a block of weights, by which all rows are multiplied before the next ones. They stay in a core's
first-level cache, which the activations bypass."""
_FETCH = -1
"""In place of an operation: prefetch."""
NUM_DEFERRED = 5
"""Arguments of a deferred epilogue: addresses, sizes in bytes, an operation."""
_MOST_BYTES = 1024 * 1024
"""Of packed activations: with a block of weights and their sums they stay in a core's second-level cache."""


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Weights as they are in memory. `step_bytes`: of a block for a step. `dequantize`: None where that is bfloat16;
    else a function for compiled code: (weights, target, steps) → nothing, which writes bfloat16 of STEP_BYTES a step.
    `parts`: bfloat16 that each weight, and each activation, is the sum of.
    """

    step_bytes: int = STEP_BYTES
    dequantize: Any = None
    parts: int = 1


BFLOAT16 = StoredWeights()


def amx_tile(row_tiles: int) -> Any:
    """Return a `Format.tile` for one or two tiles of ROWS rows; registers have been configured."""

    @llvm_function
    def tile(_context: Any, x: Any, w: Any, out: Any, steps: Any, following: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            tile_bytes = builder.mul(arguments[3], int64(TILE_BYTES))
            zero_accumulators(builder, row_tiles)
            _add_steps(builder, arguments[:2], tile_bytes, arguments[3], row_tiles)
            sums = builder.inttoptr(arguments[2], BYTES)
            move_accumulators(builder, "tilestored64", sums, row_tiles, int64(4 * BLOCK))
            return context.get_dummy_value()

        return TILE_SIGNATURE, write

    return tile


WriteRow = Callable[[Any, Sequence[Any], Any], None]
"""IR builder, the NUM_DEFERRED arguments of the epilogue, row → nothing: the epilogue of a row of sums."""


def _accumulating_tile(row_tiles: int, write_row: WriteRow, parts: int) -> Any:
    """Return a function for compiled code that adds some steps of inputs to one or two tiles of rows.

    (addresses: activations, weights, sums; whether there are sums; bytes from a tile of rows to the next, steps;
    address to prefetch, lines of a step, first row and end of the deferred epilogue, its rows a step; arguments of the
    epilogue) → nothing. It runs the epilogue of other sums meanwhile: AMX and vector instructions overlap.
    """

    @llvm_function
    def tile(_context: Any, x: Any, w: Any, sums: Any, has: Any, sizes: Any, beside: Any, deferred: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            sums, has = builder.inttoptr(arguments[2], BYTES), arguments[3]
            tile_bytes, steps = unpack(builder, arguments[4], 2)
            start, lines, first, end, rows_of_step = unpack(builder, arguments[5], 5)
            fields = unpack(builder, arguments[6], NUM_DEFERRED)

            def run_deferred(step: Any) -> None:
                _fetch_lines(builder, start, lines, step)
                row = builder.add(first, builder.mul(step, rows_of_step))
                after = builder.add(row, rows_of_step)
                after = builder.select(builder.icmp_signed("<", after, end), after, end)
                with cgutils.for_range_slice(builder, row, after, int64(1)) as (own, _):
                    write_row(builder, fields, own)

            with builder.if_else(builder.icmp_signed("!=", has, int64(0))) as (then, otherwise):
                with then:
                    move_accumulators(builder, "tileloadd64", sums, row_tiles, int64(4 * BLOCK))
                with otherwise:
                    zero_accumulators(builder, row_tiles)
            _add_steps(builder, arguments[:2], tile_bytes, steps, row_tiles, run_deferred, parts)
            move_accumulators(builder, "tilestored64", sums, row_tiles, int64(4 * BLOCK))
            return context.get_dummy_value()

        return types.void(
            *[types.int64] * 4, *(types.UniTuple(types.int64, each) for each in (2, 5, NUM_DEFERRED))
        ), write

    return tile


def rows_writer(write_row: WriteRow) -> Any:
    """Return a function for compiled code: (arguments of an epilogue, first row, end) → nothing; runs the epilogue."""

    @llvm_function
    def write_rows(_context: Any, deferred: Any, first: Any, end: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            fields = unpack(builder, arguments[0], NUM_DEFERRED)
            with cgutils.for_range_slice(builder, arguments[1], arguments[2], int64(1)) as (row, _):
                write_row(builder, fields, row)
            return context.get_dummy_value()

        return types.void(types.UniTuple(types.int64, NUM_DEFERRED), types.int64, types.int64), write

    return write_rows


def _add_steps(
    builder: Any,
    addresses: Any,
    tile_bytes: Any,
    steps: Any,
    row_tiles: int,
    run_deferred: Callable[[Any], None] | None = None,
    parts: int = 1,
) -> None:
    """Add activations @ weights to the accumulators. `addresses`: of both. `tile_bytes`: from a tile of rows to the
    next. `run_deferred`: writes the code of other work beside a step. `parts`: as of `matmul_step`.
    """
    pointers = [builder.inttoptr(each, BYTES) for each in addresses]
    with cgutils.for_range_slice(builder, int64(0), steps, int64(1)) as (step, _):
        is_deferred = run_deferred is not None
        matmul_step(builder, pointers, tile_bytes, step, row_tiles, reads_once=is_deferred, parts=parts)
        if run_deferred is not None:
            run_deferred(step)


def _fetch_lines(builder: Any, start: Any, lines: Any, step: Any) -> None:
    """Prefetch a step's part, so few lines at once that AMX's own loads do not wait for them."""
    pointer = builder.gep(builder.inttoptr(start, BYTES), [builder.mul(builder.mul(step, lines), int64(LINE_BYTES))])
    with cgutils.for_range_slice(builder, int64(0), lines, int64(1)) as (line, _):
        prefetch(builder, builder.gep(pointer, [builder.mul(line, int64(LINE_BYTES))]))


def amx_activation_packer(format_: Format) -> Callable[..., None]:
    """As `gemm.activation_packer`, for activations as [tiles of ROWS, steps, ROWS, INPUTS]."""
    write_rows, row_bytes = format_.pack_tile, row_sizer(format_)

    @inlined_early
    def pack_activations(x: int, tiles: int, rows: int, inputs: int, thread: int, threads: int) -> None:
        for index in range(thread, (rows + ROWS - 1) // ROWS, threads):
            done = ROWS * index
            write_rows(x + 4 * done * inputs, tiles + done * row_bytes(inputs), min(ROWS, rows - done), inputs)

    return pack_activations


@inlined
def packed_row_address(tiles: int, row: int, inputs: int) -> int:
    """Return the address of a packed bfloat16 row's first step, as `amx_activation_packer` writes it; the next step is
    TILE_BYTES further.
    """
    return tiles + row // ROWS * (inputs // INPUTS) * TILE_BYTES + row % ROWS * 2 * INPUTS


@compiled
def pack_row(source: int, tiles: int, row: int, columns: Any) -> None:
    """Write a part of a row where `amx_activation_packer` does, as bfloat16. `source`: address of float32 [count].
    `row`: its index. `columns`: inputs of the row, the first of the part, its count; all are multiples of INPUTS.
    """
    inputs, first, count = columns
    address = packed_row_address(tiles, row, inputs) + first // INPUTS * TILE_BYTES
    for step in range(count // INPUTS):
        write_bfloat16(source + 4 * INPUTS * step, address + TILE_BYTES * step)


def _reader(stored: StoredWeights) -> Callable[..., int]:
    """Return, for compiled code, the function that returns the address of some steps as bfloat16.

    (weights, scratch buffer of _MOST_STEPS steps, steps) → address.
    """
    dequantize = stored.dequantize

    @inlined_early
    def as_they_are(weights: int, _scratch: int, _steps: int) -> int:
        return weights

    @inlined_early
    def dequantized(weights: int, scratch: int, steps: int) -> int:
        dequantize(weights, scratch, steps)
        return scratch

    return as_they_are if dequantize is None else dequantized


def block_adder(write_row: WriteRow, stored: StoredWeights = BFLOAT16) -> Callable[..., None]:
    """Return, for compiled code, the function that multiplies packed activations by one block of the weights.

    `write_row`: the deferred epilogue of other sums.
    """
    parts = stored.parts
    tile1, tile2 = _accumulating_tile(1, write_row, parts), _accumulating_tile(2, write_row, parts)
    tile_bytes, most_steps = parts * TILE_BYTES, _MOST_STEPS // parts
    step_bytes, read, is_quantized = stored.step_bytes, _reader(stored), stored.dequantize is not None
    scratch_floats = _MOST_STEPS * STEP_BYTES // 4 if is_quantized else 1

    @inlined_early
    def add_block(tiles: int, weights: int, sums: int, sizes: Any, deferred: Any, deferred_rows: Any) -> None:
        """Write float32 [rows, BLOCK], for whole tiles of rows, and prefetch the next block. `sizes`: rows, steps, and
        1 to add to the sums that are there, else 0. `deferred`, `deferred_rows`: arguments of the deferred epilogue,
        and its rows, first and end.
        """
        rows, steps, has_sums = sizes
        pairs = (rows + 2 * ROWS - 1) // (2 * ROWS)
        # A pair reads a block once: it need not stay in the first cache.
        chunks = (steps + most_steps - 1) // most_steps if pairs > 1 or is_quantized else 1
        at_once = (steps + chunks - 1) // chunks
        # A tile that is alone waits for memory in any case, and for less without other loads.
        lines = (step_bytes // LINE_BYTES + pairs - 1) // pairs if rows > ROWS else 0
        ahead = weights + steps * step_bytes
        scratch = stack_floats(scratch_floats)
        deferred_row, end = deferred_rows
        rows_of_step = (end - deferred_row + steps * pairs - 1) // (steps * pairs)
        for first in range(0, steps, at_once):
            count = min(at_once, steps - first)
            own = read(weights + first * step_bytes, scratch, count)
            for pair in range(pairs):
                x = tiles + (2 * pair * steps + first) * tile_bytes
                own_sums = sums + 2 * pair * ROWS * 4 * BLOCK
                done = first * pairs + pair * count
                beside = (
                    ahead + done * lines * LINE_BYTES,
                    lines,
                    deferred_row + done * rows_of_step,
                    end,
                    rows_of_step,
                )
                if rows - 2 * pair * ROWS > ROWS:
                    tile2(x, own, own_sums, first + has_sums, (steps * tile_bytes, count), beside, deferred)
                else:
                    tile1(x, own, own_sums, first + has_sums, (steps * tile_bytes, count), beside, deferred)

    return add_block


def _deferred_epilogue(builder: Any, deferred: Sequence[Any], row: Any) -> None:
    """As `epilogue.apply_epilogue` of a whole block, or prefetch. `deferred`: addresses of the sums, of the target and
    of the operand; bytes from row to row of these two; operation, which is _FETCH to prefetch the next sums.
    """
    sums, target, other, row_bytes, operation = deferred
    offset = builder.mul(row, row_bytes)
    given = builder.inttoptr(builder.add(sums, builder.mul(row, int64(4 * BLOCK))), BYTES)
    pointers = [builder.inttoptr(builder.add(each, offset), BYTES) for each in (target, other)]
    with builder.if_else(builder.icmp_signed("==", operation, int64(_FETCH))) as (then, otherwise):
        with then:
            for line in range(0, 4 * BLOCK, LINE_BYTES):
                prefetch(builder, at(builder, given, line))
        with otherwise:
            store_row(builder, operation, given, *pointers)


def amx_matmul_loops(stored: StoredWeights = BFLOAT16) -> Callable[..., None]:
    """As `gemm.matmul_loops`."""
    add_block, write_rows = block_adder(_deferred_epilogue, stored), rows_writer(_deferred_epilogue)
    step_bytes = stored.step_bytes
    num_sums, sums_bytes = 2 * MOST_ROWS * BLOCK, 4 * MOST_ROWS * BLOCK

    @inlined_early
    def matmul(weights: int, tiles: int, out: int, sizes: Any, epilogue: Any, thread: int, threads: int) -> None:
        rows, inputs, outputs, block_bytes = sizes
        blocks = (outputs + BLOCK - 1) // BLOCK
        steps = (inputs + INPUTS - 1) // INPUTS
        own = stack_floats(num_sums)
        operation, other, _, _ = epilogue
        has_sums = 1 if block_bytes and operation == ADD else 0
        deferred, end = (0, 0, 0, 0, 0), 0
        last = blocks * (thread + 1) // threads
        configure()
        for index in range(blocks * thread // threads, last):
            sums, first = own + index % 2 * sums_bytes, index * BLOCK
            if block_bytes:
                # The sums are where they stay. Those of the next block are fetched meanwhile.
                sums = out + index * block_bytes
                deferred, end = (sums + block_bytes, 0, 0, 0, _FETCH), rows if index + 1 < last else 0
            add_block(tiles, weights + index * steps * step_bytes, sums, (rows, steps, has_sums), deferred, (0, end))
            columns = (first, min(BLOCK, outputs - first), outputs)
            add_bias_and_deltas(sums, (0, rows), columns, epilogue)
            if not block_bytes:
                # A block is finished while the next one is multiplied.
                deferred, end = (sums, out + 4 * first, other + 4 * first, 4 * outputs, operation), rows
                if columns[1] < BLOCK:
                    store_sums(sums, out, (0, rows), columns, epilogue)
                    end = 0
        release()
        write_rows(deferred, 0, end)

    return matmul


def amx_format(name: str, step_bytes: int, parts: int = 1) -> Format:
    """Return the format of weights that are multiplied as bfloat16. `step_bytes`: of a block for a step. `parts`: as of
    StoredWeights.
    """
    packer, row_step_bytes = bfloat16_packer(TILE_BYTES, parts), 2 * INPUTS * parts
    return Format(
        name,
        INPUTS,
        step_bytes,
        row_step_bytes,
        amx_tile,
        packer,
        rows_at_once=ROWS,
        most_bytes=_MOST_BYTES,
        fewest_rows=MOST_ROWS // (2 if parts == 1 else 4),
    )


FORMAT = amx_format("bfloat16", STEP_BYTES)
