"""The feed-forward block of a layer as one fused GEMM by AMX: down(silu(gate(x)) · up(x)), added to the states.

The activations between gate, up and down are as large as several caches of a core. They never exist as float32: the
epilogue writes them packed for the last GEMM.
"""

from typing import Any

from llvmlite import ir

from frameworks.pytorch.compiled.amx.amx_gemm import (
    FORMAT,
    amx_activation_packer,
    amx_matmul_loops,
    block_adder,
    rows_writer,
)
from frameworks.pytorch.compiled.amx.amx_registers import (
    INPUTS,
    STEP_BYTES,
    TILE_BYTES,
    configure,
    release,
    row_pointer,
)
from frameworks.pytorch.compiled.jit import inlined_early, stack_floats
from frameworks.pytorch.compiled.matmul.bfloat16_activations import store_bfloat16_vector
from frameworks.pytorch.compiled.matmul.epilogue import add_bias_and_deltas
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
from frameworks.pytorch.compiled.matmul.gemm_table import GEMM_COLUMNS
from frameworks.pytorch.compiled.parallel import barrier, num_threads, thread_number
from frameworks.pytorch.compiled.simd.elementwise import NONE, silu
from frameworks.pytorch.compiled.simd.llvm_vectors import BLOCK, BYTES, PARTS, VECTORS, at, int64, load

_UP, _DOWN = GEMM_COLUMNS, 2 * GEMM_COLUMNS
_SUMS_BYTES = 4 * BLOCK
_NUM_SUMS = 4 * MOST_ROWS * BLOCK
_most_rows, _row_bytes = rows_limiter(FORMAT), row_sizer(FORMAT)
_pack_activations, _matmul = amx_activation_packer(FORMAT), amx_matmul_loops()


def _write_gated(builder: Any, deferred: Any, row: Any) -> None:
    """Write silu(gate) · up of a row as bfloat16. `deferred`: addresses of both sums, and of the block's first packed
    tile for `_matmul`; bytes from a tile of rows to the next.
    """
    gate, up, target, tile_bytes, _ = deferred
    of_row = builder.mul(row, int64(_SUMS_BYTES))
    own, factor = (builder.inttoptr(builder.add(each, of_row), BYTES) for each in (gate, up))
    first, second = (
        builder.fmul(
            load(builder, at(builder, factor, offset), VECTORS.floats),
            silu(builder, load(builder, at(builder, own, offset), VECTORS.floats)),
        )
        for offset in (4 * VECTORS.lanes * part for part in PARTS)
    )
    order = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), list(range(BLOCK)))
    pointer = row_pointer(builder, builder.inttoptr(target, BYTES), row, tile_bytes)
    store_bfloat16_vector(builder, builder.shuffle_vector(first, second, order), pointer)


_add_block = block_adder(_write_gated)
_write_rows = rows_writer(_write_gated)


@inlined_early
def _gate(arguments: Any, thread: int, threads: int) -> None:
    """Write silu(gate) · up of this thread's outputs, packed for `_matmul`."""
    rows, outputs = arguments[NUM_ROWS], arguments[OUTPUTS]
    tiles, out, gate_bias, up_bias = arguments[TILES], arguments[OUT], arguments[BIAS], arguments[_UP + BIAS]
    steps, blocks = (arguments[NUM_INPUTS] + INPUTS - 1) // INPUTS, (outputs + BLOCK - 1) // BLOCK
    sums = stack_floats(_NUM_SUMS)
    deferred, end = (0, 0, 0, 0, 0), 0
    configure()
    for index in range(blocks * thread // threads, blocks * (thread + 1) // threads):
        # A block is written while the next one is multiplied, half of its rows beside each matmul.
        gate = sums + index % 2 * 2 * MOST_ROWS * _SUMS_BYTES
        up = gate + MOST_ROWS * _SUMS_BYTES
        offset, first = index * steps * STEP_BYTES, index * BLOCK
        _add_block(tiles, arguments[WEIGHTS] + offset, gate, (rows, steps, 0), deferred, (0, end // 2))
        _add_block(tiles, arguments[_UP + WEIGHTS] + offset, up, (rows, steps, 0), deferred, (end // 2, end))
        columns = (first, min(BLOCK, outputs - first), outputs)
        add_bias_and_deltas(gate, (0, rows), columns, (NONE, 0, gate_bias, (0, 0)))
        add_bias_and_deltas(up, (0, rows), columns, (NONE, 0, up_bias, (0, 0)))
        deferred, end = (gate, up, out + index * TILE_BYTES, blocks * TILE_BYTES, 0), rows
    release()
    _write_rows(deferred, 0, end)


@inlined_early
def feed_forward(arguments: Any) -> None:
    """Compute gate, up and down, run by all threads.

    `arguments`: int64 [3, GEMM_COLUMNS], of gate, up and down, of which gate's hold `X`, `TILES` and `OUT`, for at most
    as many rows as gate multiplies at once. `OUT`: scratch buffer for the packed activations of down.
    """
    thread, threads = thread_number(arguments), num_threads(arguments)
    rows, outputs = arguments[NUM_ROWS], arguments[OUTPUTS]
    if arguments[X]:
        _pack_activations(arguments[X], arguments[TILES], rows, arguments[NUM_INPUTS], thread, threads)
        barrier(arguments)
    _gate(arguments, thread, threads)
    barrier(arguments)
    at_once, hidden, block_bytes = _most_rows(outputs), arguments[_DOWN + OUTPUTS], arguments[_DOWN + BLOCK_BYTES]
    for first in range(0, rows, at_once):
        offset = 4 * first * (BLOCK if block_bytes else hidden)
        epilogue = (arguments[_DOWN + OPERATION], arguments[_DOWN + OTHER] + offset, arguments[_DOWN + BIAS], (0, 0))
        tiles, out = arguments[OUT] + first * _row_bytes(outputs), arguments[_DOWN + OUT] + offset
        sizes = (min(at_once, rows - first), outputs, hidden, block_bytes)
        _matmul(arguments[_DOWN + WEIGHTS], tiles, out, sizes, epilogue, thread, threads)
