"""GEMM: the loops around the tiles, for any format and any number of rows and threads."""

from collections.abc import Callable
from typing import Any

from frameworks.pytorch.compiled.jit import inlined, inlined_early, stack_floats
from frameworks.pytorch.compiled.matmul.epilogue import apply_epilogue
from frameworks.pytorch.compiled.matmul.float_tiles import ALL_OF_BLOCK, MOST_SLOWER, SLOWER
from frameworks.pytorch.compiled.matmul.formats import Format, row_sizer, rows_limiter, tile_sizer
from frameworks.pytorch.compiled.parallel import NUM_RESERVED, barrier, num_threads, thread_number
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK, LINE_BYTES

(
    ROWS, INPUTS, OUTPUTS, X, WEIGHTS, OUT, BLOCK_BYTES, TILES, OPERATION, OTHER, BIAS, DELTAS, ARE_CHANGED,
    NUM_ARGUMENTS,
) = range(NUM_RESERVED, NUM_RESERVED + 14)  # fmt: skip
"""Arguments of a region that multiplies.

- `X`: address of float32 activations [rows, inputs]; 0 if they are packed in `TILES`, a scratch buffer for that.
- `OUT`: of float32 [rows, outputs]; if `BLOCK_BYTES` is not 0, of [blocks, rows, outputs of a block], with whole tiles
  of rows, and a stride of so many bytes. That is for formats with `has_amx_layout`, for whole blocks of outputs, and
  for NONE, or ADD to what is there.
- `OTHER`: as `OUT`, for an operation. `BIAS`: of float32 [outputs], or 0.
- `DELTAS`: of float32 [rows, blocks, outputs of a block], which is added to the rows whose element of `ARE_CHANGED`,
  int64 [rows], is not 0; or 0.
"""
# A single row waits for memory, and a core reads several streams faster than one.
_BLOCKS_OF_ONE_ROW = 4


def region(
    format_: Format, pack_activations: Callable[..., None], matmul: Callable[..., None]
) -> Callable[[Any], None]:
    """Return the compiled function of the arguments above that multiplies, run by all threads.

    Each format calls it from a function of its own module: numba caches the code of such a function alone.
    """
    packs_one_row, most_rows, row_bytes = format_.packs_one_row, rows_limiter(format_), row_sizer(format_)

    @inlined_early
    def run(arguments: Any) -> None:
        inputs, outputs = arguments[INPUTS], arguments[OUTPUTS]
        thread, threads = thread_number(arguments), num_threads(arguments)
        at_once = most_rows(inputs)
        for first in range(0, arguments[ROWS], at_once):
            count = min(at_once, arguments[ROWS] - first)
            x = arguments[X] + 4 * first * inputs
            tiles = x
            if not arguments[X]:
                tiles = arguments[TILES] + first * row_bytes(inputs)
            elif packs_one_row or count > 1:
                tiles = arguments[TILES]
                barrier(arguments)
                pack_activations(x, tiles, count, inputs, thread, threads)
                barrier(arguments)
            block_bytes = arguments[BLOCK_BYTES]
            offset = 4 * first * (BLOCK if block_bytes else outputs)
            deltas = arguments[DELTAS]
            if deltas:
                deltas += 4 * first * ((outputs + BLOCK - 1) // BLOCK * BLOCK)
            changes = (deltas, arguments[ARE_CHANGED] + 8 * first)
            epilogue = (arguments[OPERATION], arguments[OTHER] + offset, arguments[BIAS], changes)
            sizes = (count, inputs, outputs, block_bytes)
            matmul(arguments[WEIGHTS], tiles, arguments[OUT] + offset, sizes, epilogue, thread, threads)

    return run


def activation_packer(format_: Format) -> Callable[..., None]:
    """Return the compiled function that packs activations in the order of the format."""
    pack_tile, row_bytes, tile_rows = format_.pack_tile, row_sizer(format_), tile_sizer(format_)

    @inlined_early
    def pack_activations(x: int, tiles: int, rows: int, inputs: int, thread: int, threads: int) -> None:
        """Pack this thread's share of float32 [rows, inputs] as tiles."""
        done = index = 0
        while done < rows:
            size = tile_rows(rows - done)
            if index % threads == thread:
                pack_tile(x + 4 * done * inputs, tiles + done * row_bytes(inputs), size, inputs)
            done += size
            index += 1

    return pack_activations


def matmul_loops(format_: Format) -> Callable[..., None]:
    """Return the compiled function that multiplies packed activations by weights of the format."""
    at_once, step_bytes, head_bytes = format_.inputs_at_once, format_.step_bytes, format_.head_bytes
    row_bytes, tile_rows, matmul_tile = row_sizer(format_), tile_sizer(format_), _tile_matmul(format_)
    num_sums, largest = format_.largest_tile * BLOCK, format_.largest_tile
    matmul_row = _row_matmul(format_)

    @inlined_early
    def matmul(weights: int, tiles: int, out: int, sizes: Any, epilogue: Any, thread: int, threads: int) -> None:
        """Multiply packed activations by this thread's share of the weights. `sizes`: rows, inputs, outputs, and
        BLOCK_BYTES, which is 0 here. `epilogue`: as in `apply_epilogue`.
        """
        rows, inputs, outputs, _ = sizes
        blocks = (outputs + BLOCK - 1) // BLOCK
        steps = (inputs + at_once - 1) // at_once
        row_size = row_bytes(inputs)
        block_bytes = steps * step_bytes + head_bytes
        sums = stack_floats(num_sums)
        start, end = blocks * thread // threads, blocks * (thread + 1) // threads
        if rows == 1:
            start = matmul_row(weights, tiles, out, (start, end, block_bytes, steps, outputs), epilogue)
        for index in range(start, end):
            own = weights + index * block_bytes
            first = index * BLOCK
            count = min(BLOCK, outputs - first)
            done = 0
            while done < rows:
                size = tile_rows(rows - done)
                x = tiles + done * row_size
                ahead = _fetched(done, rows, largest, own + block_bytes, block_bytes)
                matmul_tile(size, x, own, sums, steps, ahead)
                apply_epilogue(sums, out, (done, size), (first, count, outputs), epilogue)
                done += size

    return matmul


def _row_matmul(format_: Format) -> Callable[..., int]:
    """Return, for compiled code, the function that multiplies one row by several blocks at once (GEMV)."""
    matmul_blocks, num_sums = format_.tile(1, _BLOCKS_OF_ONE_ROW), _BLOCKS_OF_ONE_ROW * BLOCK

    @inlined_early
    def matmul_row(weights: int, x: int, out: int, sizes: Any, epilogue: Any) -> int:
        """Return the first block that is left. `sizes`: first block, end of the blocks, bytes of one, steps, outputs.
        `epilogue`: as in `apply_epilogue`.
        """
        start, end, block_bytes, steps, outputs = sizes
        sums = stack_floats(num_sums)
        while end - start >= _BLOCKS_OF_ONE_ROW:
            matmul_blocks(x, weights + start * block_bytes, sums, steps, 0)
            for index in range(_BLOCKS_OF_ONE_ROW):
                first = (start + index) * BLOCK
                columns = (first, min(BLOCK, outputs - first), outputs)
                apply_epilogue(sums + 4 * BLOCK * index, out, (0, 1), columns, epilogue)
            start += _BLOCKS_OF_ONE_ROW
        return int(start)

    return matmul_row


def _tile_matmul(format_: Format) -> Callable[..., None]:
    """Return, for compiled code, the inner loop of a tile of any number of rows: (rows, then as Format.tile)."""
    is_wide = format_.largest_tile >= 8
    tile1, tile2, tile3, tile4 = (format_.tile(rows, 1) for rows in range(1, 5))
    tile5, tile6, tile7, tile8 = (format_.tile(rows, 1) if is_wide else tile4 for rows in range(5, 9))

    @inlined_early
    def matmul_tile(size: int, x: int, weights: int, sums: int, steps: int, ahead: int) -> None:
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

    return matmul_tile


@inlined
def _fetched(done: int, rows: int, largest: int, following: int, block_bytes: int) -> int:
    """Return the weights that a tile prefetches while it computes, as in `Format.tile`. `done`: rows before it.
    `following`: the next block.

    The last tiles prefetch equal parts of the next block, as many tiles as there are, up to a power of two: a burst
    would take more than a core gets from the third-level cache. A single tile prefetches all of it, in two streams from
    memory.
    """
    if rows <= largest:
        return following + ALL_OF_BLOCK
    tiles, left = (rows + largest - 1) // largest, (rows - done + largest - 1) // largest
    slower = 0
    while slower < MOST_SLOWER and 4 << slower <= tiles:
        slower += 1
    fetching = 2 << slower
    if left > fetching:
        return 0
    part = block_bytes // fetching // LINE_BYTES * LINE_BYTES
    return following + (fetching - left) * part + slower * SLOWER
