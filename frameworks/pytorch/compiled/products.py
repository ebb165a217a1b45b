"""Products of rows and weights: the loops around the tiles, for any number of rows and threads."""

from collections.abc import Callable
from typing import Any

from frameworks.pytorch.compiled.elementwise import ADD, MUL, SILU, sigmoid
from frameworks.pytorch.compiled.formats import Format
from frameworks.pytorch.compiled.jit import compiled, inlined, pointer_to_floats, stack_floats
from frameworks.pytorch.compiled.parallel import NUM_RESERVED, barrier, num_threads, thread_number
from frameworks.pytorch.compiled.tiles import Vectors, float_tile
from frameworks.pytorch.compiled.vectors import lanes

ROWS, INPUTS, OUTPUTS, X, WEIGHTS, OUT, TILES, OPERATION, OTHER, BIAS, NUM_ARGUMENTS = range(
    NUM_RESERVED, NUM_RESERVED + 11
)
"""Arguments of a region that multiplies. `X`: address of float32 [rows, inputs]. `TILES`: of float32 [rows, inputs] for
the work. `OTHER`: of float32 [rows, outputs] for an operation. `BIAS`: of float32 [outputs], or 0.
"""
# Rows that are multiplied before the next ones are put in order: the ordered ones stay in a core's cache.
ROWS_AT_ONCE = 256
_WIDE_TILE = 8
# Sixteen registers hold the sums of four rows, and not of eight.
_NARROW_LANES = 8


VECTORS = Vectors(lanes())
BLOCK = VECTORS.block
"""Outputs of a block of the weights."""
_LARGEST_TILE = 4 if VECTORS.lanes == _NARROW_LANES else _WIDE_TILE
_IS_WIDE = _LARGEST_TILE == _WIDE_TILE
_NUM_SUMS = _LARGEST_TILE * BLOCK


@compiled
def ordered(arguments: Any, first: int) -> Any:
    """Put up to ROWS_AT_ONCE rows from `first` on in order, together with the other threads. Return the arguments of
    the format's product.
    """
    inputs, outputs = arguments[INPUTS], arguments[OUTPUTS]
    number, threads = thread_number(arguments), num_threads(arguments)
    count = min(ROWS_AT_ONCE, arguments[ROWS] - first)
    x = arguments[X] + 4 * first * inputs
    tiles = x
    if count > 1:
        tiles = arguments[TILES]
        barrier(arguments)
        order_rows(x, tiles, count, inputs, number, threads)
        barrier(arguments)
    offset = 4 * first * outputs
    out = arguments[OUT] + offset
    finish = (arguments[OPERATION], arguments[OTHER] + offset, arguments[BIAS])
    return tiles, out, (count, inputs, outputs), finish, number, threads


@compiled
def order_rows(x: int, tiles: int, rows: int, inputs: int, number: int, threads: int) -> None:
    """Write [rows, inputs] as tiles of `_LARGEST_TILE` rows, then of half as many, …: each [inputs, rows of a tile]."""
    source, target = pointer_to_floats(x), pointer_to_floats(tiles)
    done = index = 0
    size = _LARGEST_TILE
    while done < rows:
        while rows - done < size:
            size //= 2
        if index % threads == number:
            base = done * inputs
            for row in range(size):
                for position in range(inputs):
                    target[base + position * size + row] = source[base + row * inputs + position]
        done += size
        index += 1


def multiplier(format_: Format) -> Callable[..., None]:
    """Return the compiled function that multiplies ordered rows by weights of the format."""
    tile1, tile2, tile4, tile8 = (
        float_tile(VECTORS, rows, format_.inputs_at_once, format_.load_weights) for rows in (1, 2, 4, 8)
    )
    input_bytes = format_.input_bytes

    @compiled
    def multiply(weights: int, tiles: int, out: int, sizes: Any, finish: Any, number: int, threads: int) -> None:
        """Multiply ordered rows by this thread's share of the weights. `sizes`: rows, inputs, outputs. `finish`:
        operation, other, bias.
        """
        rows, inputs, outputs = sizes
        blocks = (outputs + BLOCK - 1) // BLOCK
        sums = stack_floats(_NUM_SUMS)
        for index in range(blocks * number // threads, blocks * (number + 1) // threads):
            own = weights + index * inputs * input_bytes
            first = index * BLOCK
            count = min(BLOCK, outputs - first)
            done = 0
            while _IS_WIDE and rows - done >= 8:
                tile8(tiles + 4 * done * inputs, own, sums, inputs)
                _finish(sums, out, (done, 8), (first, count, BLOCK, outputs), finish)
                done += 8
            while rows - done >= 4:
                tile4(tiles + 4 * done * inputs, own, sums, inputs)
                _finish(sums, out, (done, 4), (first, count, BLOCK, outputs), finish)
                done += 4
            if rows - done >= 2:
                tile2(tiles + 4 * done * inputs, own, sums, inputs)
                _finish(sums, out, (done, 2), (first, count, BLOCK, outputs), finish)
                done += 2
            if rows - done == 1:
                tile1(tiles + 4 * done * inputs, own, sums, inputs)
                _finish(sums, out, (done, 1), (first, count, BLOCK, outputs), finish)

    return multiply


@compiled
def _finish(sums: int, out: int, rows: Any, columns: Any, finish: Any) -> None:
    """Write the sums of a tile with the operation.

    `rows`: first, count. `columns`: first, count, stride of the sums and of the outputs.
    """
    first_row, num_rows = rows
    first, count, stride, outputs = columns
    operation, other, bias = finish
    for row in range(num_rows):
        start = (first_row + row) * outputs + first
        own = pointer_to_floats(sums + 4 * row * stride)
        if bias:
            added = pointer_to_floats(bias + 4 * first)
            for column in range(count):
                own[column] += added[column]
        _operate(own, out + 4 * start, other + 4 * start, count, operation)


@inlined
def _operate(own: Any, out: int, other: int, count: int, operation: int) -> None:
    target, operand = pointer_to_floats(out), pointer_to_floats(other)
    if operation == SILU:
        for column in range(count):
            target[column] = own[column] * sigmoid(own[column])
    elif operation == MUL:
        for column in range(count):
            target[column] = own[column] * operand[column]
    elif operation == ADD:
        for column in range(count):
            target[column] = own[column] + operand[column]
    else:
        for column in range(count):
            target[column] = own[column]
