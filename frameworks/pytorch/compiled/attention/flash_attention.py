"""Attention of a decoder's rows over the blocks of a key/value cache, for compiled code.

A tile is some adjacent tokens of a text, each with the query heads of one head of keys. It reads each block of keys and
values once, with a running maximum and sum for each row (Dao et al., FlashAttention, 2022). Sums are float32.

A row's result depends on its own keys alone: neither on the other rows of its tile, nor on the tokens that its step
computes.
"""

from typing import Any

import numpy as np

from frameworks.pytorch.compiled.attention.attention_tiles import (
    KEYS,
    LANES,
    LOWEST,
    TILE_ROWS,
    fetch_lines,
    mix_of,
    scores_of,
    shares_of_row,
)
from frameworks.pytorch.compiled.attention.cache_rows import FLOAT32, widen
from frameworks.pytorch.compiled.jit import inlined, ordered, pointer_to_floats, pointer_to_integers
from frameworks.pytorch.compiled.simd.llvm_vectors import LINE_BYTES

MAX_TILE_ROWS = 64
"""Rows of a tile, a row for each token and query head. So many stay in a core's cache with a block of keys."""
_MOST_ROWS = max(TILE_ROWS)
STATE_NUMBERS, END = 2 * LANES, 1
"""Numbers of a row's state, and the place of one, as int64: the position behind the row's last key. Before it is the
largest score, and from LANES on the sums of the exponentials.
"""


def tile_tokens(heads: int, _head_size: int, _kind: int, /) -> int:
    """Return the tokens of a tile with so many query heads, whole tiles of TILE_ROWS where there are several."""
    tokens = max(1, MAX_TILE_ROWS // heads)
    return tokens - tokens % _MOST_ROWS if tokens > _MOST_ROWS else tokens


def room_bytes(head_size: int, _kind: int, /) -> int:
    """Return the bytes that a thread needs for its work."""
    size = -(-head_size // LANES) * LANES
    numbers = 2 * MAX_TILE_ROWS * size + MAX_TILE_ROWS * STATE_NUMBERS + _MOST_ROWS * (KEYS + LANES) + 2 * KEYS * size
    return -(-4 * numbers // LINE_BYTES) * LINE_BYTES


@inlined
def _places_in(room: int, row_bytes: int) -> tuple[int, int, int, int, int]:
    """Return the addresses behind the queries, which are the first: of the sums and the states of the rows, of the
    shares of a few rows, and of a block of keys and of values, all float32.
    """
    sums = room + MAX_TILE_ROWS * row_bytes
    states = sums + MAX_TILE_ROWS * row_bytes
    shares = states + MAX_TILE_ROWS * 4 * STATE_NUMBERS
    wide_keys = shares + 4 * _MOST_ROWS * (KEYS + LANES)
    return sums, states, shares, wide_keys, wide_keys + KEYS * row_bytes


@inlined
def _row_bytes(size: int) -> int:
    return (size + LANES - 1) // LANES * LANES * 4


def _block_adder(rows: int) -> Any:
    scores_of_rows, mix_of_rows = scores_of(rows), mix_of(rows)

    @ordered
    def add_block(room: Any, first: int, keys: int, values: int, sizes: Any, seen: Any) -> None:
        """Add a block of keys and values to adjacent rows of a tile, `first` of them the first.

        `room`: addresses of the queries, sums, states and shares. `seen`: position of the first key of the block, and
        the window, 0 for none.
        """
        queries, sums, states, shares = room
        start, window = seen
        size, row_bytes = sizes
        own_states = states + 4 * STATE_NUMBERS * first
        count = min(KEYS, pointer_to_integers(own_states + 4 * STATE_NUMBERS * (rows - 1))[END] - start)
        if count <= 0 or (window and pointer_to_integers(own_states)[END] - window >= start + KEYS):
            return
        factors = shares + 4 * _MOST_ROWS * KEYS
        scores_of_rows(queries + first * row_bytes, keys, shares, size, row_bytes, count)
        for row in range(rows):
            state = own_states + 4 * STATE_NUMBERS * row
            end = pointer_to_integers(state)[END] - start
            begin = end - window if window else 0
            pointer_to_floats(factors)[row] = shares_of_row(shares + 4 * KEYS * row, state, begin, end)
        mix_of_rows(shares, values, sums + first * row_bytes, factors, count, row_bytes)

    return add_block


_add_block4, _add_block2, _add_block1 = (_block_adder(rows) for rows in TILE_ROWS)


@ordered
def attend_by_vectors(queries: int, out: int, room: int, tile: Any, sizes: Any, cache: Any, scale: Any) -> None:
    """Attend with some heads of adjacent tokens to the keys of their text.

    `queries`, `out`: addresses of the first head of the first token. `room`: of `room_bytes`. `tile`: tokens, heads,
    position of the first token, window (0 for none). `sizes`: of a head, bytes from token to token of the queries, and
    of `out`. `cache`: addresses of the keys, [size, KEYS], and of the values of the head in block 0, of the numbers of
    the text's blocks (int64), bytes from block to block, kind of the numbers.
    """
    tokens, heads, position, window = tile
    size, query_bytes, out_bytes = sizes
    keys, values, blocks, block_bytes, kind = cache
    rows, row_bytes = tokens * heads, _row_bytes(size)
    sums, states, shares, wide_keys, wide_values = _places_in(room, row_bytes)
    _copy_queries(queries, room, (tokens, heads, query_bytes), (size, row_bytes), scale)
    begin_rows(sums, states, (tokens, heads, position), row_bytes)
    own_room = (room, sums, states, shares)
    oldest = max(0, position + 1 - window) if window else 0
    end = position + tokens
    numbers = pointer_to_integers(blocks)
    value_bytes = size * (4 if kind == FLOAT32 else 2)
    for index in range(oldest // KEYS, (end + KEYS - 1) // KEYS):
        offset = numbers[index] * block_bytes
        own_keys, own_values = keys + offset, values + offset
        count = min(KEYS, end - index * KEYS)
        fetch_lines(own_values, count * value_bytes)
        if count < end - index * KEYS:
            fetch_lines(keys + numbers[index + 1] * block_bytes, KEYS * value_bytes)
        # Other numbers are copied: of another type, or not in whole vectors.
        if kind != FLOAT32:
            _widen(own_keys, wide_keys, size, KEYS, 4 * KEYS, kind)
            own_keys = wide_keys
        if kind != FLOAT32 or 4 * size != row_bytes:
            _widen(own_values, wide_values, count, size, row_bytes, kind)
            own_values = wide_values
        seen = (index * KEYS, window)
        done = 0
        while rows - done >= 4:
            _add_block4(own_room, done, own_keys, own_values, (size, row_bytes), seen)
            done += 4
        if rows - done >= 2:
            _add_block2(own_room, done, own_keys, own_values, (size, row_bytes), seen)
            done += 2
        if rows - done == 1:
            _add_block1(own_room, done, own_keys, own_values, (size, row_bytes), seen)
    finish_rows(out, (tokens, heads, out_bytes), (size, row_bytes), (sums, states))


@ordered
def _copy_queries(queries: int, target: int, tile: Any, sizes: Any, scale: Any) -> None:
    """Copy the queries times the scale, with zeros up to whole vectors."""
    tokens, heads, query_bytes = tile
    size, row_bytes = sizes
    for row in range(tokens * heads):
        given = pointer_to_floats(queries + row // heads * query_bytes + row % heads * 4 * size)
        copied = pointer_to_floats(target + row * row_bytes)
        for place in range(size):
            copied[place] = given[place] * scale
        for place in range(size, row_bytes // 4):
            copied[place] = 0


@ordered
def begin_rows(all_sums: int, states: int, tile: Any, row_bytes: int) -> None:
    """Begin the sums and the states of the rows. `tile`: tokens, heads, position of the first token."""
    tokens, heads, position = tile
    for row in range(tokens * heads):
        sums, state = pointer_to_floats(all_sums + row * row_bytes), pointer_to_floats(states + 4 * STATE_NUMBERS * row)
        for place in range(row_bytes // 4):
            sums[place] = 0
        state[0] = LOWEST
        pointer_to_integers(states + 4 * STATE_NUMBERS * row)[END] = position + row // heads + 1
        for lane in range(LANES):
            state[LANES + lane] = 0


@ordered
def finish_rows(out: int, tile: Any, sizes: Any, room: Any) -> None:
    """Write the sums divided by those of the shares."""
    tokens, heads, out_bytes = tile
    size, row_bytes = sizes
    all_sums, states = room
    for row in range(tokens * heads):
        state = pointer_to_floats(states + 4 * STATE_NUMBERS * row)
        total = state[LANES]
        for lane in range(1, LANES):
            total += state[LANES + lane]
        # A division takes a CPU as long as some multiplications.
        factor = np.float32(1) / total
        sums = pointer_to_floats(all_sums + row * row_bytes)
        result = pointer_to_floats(out + row // heads * out_bytes + row % heads * 4 * size)
        for place in range(size):
            result[place] = sums[place] * factor


@ordered
def _widen(source: int, target: int, count: int, size: int, row_bytes: int, kind: int) -> None:
    """Copy rows of a block, [count, size], as float32, with zeros up to whole vectors."""
    width = 4 if kind == FLOAT32 else 2
    for index in range(count):
        given, row = source + index * size * width, target + index * row_bytes
        widen(given, row, size, kind)
        copied = pointer_to_floats(row)
        for place in range(size, row_bytes // 4):
            copied[place] = 0
