"""Products of rows and weights: the loops around the tiles, for any format and any number of rows and threads."""

from collections.abc import Callable
from typing import Any

from frameworks.pytorch.compiled.jit import inlined, part, stack_floats
from frameworks.pytorch.compiled.matmul.epilogue import finish
from frameworks.pytorch.compiled.matmul.formats import Format, row_sizer, rows_limiter, tile_sizer
from frameworks.pytorch.compiled.parallel import NUM_RESERVED, barrier, num_threads, thread_number
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK

(
    ROWS, INPUTS, OUTPUTS, X, WEIGHTS, OUT, BLOCK_BYTES, TILES, OPERATION, OTHER, BIAS, DELTAS, ARE_CHANGED,
    NUM_ARGUMENTS,
) = range(NUM_RESERVED, NUM_RESERVED + 14)  # fmt: skip
"""Arguments of a region that multiplies. `X`: address of float32 [rows, inputs]; 0 if they are in order in `TILES`,
which is room for that. `OUT`: of float32 [rows, outputs]; if `BLOCK_BYTES` is not 0, of [blocks, rows, outputs of a
block], with whole tiles of rows, and so many bytes from a block to the next. This is for formats whose rows are in
tiles, for whole blocks of outputs, and for NONE, or ADD to what is there. `OTHER`: as `OUT`, for an operation. `BIAS`:
of float32 [outputs], or 0. `DELTAS`: of float32 [rows, blocks, outputs of a block], which is added to the rows whose
number in `ARE_CHANGED`, int64 [rows], is not 0; or 0.
"""
# A row that is alone waits for memory, and a core reads several streams faster than one.
_BLOCKS_OF_ONE_ROW = 4


def region(format_: Format, order: Callable[..., None], multiply: Callable[..., None]) -> Callable[[Any], None]:
    """Return the compiled function of the arguments above that multiplies, run by all threads.

    Each format calls it from a function of its own module: numba keeps the code of such a function alone.
    """
    orders_one_row, most_rows, row_bytes = format_.orders_one_row, rows_limiter(format_), row_sizer(format_)

    @part
    def run(arguments: Any) -> None:
        inputs, outputs = arguments[INPUTS], arguments[OUTPUTS]
        number, threads = thread_number(arguments), num_threads(arguments)
        at_once = most_rows(inputs)
        for first in range(0, arguments[ROWS], at_once):
            count = min(at_once, arguments[ROWS] - first)
            x = arguments[X] + 4 * first * inputs
            tiles = x
            if not arguments[X]:
                tiles = arguments[TILES] + first * row_bytes(inputs)
            elif orders_one_row or count > 1:
                tiles = arguments[TILES]
                barrier(arguments)
                order(x, tiles, count, inputs, number, threads)
                barrier(arguments)
            block_bytes = arguments[BLOCK_BYTES]
            offset = 4 * first * (BLOCK if block_bytes else outputs)
            deltas = arguments[DELTAS]
            if deltas:
                deltas += 4 * first * ((outputs + BLOCK - 1) // BLOCK * BLOCK)
            changes = (deltas, arguments[ARE_CHANGED] + 8 * first)
            how = (arguments[OPERATION], arguments[OTHER] + offset, arguments[BIAS], changes)
            sizes = (count, inputs, outputs, block_bytes)
            multiply(arguments[WEIGHTS], tiles, arguments[OUT] + offset, sizes, how, number, threads)

    return run


def orderer(format_: Format) -> Callable[..., None]:
    """Return the compiled function that puts rows in the order of the format."""
    write_rows, row_bytes, tile_rows = format_.write_rows, row_sizer(format_), tile_sizer(format_)

    @part
    def order(x: int, tiles: int, rows: int, inputs: int, number: int, threads: int) -> None:
        """Write this thread's share of float32 [rows, inputs] as tiles."""
        done = index = 0
        while done < rows:
            size = tile_rows(rows - done)
            if index % threads == number:
                write_rows(x + 4 * done * inputs, tiles + done * row_bytes(inputs), size, inputs)
            done += size
            index += 1

    return order


def multiplier(format_: Format) -> Callable[..., None]:
    """Return the compiled function that multiplies ordered rows by weights of the format."""
    at_once, step_bytes, head_bytes = format_.inputs_at_once, format_.step_bytes, format_.head_bytes
    row_bytes, tile_rows, multiply_tile = row_sizer(format_), tile_sizer(format_), _tile_multiplier(format_)
    num_sums, largest = format_.largest_tile * BLOCK, format_.largest_tile
    multiply_row = _row_multiplier(format_)

    @part
    def multiply(weights: int, tiles: int, out: int, sizes: Any, how: Any, number: int, threads: int) -> None:
        """Multiply ordered rows by this thread's share of the weights. `sizes`: rows, inputs, outputs, and
        BLOCK_BYTES, which is 0 here. `how`: as `finish` has it.
        """
        rows, inputs, outputs, _ = sizes
        blocks = (outputs + BLOCK - 1) // BLOCK
        steps = (inputs + at_once - 1) // at_once
        row_size = row_bytes(inputs)
        block_bytes = steps * step_bytes + head_bytes
        sums = stack_floats(num_sums)
        start, end = blocks * number // threads, blocks * (number + 1) // threads
        if rows == 1:
            start = multiply_row(weights, tiles, out, (start, end, block_bytes, steps, outputs), how)
        for index in range(start, end):
            own = weights + index * block_bytes
            first = index * BLOCK
            count = min(BLOCK, outputs - first)
            done = 0
            while done < rows:
                size = tile_rows(rows - done)
                x = tiles + done * row_size
                ahead = _fetched(done, rows, largest, own + block_bytes, block_bytes)
                multiply_tile(size, x, own, sums, steps, ahead)
                finish(sums, out, (done, size), (first, count, outputs), how)
                done += size

    return multiply


def _row_multiplier(format_: Format) -> Callable[..., int]:
    """Return, for compiled code, the function that multiplies one row by several blocks at once."""
    multiply_blocks, num_sums = format_.tile(1, _BLOCKS_OF_ONE_ROW), _BLOCKS_OF_ONE_ROW * BLOCK

    @part
    def multiply_row(weights: int, x: int, out: int, sizes: Any, how: Any) -> int:
        """Return the first block that is left. `sizes`: first block, end of the blocks, bytes of one, steps, outputs.
        `how`: as `finish` has it.
        """
        start, end, block_bytes, steps, outputs = sizes
        sums = stack_floats(num_sums)
        while end - start >= _BLOCKS_OF_ONE_ROW:
            multiply_blocks(x, weights + start * block_bytes, sums, steps, 0)
            for index in range(_BLOCKS_OF_ONE_ROW):
                first = (start + index) * BLOCK
                columns = (first, min(BLOCK, outputs - first), outputs)
                finish(sums + 4 * BLOCK * index, out, (0, 1), columns, how)
            start += _BLOCKS_OF_ONE_ROW
        return int(start)

    return multiply_row


def _tile_multiplier(format_: Format) -> Callable[..., None]:
    """Return, for compiled code, the inner loop of a tile of any number of rows: the number, then as Format.tile."""
    is_wide = format_.largest_tile >= 8
    tile1, tile2, tile3, tile4 = (format_.tile(rows, 1) for rows in range(1, 5))
    tile5, tile6, tile7, tile8 = (format_.tile(rows, 1) if is_wide else tile4 for rows in range(5, 9))

    @part
    def multiply_tile(size: int, x: int, weights: int, sums: int, steps: int, ahead: int) -> None:
        if is_wide and size == 8:
            tile8(x, weights, sums, steps, ahead)
        elif is_wide and size == 7:
            tile7(x, weights, sums, steps, ahead)
        elif is_wide and size == 6:
            tile6(x, weights, sums, steps, ahead)
        elif is_wide and size == 5:
            tile5(x, weights, sums, steps, ahead)
        elif size == 4:
            tile4(x, weights, sums, steps, ahead)
        elif size == 3:
            tile3(x, weights, sums, steps, ahead)
        elif size == 2:
            tile2(x, weights, sums, steps, ahead)
        else:
            tile1(x, weights, sums, steps, 0)

    return multiply_tile


@inlined
def _fetched(done: int, rows: int, largest: int, following: int, block_bytes: int) -> int:
    """Return what a tile fetches while it computes, as `Format.tile` has it. `done`: rows before it. `following`: the
    next block.

    Each of the last two tiles fetches half of the next block: the first tile there would wait for all of it, and the
    others for nothing. A tile that is alone fetches all of it, in two streams from memory.
    """
    if rows <= largest:
        return following + 1
    if rows - done > 2 * largest:
        return 0
    return following if rows - done > largest else following + block_bytes // 2
