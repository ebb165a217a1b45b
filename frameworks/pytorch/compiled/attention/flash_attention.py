"""Attention over the block table of a KV cache, by vectors, for compiled code.

A tile is some adjacent tokens of a sequence, each with the query heads of one key head. It reads each block of keys and
values once, with the running maximum and sum of an online softmax for each row (Dao et al., FlashAttention, 2022). A
step of that softmax has up to BLOCKS_AT_ONCE blocks, from a multiple of them on. Accumulators are float32.

A row's result depends on its own keys alone: neither on the other rows of its tile, nor on the tokens that its step
computes.
"""

from typing import Any

import numpy as np

from frameworks.pytorch.compiled.attention.attention_tiles import (
    BLOCKS_AT_ONCE,
    KEYS,
    LANES,
    LOWEST_SCORE,
    TILE_ROWS,
    fetch_lines,
    scores_tile,
    softmax_row,
    weighted_values_tile,
)
from frameworks.pytorch.compiled.attention.cache_rows import FLOAT32, widen
from frameworks.pytorch.compiled.jit import inlined, pointer_to_floats, pointer_to_integers, strict_math
from frameworks.pytorch.compiled.simd.llvm_vectors import LINE_BYTES

MAX_TILE_ROWS = 64
"""Rows of a tile, a row for each token and query head. So many stay in a core's cache with a block of keys."""
_MOST_ROWS = max(TILE_ROWS)
_EIGHT = 8
_SCORES_BYTES = 4 * BLOCKS_AT_ONCE * KEYS
"""From a row of scores to the next."""
STATE_FLOATS, KEY_END = 2 * LANES, 1
"""Float32 elements of a row's state, and the index of an int64 in it: the position behind the row's last key. Before it
is the running maximum, and from LANES on the sums of the exponentials, by lane.
"""


def tile_tokens(heads: int, _head_size: int, _dtype: int, /) -> int:
    """Return the tokens of a tile with so many query heads, whole tiles of TILE_ROWS where there are several."""
    tokens = max(1, MAX_TILE_ROWS // heads)
    return tokens - tokens % _MOST_ROWS if tokens > _MOST_ROWS else tokens


def scratch_bytes(head_size: int, _dtype: int, /) -> int:
    """Return the bytes of the scratch buffer of a thread."""
    size = -(-head_size // LANES) * LANES
    scores = BLOCKS_AT_ONCE * KEYS + LANES
    floats = 2 * MAX_TILE_ROWS * size + MAX_TILE_ROWS * STATE_FLOATS + _MOST_ROWS * scores + 2 * KEYS * size
    return -(-4 * floats // LINE_BYTES) * LINE_BYTES


@inlined
def _scratch_layout(scratch: int, row_bytes: int) -> tuple[int, int, int, int, int]:
    """Return the addresses behind the queries, which are the first: of the sums and the states of the rows, of the
    softmax weights of a few rows, and of a block of keys and of values, all float32.
    """
    sums = scratch + MAX_TILE_ROWS * row_bytes
    states = sums + MAX_TILE_ROWS * row_bytes
    weights = states + MAX_TILE_ROWS * 4 * STATE_FLOATS
    wide_keys = weights + _MOST_ROWS * (_SCORES_BYTES + 4 * LANES)
    return sums, states, weights, wide_keys, wide_keys + KEYS * row_bytes


@inlined
def _row_bytes(size: int) -> int:
    return (size + LANES - 1) // LANES * LANES * 4


def _blocks_adder(rows: int) -> Any:
    multiply_scores, add_weighted_values = scores_tile(rows), weighted_values_tile(rows)

    @strict_math
    def add_blocks(scratch: Any, first: int, cache: Any, sizes: Any, span: Any) -> None:
        """Add up to BLOCKS_AT_ONCE blocks of keys and values to adjacent rows of a tile, `first` of them the first.

        `scratch`: addresses of the queries, sums, states and softmax weights. `cache`: addresses of keys and values,
        block table, bytes from block to block. `span`: the first block, their end, the window, 0 for none, the keys of
        the sequence, and the bias of `attend_to_keys`.
        """
        queries, sums, states, weights = scratch
        keys, values, blocks, block_bytes = cache
        start, end, window, length, bias = span
        size, row_bytes = sizes
        own_states = states + 4 * STATE_FLOATS * first
        last_key = min(pointer_to_integers(own_states + 4 * STATE_FLOATS * (rows - 1))[KEY_END], length)
        end = min(end, (last_key + KEYS - 1) // KEYS)
        if end <= start or (window and pointer_to_integers(own_states)[KEY_END] - window >= end * KEYS):
            return
        block_table = pointer_to_integers(blocks)
        for index in range(start, end):
            own_keys, own_scores = keys + block_table[index] * block_bytes, weights + 4 * KEYS * (index - start)
            count = min(KEYS, last_key - index * KEYS)
            multiply_scores(queries + first * row_bytes, own_keys, own_scores, size, row_bytes, count)
        factors = weights + _MOST_ROWS * _SCORES_BYTES
        for row in range(rows):
            state = own_states + 4 * STATE_FLOATS * row
            last = pointer_to_integers(state)[KEY_END] - start * KEYS
            begin = last - window if window else 0
            own_scores = weights + _SCORES_BYTES * row
            visible_end = min(last, last_key - start * KEYS)
            if bias:
                added = min(visible_end, (end - start) * KEYS)
                _add_bias(own_scores, bias + 4 * (start * KEYS - first - row), added)
            pointer_to_floats(factors)[row] = softmax_row(own_scores, state, begin, visible_end, end - start)
        for index in range(start, end):
            own_values, own_weights = values + block_table[index] * block_bytes, weights + 4 * KEYS * (index - start)
            count = min(KEYS, last_key - index * KEYS)
            add_weighted_values(own_weights, own_values, sums + first * row_bytes, factors, count, row_bytes)
            # The sums are rescaled with the first block alone.
            for row in range(rows):
                pointer_to_floats(factors)[row] = 1

    return add_blocks


_add_blocks4, _add_blocks2, _add_blocks1 = (_blocks_adder(rows) for rows in (4, 2, 1))
_HAS_EIGHT = _MOST_ROWS == _EIGHT
_add_blocks8 = _blocks_adder(_EIGHT) if _HAS_EIGHT else _add_blocks4


@strict_math
def attend_by_vectors(queries: int, out: int, scratch: int, tile: Any, sizes: Any, cache: Any, scale: Any) -> None:
    """Compute softmax(scale · Q·K) · V for some heads of adjacent tokens of a decoder's sequence: a token sees itself
    and those before it.

    `tile`: tokens, heads, position of the first token, window (0 for none). The others as in `attend_to_keys`.
    """
    tokens, heads, position, window = tile
    visible = (position + 1, 1, window, position + tokens)
    attend_to_keys(queries, out, scratch, (tokens, heads, visible, 0), sizes, cache, scale)


@strict_math
def attend_to_keys(queries: int, out: int, scratch: int, tile: Any, sizes: Any, cache: Any, scale: Any) -> None:
    """Compute softmax(scale · Q·K + bias) · V for some heads of adjacent tokens of a sequence.

    `queries`, `out`: addresses of the first head of the first token, float32. `scratch`: of `scratch_bytes`. `tile`:
    tokens, heads, and what is visible: position behind the last key that the first token sees, what each further token
    adds to it (0 or 1), how many keys before that position a token sees (0: all), keys of the sequence; then the bias,
    0 without: of one head, the address of the first token's float32 for key 0, from which that of the next token for
    key 0 is one element lower. `sizes`: of a head, bytes from token to token of the queries, and of `out`. `cache`:
    addresses of the keys, [head size, KEYS], and of the values of the head in block 0, of the block table (int64),
    bytes from block to block, dtype.
    """
    tokens, heads, (key_end, step, window, length), bias = tile
    size, query_bytes, out_bytes = sizes
    keys, values, blocks, block_bytes, dtype = cache
    rows, row_bytes = tokens * heads, _row_bytes(size)
    sums, states, weights, wide_keys, wide_values = _scratch_layout(scratch, row_bytes)
    _copy_queries(queries, scratch, (tokens, heads, query_bytes), (size, row_bytes), scale)
    begin_rows(sums, states, (tokens, heads, key_end, step), row_bytes)
    own_scratch = (scratch, sums, states, weights)
    oldest = max(0, key_end - window) if window else 0
    end = min(length, key_end + step * (tokens - 1))
    block_table = pointer_to_integers(blocks)
    value_bytes = size * (4 if dtype == FLOAT32 else 2)
    # Copied: elements of another dtype, and heads that do not fill whole vectors.
    copies_keys, copies_values = dtype != FLOAT32, dtype != FLOAT32 or 4 * size != row_bytes
    at_once = 1 if copies_values else BLOCKS_AT_ONCE
    first, last = oldest // KEYS, (end + KEYS - 1) // KEYS
    while first < last:
        next_first = min(last, (first // at_once + 1) * at_once)
        for index in range(first, next_first):
            offset = block_table[index] * block_bytes
            fetch_lines(values + offset, min(KEYS, end - index * KEYS) * value_bytes)
        if next_first < last:
            fetch_lines(keys + block_table[next_first] * block_bytes, KEYS * value_bytes)
        own_keys, own_values, own_bytes = keys, values, block_bytes
        if copies_values:
            offset = block_table[first] * block_bytes
            _widen(values + offset, wide_values, min(KEYS, end - first * KEYS), size, row_bytes, dtype)
            if copies_keys:
                _widen(keys + offset, wide_keys, size, KEYS, 4 * KEYS, dtype)
            own_keys, own_values, own_bytes = wide_keys if copies_keys else keys + offset, wide_values, 0
        own_cache = (own_keys, own_values, blocks, own_bytes)
        span = (first, next_first, window, length, bias)
        done = 0
        while _HAS_EIGHT and rows - done >= _EIGHT:
            _add_blocks8(own_scratch, done, own_cache, (size, row_bytes), span)
            done += _EIGHT
        while rows - done >= 4:
            _add_blocks4(own_scratch, done, own_cache, (size, row_bytes), span)
            done += 4
        if rows - done >= 2:
            _add_blocks2(own_scratch, done, own_cache, (size, row_bytes), span)
            done += 2
        if rows - done == 1:
            _add_blocks1(own_scratch, done, own_cache, (size, row_bytes), span)
        first = next_first
    finish_rows(out, (tokens, heads, out_bytes), (size, row_bytes), (sums, states))


@strict_math
def _add_bias(scores: int, bias: int, count: int) -> None:
    own, added = pointer_to_floats(scores), pointer_to_floats(bias)
    for key in range(count):
        own[key] += added[key]


@strict_math
def _copy_queries(queries: int, target: int, tile: Any, sizes: Any, scale: Any) -> None:
    """Copy the queries times the scale, padded with zeros to whole vectors."""
    tokens, heads, query_bytes = tile
    size, row_bytes = sizes
    for row in range(tokens * heads):
        given = pointer_to_floats(queries + row // heads * query_bytes + row % heads * 4 * size)
        copied = pointer_to_floats(target + row * row_bytes)
        for column in range(size):
            copied[column] = given[column] * scale
        for column in range(size, row_bytes // 4):
            copied[column] = 0


@strict_math
def begin_rows(all_sums: int, states: int, tile: Any, row_bytes: int) -> None:
    """Zero the float32 sums, and set the states of the rows. `tile`: tokens, heads, position behind the last key of the
    first token, and what each further token adds to it.
    """
    tokens, heads, key_end, step = tile
    for row in range(tokens * heads):
        sums, state = pointer_to_floats(all_sums + row * row_bytes), pointer_to_floats(states + 4 * STATE_FLOATS * row)
        for column in range(row_bytes // 4):
            sums[column] = 0
        state[0] = LOWEST_SCORE
        pointer_to_integers(states + 4 * STATE_FLOATS * row)[KEY_END] = key_end + step * (row // heads)
        for lane in range(LANES):
            state[LANES + lane] = 0


@strict_math
def finish_rows(out: int, tile: Any, sizes: Any, scratch: Any) -> None:
    """Write float32 outputs: the weighted values divided by the sums of the softmax weights."""
    tokens, heads, out_bytes = tile
    size, row_bytes = sizes
    all_sums, states = scratch
    for row in range(tokens * heads):
        state = pointer_to_floats(states + 4 * STATE_FLOATS * row)
        total = state[LANES]
        for lane in range(1, LANES):
            total += state[LANES + lane]
        # A division takes a CPU as long as some multiplications.
        factor = np.float32(1) / total
        sums = pointer_to_floats(all_sums + row * row_bytes)
        result = pointer_to_floats(out + row // heads * out_bytes + row % heads * 4 * size)
        for column in range(size):
            result[column] = sums[column] * factor


@strict_math
def _widen(source: int, target: int, count: int, size: int, row_bytes: int, dtype: int) -> None:
    """Copy elements of a block, [count, size], as float32, padded with zeros to whole vectors."""
    width = 4 if dtype == FLOAT32 else 2
    for index in range(count):
        given, row = source + index * size * width, target + index * row_bytes
        widen(given, row, size, dtype)
        copied = pointer_to_floats(row)
        for column in range(size, row_bytes // 4):
            copied[column] = 0
