"""Attention by Intel's AMX, where keys and values are bfloat16.

As flash_attention.py, with queries and softmax weights rounded to bfloat16. Exponentials and sums are float32. 16 or 32
rows are multiplied at once; of fewer rows, the other results are not read. 32 adjacent blocks of the block table are
accumulated at once. Masked keys add zeros. So a row's result depends on its own keys alone.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.amx.amx_gemm import amx_tile, packed_row_address
from frameworks.pytorch.compiled.amx.amx_registers import INPUTS, ROWS, STEP_BYTES, TILE_BYTES, configure, release
from frameworks.pytorch.compiled.attention import flash_attention
from frameworks.pytorch.compiled.attention.amx_softmax_tiles import (
    BLOCK_BYTES,
    LOG2_E,
    exp2,
    softmax_of_block,
    sum_exceeds,
    weighted_values_adder,
)
from frameworks.pytorch.compiled.attention.attention_tiles import KEYS, LANES, LOWEST_SCORE, fetch_lines
from frameworks.pytorch.compiled.attention.cache_rows import BFLOAT16, copy
from frameworks.pytorch.compiled.attention.flash_attention import (
    KEY_END,
    STATE_FLOATS,
    begin_rows,
    finish_rows,
)
from frameworks.pytorch.compiled.jit import (
    inlined,
    llvm_function,
    pointer_to_floats,
    pointer_to_integers,
    stack_floats,
    strict_math,
)
from frameworks.pytorch.compiled.matmul.bfloat16_activations import store_bfloat16_vector
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, LINE_BYTES, int64, load, splat

_AT_ONCE = 2 * ROWS
"""Rows of a matmul."""
MAX_TILE_ROWS = 4 * _AT_ONCE
"""Rows of a tile: keys and values are packed once for all of them."""
_BLOCKS = 32
"""Blocks of keys that are accumulated together: a row's sums are loaded and stored once for all of them."""
_ROW = ir.VectorType(ir.IntType(16), KEYS)
_one_tile, _two_tiles = amx_tile(1), amx_tile(2)
_softmax1, _softmax2 = (softmax_of_block(row_tiles, is_unmasked=False) for row_tiles in (1, 2))
_unmasked_softmax1, _unmasked_softmax2 = (softmax_of_block(row_tiles, is_unmasked=True) for row_tiles in (1, 2))
_add_values1, _add_values2 = (weighted_values_adder(row_tiles) for row_tiles in (1, 2))


def _uses_amx(head_size: int, dtype: int) -> bool:
    return dtype == BFLOAT16 and head_size % INPUTS == 0


def tile_tokens(heads: int, head_size: int, dtype: int, /) -> int:
    """Return the tokens of a tile with so many query heads."""
    if not _uses_amx(head_size, dtype):
        return flash_attention.tile_tokens(heads, head_size, dtype)
    return max(1, MAX_TILE_ROWS // heads)


def scratch_bytes(head_size: int, dtype: int, /) -> int:
    """Return the bytes of the scratch buffer of a thread."""
    if not _uses_amx(head_size, dtype):
        return flash_attention.scratch_bytes(head_size, dtype)
    of_rows = (2 + 4) * head_size + 4 * STATE_FLOATS
    of_block = 2 * 2 * KEYS * head_size + 2 * TILE_BYTES
    of_product = 2 * BLOCK_BYTES + 4 * LANES * _AT_ONCE
    return -(-(MAX_TILE_ROWS * of_rows + _BLOCKS * of_block + of_product) // LINE_BYTES) * LINE_BYTES


@inlined
def _scratch_layout(scratch: int, size: int) -> tuple[int, int, int, int, int]:
    """Return the addresses behind the queries, which are the first: of the sums and the states of the rows, float32, of
    the packed keys and values, bfloat16, and of the scores of two blocks, float32.
    """
    sums = scratch + MAX_TILE_ROWS * 2 * size
    states = sums + MAX_TILE_ROWS * 4 * size
    keys = states + MAX_TILE_ROWS * 4 * STATE_FLOATS
    values = keys + _BLOCKS * 2 * KEYS * size
    return sums, states, keys, values, values + _BLOCKS * 2 * KEYS * size


@inlined
def _weights_and_earlier_sums(scores: int) -> tuple[int, int]:
    """Return the addresses of the softmax weights, and of the sums of earlier weights, float32 [_AT_ONCE, LANES]."""
    weights = scores + 2 * BLOCK_BYTES
    return weights, weights + _BLOCKS * 2 * TILE_BYTES


@llvm_function
def _pack_pairs(_context: Any, _source: Any, _row_bytes: Any, _count: Any, _target: Any) -> Any:
    """(address of rows of 32 16-bit elements, bytes from row to row, number of rows, target) → nothing.

    It packs a step of the B operand, [16 pairs of rows, 32 columns, 2], with zeros for missing rows.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, target = builder.inttoptr(arguments[0], BYTES), builder.inttoptr(arguments[3], BYTES)
        lanes = [lane // 2 + KEYS * (lane % 2) for lane in range(2 * KEYS)]
        order = ir.Constant(ir.VectorType(ir.IntType(32), 2 * KEYS), lanes)
        zeros = ir.Constant(_ROW, [0] * KEYS)
        with cgutils.for_range_slice(builder, int64(0), int64(INPUTS), int64(2)) as (row, _):
            found = []
            for index in (row, builder.add(row, int64(1))):
                given = load(builder, builder.gep(source, [builder.mul(index, arguments[1])]), _ROW)
                found.append(builder.select(builder.icmp_signed("<", index, arguments[2]), given, zeros))
            pairs = builder.shuffle_vector(*found, order)
            pointer = builder.gep(target, [builder.mul(row, int64(2 * KEYS))])
            builder.store(pairs, builder.bitcast(pointer, pairs.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), write


@llvm_function
def _pack_queries(_context: Any, _source: Any, _scale: Any, _target: Any) -> Any:
    """(address of INPUTS float32, scale, target) → nothing; writes them times the scale as bfloat16."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, target = (builder.inttoptr(each, BYTES) for each in (arguments[0], arguments[2]))
        given = load(builder, source, ir.VectorType(ir.FloatType(), INPUTS))
        store_bfloat16_vector(builder, builder.fmul(given, splat(builder, arguments[1], INPUTS)), target)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64), write


@strict_math
def _matmul(rows: int, x: int, weights: int, out: int, steps: int) -> None:
    if rows > ROWS:
        _two_tiles(x, weights, out, steps, 0)
    else:
        _one_tile(x, weights, out, steps, 0)


@strict_math
def _attend_by_amx(queries: int, out: int, scratch: int, tile: Any, sizes: Any, cache: Any, scale: Any) -> None:
    """As `attend_to_keys`, where the head size is a multiple of INPUTS, and there is no bias."""
    tokens, heads, (key_end, step, window, length), _ = tile
    size, query_bytes, out_bytes = sizes
    keys, values, blocks, block_bytes, _ = cache
    rows, row_bytes, steps = tokens * heads, 4 * size, size // INPUTS
    sums, states, own_keys, own_values, scores = _scratch_layout(scratch, size)
    begin_rows(sums, states, (tokens, heads, key_end, step), row_bytes)
    exponents = scale * np.float32(LOG2_E)
    for row in range(rows):
        given = queries + row // heads * query_bytes + row % heads * row_bytes
        address = packed_row_address(scratch, row, size)
        for part in range(steps):
            _pack_queries(given + 4 * INPUTS * part, exponents, address + TILE_BYTES * part)
    oldest = max(0, key_end - window) // KEYS if window else 0
    end = min(length, key_end + step * (tokens - 1))
    configure()
    for start in range(oldest // _BLOCKS * _BLOCKS, (end + KEYS - 1) // KEYS, _BLOCKS):
        span = (start, oldest, end)
        _pack_blocks((keys, values, blocks, block_bytes), (own_keys, own_values), span, size)
        for first in range(0, rows, _AT_ONCE):
            own = (scratch + first * 2 * size, own_keys, own_values, scores, sums + first * row_bytes)
            own_states = states + 4 * STATE_FLOATS * first
            _add_blocks(own, own_states, (min(_AT_ONCE, rows - first), size), (start * KEYS, window, end))
    release()
    finish_rows(out, (tokens, heads, out_bytes), (size, row_bytes), (sums, states))


@strict_math
def _pack_blocks(cache: Any, scratch: Any, span: Any, size: int) -> None:
    """Pack up to _BLOCKS blocks for AMX: keys as [blocks, steps, …], values as [steps, blocks, …].

    `cache`: as in `attend_to_keys`. `span`: the first of the blocks, the first one that any row sees, and the position
    behind the last key. Masked values become zeros; masked keys are undefined.
    """
    keys, values, blocks, block_bytes = cache
    packed_keys, packed_values = scratch
    start, oldest, end = span
    steps, block_table = size // INPUTS, pointer_to_integers(blocks)
    for block in range(_BLOCKS):
        count = min(KEYS, end - (start + block) * KEYS)
        if count <= 0:
            return
        offset = block_table[max(start + block, oldest)] * block_bytes
        if start + block < oldest:
            count = 0
        elif count < end - (start + block) * KEYS:
            following = block_table[start + block + 1] * block_bytes
            fetch_lines(keys + following, 2 * size * KEYS)
            fetch_lines(values + following, 2 * size * KEYS)
        for step in range(steps):
            own_keys = packed_keys + STEP_BYTES * (steps * block + step)
            own_values = packed_values + STEP_BYTES * (_BLOCKS * step + block)
            _pack_pairs(keys + offset + 2 * KEYS * INPUTS * step, 2 * KEYS, INPUTS, own_keys)
            _pack_pairs(values + offset + 2 * INPUTS * step, 2 * size, count, own_values)


@strict_math
def _add_blocks(scratch: Any, states: int, sizes: Any, span: Any) -> None:
    """Add blocks of keys and values to up to _AT_ONCE rows.

    `scratch`: addresses of the queries, the packed keys and values, the scores and the sums. `sizes`: rows, head size.
    `span`: position of the first key, the window, 0 for none, and the position behind the last key of all rows.
    """
    values, scores, sums = scratch[2], scratch[3], scratch[4]
    rows, size = sizes
    start, window, end = span
    blocks = min(_BLOCKS, (min(_end(states, rows - 1), end) - start + KEYS - 1) // KEYS)
    if blocks <= 0 or (window and _end(states, 0) - window >= start + _BLOCKS * KEYS):
        return
    weights, before = _weights_and_earlier_sums(scores)
    for row in range(rows):
        copy(states + 4 * (STATE_FLOATS * row + LANES), before + 4 * LANES * row, LANES)
    _softmax_blocks(scratch, states, sizes, span, blocks)
    num_too_large = 0
    for row in range(rows):
        num_too_large += sum_exceeds(states + 4 * STATE_FLOATS * row)
    if num_too_large:
        _set_reference_scores(scratch, states, sizes, span, blocks)
        _softmax_blocks(scratch, states, sizes, span, blocks)
    for step in range(size // INPUTS):
        own_values, own_sums = values + STEP_BYTES * _BLOCKS * step, sums + 4 * INPUTS * step
        if rows > ROWS:
            _add_values2(weights, own_values, own_sums, blocks, 4 * size)
        else:
            _add_values1(weights, own_values, own_sums, blocks, 4 * size)


@inlined
def _end(states: int, row: int) -> int:
    """Return the position behind the last key of a row."""
    return int(pointer_to_integers(states + 4 * STATE_FLOATS * row)[KEY_END])


@strict_math
def _softmax_blocks(scratch: Any, states: int, sizes: Any, span: Any, blocks: int) -> None:
    """Write the softmax weights of some blocks of keys. Arguments as in `_add_blocks`."""
    queries, keys, scores = scratch[0], scratch[1], scratch[3]
    rows, size = sizes
    start, window, end = span
    steps = size // INPUTS
    weights, _ = _weights_and_earlier_sums(scores)
    first_end, last_end = _end(states, 0), _end(states, rows - 1)
    _matmul(rows, queries, keys, scores, steps)
    for block in range(blocks):
        key, following = start + KEYS * block, block + 1
        # A row has a reference if it sees the key before.
        is_known = key > 0 and (not window or last_end - window < key)
        is_unmasked = is_known and min(first_end, end) >= key + KEYS
        addresses = (scores + block % 2 * BLOCK_BYTES, states, weights + block * TILE_BYTES)
        given = (queries, keys + STEP_BYTES * steps * following, scores + following % 2 * BLOCK_BYTES)
        seen = (key, window, min(KEYS, end - key))
        counts, following_steps = (rows, blocks * TILE_BYTES), (steps, 1 if following < blocks else 0)
        if rows > ROWS and is_unmasked:
            _unmasked_softmax2(addresses, counts, seen, given, following_steps)
        elif rows > ROWS:
            _softmax2(addresses, counts, seen, given, following_steps)
        elif is_unmasked:
            _unmasked_softmax1(addresses, counts, seen, given, following_steps)
        else:
            _softmax1(addresses, counts, seen, given, following_steps)


@strict_math
def _set_reference_scores(scratch: Any, states: int, sizes: Any, span: Any, blocks: int) -> None:
    """Make the maximum of some blocks the reference of rows whose sums of weights are too large. Reset the sums of all
    rows to those before these blocks. Arguments as in `_add_blocks`.
    """
    queries, keys, _, scores, sums = scratch
    rows, size = sizes
    start, window, last = span
    _, before = _weights_and_earlier_sums(scores)
    largest = pointer_to_floats(stack_floats(_AT_ONCE))
    for row in range(rows):
        largest[row] = LOWEST_SCORE
    for block in range(blocks):
        _matmul(rows, queries, keys + STEP_BYTES * size // INPUTS * block, scores, size // INPUTS)
        for row in range(rows):
            end = _end(states, row) - start - KEYS * block
            own = pointer_to_floats(scores + 4 * KEYS * row)
            for key in range(max(0, end - window) if window else 0, min(KEYS, end, last - start - KEYS * block)):
                largest[row] = max(largest[row], own[key])
    for row in range(rows):
        state = states + 4 * STATE_FLOATS * row
        is_too_large = sum_exceeds(state)
        copy(before + 4 * LANES * row, state + 4 * LANES, LANES)
        if is_too_large:
            maxima = pointer_to_floats(state)
            factor = exp2(maxima[0] - largest[row])
            maxima[0] = largest[row]
            _scale(state + 4 * LANES, LANES, factor)
            _scale(sums + 4 * size * row, size, factor)


@strict_math
def _scale(address: int, count: int, factor: Any) -> None:
    values = pointer_to_floats(address)
    for position in range(count):
        values[position] *= factor


@strict_math
def attend(queries: int, out: int, scratch: int, tile: Any, sizes: Any, cache: Any, scale: Any) -> None:
    """As `attend_by_vectors`, by AMX where the dtype and the head size allow it."""
    tokens, heads, position, window = tile
    visible = (position + 1, 1, window, position + tokens)
    attend_to_keys(queries, out, scratch, (tokens, heads, visible, 0), sizes, cache, scale)


@strict_math
def attend_to_keys(queries: int, out: int, scratch: int, tile: Any, sizes: Any, cache: Any, scale: Any) -> None:
    """As `flash_attention.attend_to_keys`, by AMX where the dtype and the head size allow it; then without a bias."""
    if cache[4] == BFLOAT16 and sizes[0] % INPUTS == 0:
        _attend_by_amx(queries, out, scratch, tile, sizes, cache, scale)
    else:
        flash_attention.attend_to_keys(queries, out, scratch, tile, sizes, cache, scale)
