"""The products behind a layer's attention by matrix tiles: down(silu(gate(x)) · up(x)), added to the layer's states.

The rows between the products are as large as several caches of a core. They never exist as float32, and are written in
the order that the last product reads.
"""

from typing import Any

from llvmlite import ir

from frameworks.pytorch.compiled.amx.amx_gemm import (
    FORMAT,
    block_adder,
    matrix_multiplier,
    matrix_orderer,
    rows_writer,
)
from frameworks.pytorch.compiled.amx.amx_registers import (
    INPUTS,
    STEP_BYTES,
    TILE_BYTES,
    configure,
    place_of_row,
    release,
)
from frameworks.pytorch.compiled.jit import part, stack_floats
from frameworks.pytorch.compiled.matmul.bfloat16_activations import store_rounded
from frameworks.pytorch.compiled.matmul.epilogue import add_terms
from frameworks.pytorch.compiled.matmul.formats import MOST_ROWS, row_sizer, rows_limiter
from frameworks.pytorch.compiled.matmul.gemm import (
    BIAS,
    BLOCK_BYTES,
    OPERATION,
    OTHER,
    OUT,
    OUTPUTS,
    TILES,
    WEIGHTS,
    X,
)
from frameworks.pytorch.compiled.matmul.gemm import INPUTS as NUM_INPUTS
from frameworks.pytorch.compiled.matmul.gemm import ROWS as NUM_ROWS
from frameworks.pytorch.compiled.matmul.gemm_table import PRODUCT_COLUMNS
from frameworks.pytorch.compiled.parallel import barrier, num_threads, thread_number
from frameworks.pytorch.compiled.simd.elementwise import NONE, silu
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK, BYTES, PARTS, VECTORS, at, load, number

_UP, _DOWN = PRODUCT_COLUMNS, 2 * PRODUCT_COLUMNS
_SUMS_BYTES = 4 * BLOCK
_NUM_SUMS = 4 * MOST_ROWS * BLOCK
_most_rows, _row_bytes = rows_limiter(FORMAT), row_sizer(FORMAT)
_order, _multiply = matrix_orderer(FORMAT), matrix_multiplier()


def _write_gated(builder: Any, work: Any, row: Any) -> None:
    """Write silu(gate) · up of a row. `work`: addresses of both sums, and of the block's first tile in the order of
    `_multiply`; bytes from a tile of rows to the next.
    """
    gate, up, target, tile_bytes, _ = work
    of_row = builder.mul(row, number(_SUMS_BYTES))
    own, factor = (builder.inttoptr(builder.add(each, of_row), BYTES) for each in (gate, up))
    first, second = (
        builder.fmul(
            load(builder, at(builder, factor, offset), VECTORS.floats),
            silu(builder, load(builder, at(builder, own, offset), VECTORS.floats)),
        )
        for offset in (4 * VECTORS.lanes * part for part in PARTS)
    )
    order = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), list(range(BLOCK)))
    place = place_of_row(builder, builder.inttoptr(target, BYTES), row, tile_bytes)
    store_rounded(builder, builder.shuffle_vector(first, second, order), place)


_add_block = block_adder(_write_gated)
_write_rows = rows_writer(_write_gated)


@part
def _gate(arguments: Any, number: int, threads: int) -> None:
    """Write silu(gate) · up of this thread's share of the outputs, in the order of `_multiply`."""
    rows, outputs = arguments[NUM_ROWS], arguments[OUTPUTS]
    tiles, out, gate_bias, up_bias = arguments[TILES], arguments[OUT], arguments[BIAS], arguments[_UP + BIAS]
    steps, blocks = (arguments[NUM_INPUTS] + INPUTS - 1) // INPUTS, (outputs + BLOCK - 1) // BLOCK
    sums = stack_floats(_NUM_SUMS)
    work, end = (0, 0, 0, 0, 0), 0
    configure()
    for index in range(blocks * number // threads, blocks * (number + 1) // threads):
        # A block is written while the next one is multiplied, half of its rows beside each product.
        gate = sums + index % 2 * 2 * MOST_ROWS * _SUMS_BYTES
        up = gate + MOST_ROWS * _SUMS_BYTES
        offset, first = index * steps * STEP_BYTES, index * BLOCK
        _add_block(tiles, arguments[WEIGHTS] + offset, gate, (rows, steps, 0), work, (0, end // 2))
        _add_block(tiles, arguments[_UP + WEIGHTS] + offset, up, (rows, steps, 0), work, (end // 2, end))
        columns = (first, min(BLOCK, outputs - first), outputs)
        add_terms(gate, (0, rows), columns, (NONE, 0, gate_bias, (0, 0)))
        add_terms(up, (0, rows), columns, (NONE, 0, up_bias, (0, 0)))
        work, end = (gate, up, out + index * TILE_BYTES, blocks * TILE_BYTES, 0), rows
    release()
    _write_rows(work, 0, end)


@part
def feed_forward(arguments: Any) -> None:
    """Compute the products, run by all threads.

    `arguments`: int64 [3, PRODUCT_COLUMNS], of the products gate, up and down, of which gate's hold `X`, `TILES` and
    `OUT`, for at most as many rows as gate multiplies at once. `OUT`: room for the rows of down in order.
    """
    number, threads = thread_number(arguments), num_threads(arguments)
    rows, outputs = arguments[NUM_ROWS], arguments[OUTPUTS]
    if arguments[X]:
        _order(arguments[X], arguments[TILES], rows, arguments[NUM_INPUTS], number, threads)
        barrier(arguments)
    _gate(arguments, number, threads)
    barrier(arguments)
    at_once, hidden, block_bytes = _most_rows(outputs), arguments[_DOWN + OUTPUTS], arguments[_DOWN + BLOCK_BYTES]
    for first in range(0, rows, at_once):
        offset = 4 * first * (BLOCK if block_bytes else hidden)
        how = (arguments[_DOWN + OPERATION], arguments[_DOWN + OTHER] + offset, arguments[_DOWN + BIAS], (0, 0))
        tiles, out = arguments[OUT] + first * _row_bytes(outputs), arguments[_DOWN + OUT] + offset
        sizes = (min(at_once, rows - first), outputs, hidden, block_bytes)
        _multiply(arguments[_DOWN + WEIGHTS], tiles, out, sizes, how, number, threads)
