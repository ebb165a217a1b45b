"""The heads of a step before attention: RoPE of queries and keys, and writes of keys and values to the KV cache."""

from typing import Any

from frameworks.pytorch.compiled.amx.amx_registers import INPUTS
from frameworks.pytorch.compiled.attention.attention_tiles import KEYS
from frameworks.pytorch.compiled.attention.cache_rows import FLOAT32, ROWS_AT_ONCE, copy, narrow, scatter, scatter_rows
from frameworks.pytorch.compiled.decoder_step.blocked_states import PIECE_BYTES, copy_pieces
from frameworks.pytorch.compiled.decoder_step.norm_rope import apply_rope, rms_norm
from frameworks.pytorch.compiled.decoder_step.step_arguments import (
    ATTENDED,
    BLOCK_BYTES,
    BLOCKS,
    CACHE,
    CACHE_BLOCK_BYTES,
    CACHE_DTYPE,
    CACHE_HALF_BYTES,
    CACHE_LAYER_BYTES,
    CONSTANTS,
    COSINES,
    FIRST_BLOCKS,
    HEAD_SIZE,
    HEADS,
    KEY_HEADS,
    KEY_NORM,
    NUM_COLUMNS,
    POSITIONS,
    QUERY_HEADS,
    QUERY_NORM,
    ROWS,
    SCRATCH,
    SCRATCH_BYTES,
    SINES,
    TABLE,
)
from frameworks.pytorch.compiled.jit import compiled, pointer_to_floats, pointer_to_integers


@compiled
def write_heads(arguments: Any, layer: int, thread: int, threads: int) -> None:
    """Apply RoPE to this thread's share of the queries and keys, float32 [rows, heads, head size], and write keys and
    values to the KV cache in its dtype.
    """
    rows, query_heads, key_heads = arguments[ROWS], arguments[QUERY_HEADS], arguments[KEY_HEADS]
    heads = query_heads + 2 * key_heads
    first, end = rows * heads * thread // threads, rows * heads * (thread + 1) // threads
    # The rows of a head follow each other: in blocks they are read one behind the other.
    for head in range(first // rows, (end + rows - 1) // rows):
        row, end_row = max(first - head * rows, 0), min(end - head * rows, rows)
        if head < query_heads:
            for each in range(row, end_row):
                address = arguments[ATTENDED] + 4 * arguments[HEAD_SIZE] * (each * query_heads + head)
                _norm_and_rope_head(arguments, layer, _head(arguments, each, head, address), each, QUERY_NORM)
        elif head < query_heads + key_heads:
            _write_keys(arguments, layer, (row, end_row), head, thread)
        else:
            _write_values(arguments, layer, (row, end_row), head, thread)


@compiled
def _head(arguments: Any, row: int, head: int, address: int) -> int:
    """Return the address of a head of a row, float32 [head size]. In blocks it is not contiguous: it is copied to
    `address`.
    """
    size, block_bytes = arguments[HEAD_SIZE], arguments[BLOCK_BYTES]
    if not block_bytes:
        return int(arguments[HEADS] + 4 * size * (row * (arguments[QUERY_HEADS] + 2 * arguments[KEY_HEADS]) + head))
    parts = size // INPUTS
    given = arguments[HEADS] + head * parts * block_bytes + row * PIECE_BYTES
    copy_pieces(given, block_bytes, address, PIECE_BYTES, parts)
    return address


@compiled
def _norm_and_rope_head(arguments: Any, layer: int, own: int, row: int, norm: int) -> None:
    """Apply RMSNorm to a head in place, if the layer has weights for that, and RoPE."""
    weight = pointer_to_integers(arguments[TABLE] + 8 * NUM_COLUMNS * layer)[norm]
    size = arguments[HEAD_SIZE]
    if weight:
        rms_norm(own, own, weight, size, pointer_to_floats(arguments[CONSTANTS])[0])
    angles = 4 * row * (size // 2)
    apply_rope(own, arguments[COSINES] + angles, arguments[SINES] + angles, size)


@compiled
def _write_keys(arguments: Any, layer: int, rows: Any, head: int, thread: int) -> None:
    """Write a head of adjacent tokens to the KV cache: as [head size, KEYS], several tokens at once where they lie in a
    block.
    """
    row, end = rows
    size, dtype = arguments[HEAD_SIZE], arguments[CACHE_DTYPE]
    scratch = arguments[SCRATCH] + thread * arguments[SCRATCH_BYTES]
    rounded, width = scratch + 4 * size, 4 if dtype == FLOAT32 else 2
    positions, first_blocks = pointer_to_integers(arguments[POSITIONS]), pointer_to_integers(arguments[FIRST_BLOCKS])
    while row < end:
        last, position = row + ROWS_AT_ONCE - 1, positions[row]
        address = _cached(arguments, layer, row, head - arguments[QUERY_HEADS]) + position % KEYS * width
        are_adjacent = (
            last < end and positions[last] == position + ROWS_AT_ONCE - 1 and first_blocks[last] == first_blocks[row]
        )
        if dtype == FLOAT32 or position % ROWS_AT_ONCE or not are_adjacent:
            own = _head(arguments, row, head, scratch)
            _norm_and_rope_head(arguments, layer, own, row, KEY_NORM)
            scatter(own, address, size, KEYS, dtype)
            row += 1
            continue
        for index in range(ROWS_AT_ONCE):
            own = _head(arguments, row + index, head, scratch)
            _norm_and_rope_head(arguments, layer, own, row + index, KEY_NORM)
            narrow(own, rounded + 2 * size * index, size, dtype)
        scatter_rows(rounded, address, size, KEYS)
        row += ROWS_AT_ONCE


@compiled
def _write_values(arguments: Any, layer: int, rows: Any, head: int, thread: int) -> None:
    """Write a head of adjacent tokens to the KV cache, as [KEYS, head size]."""
    size, dtype = arguments[HEAD_SIZE], arguments[CACHE_DTYPE]
    scratch = arguments[SCRATCH] + thread * arguments[SCRATCH_BYTES]
    positions = pointer_to_integers(arguments[POSITIONS])
    for row in range(rows[0], rows[1]):
        own = _head(arguments, row, head, scratch)
        address = _cached(arguments, layer, row, head - arguments[QUERY_HEADS] - arguments[KEY_HEADS])
        address += arguments[CACHE_HALF_BYTES]
        if dtype == FLOAT32:
            copy(own, address + positions[row] % KEYS * 4 * size, size)
        else:
            narrow(own, address + positions[row] % KEYS * 2 * size, size, dtype)


@compiled
def _cached(arguments: Any, layer: int, row: int, key_head: int) -> int:
    """Return the address of the keys of a token's block, of one head."""
    first_block = pointer_to_integers(arguments[FIRST_BLOCKS])[row]
    index = first_block + pointer_to_integers(arguments[POSITIONS])[row] // KEYS
    block = pointer_to_integers(arguments[BLOCKS])[index]
    head_bytes = KEYS * arguments[HEAD_SIZE] * (4 if arguments[CACHE_DTYPE] == FLOAT32 else 2)
    address = arguments[CACHE] + layer * arguments[CACHE_LAYER_BYTES] + block * arguments[CACHE_BLOCK_BYTES]
    return int(address + key_head * head_bytes)
