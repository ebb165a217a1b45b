"""The heads of a step's rows before attention: rotation, and the keys and values of the cache."""

from typing import Any

from frameworks.pytorch.compiled.amx.amx_registers import INPUTS
from frameworks.pytorch.compiled.attention.attention_tiles import KEYS
from frameworks.pytorch.compiled.attention.cache_rows import FLOAT32, ROWS_AT_ONCE, copy, narrow, scatter, scatter_rows
from frameworks.pytorch.compiled.decoder_step.blocked_states import PART_BYTES, copy_parts
from frameworks.pytorch.compiled.decoder_step.norm_rope import normalize, rotate
from frameworks.pytorch.compiled.decoder_step.step_arguments import (
    BLOCK_BYTES,
    BLOCKS,
    CACHE,
    CACHE_BLOCK_BYTES,
    CACHE_HALF_BYTES,
    CACHE_KIND,
    CACHE_LAYER_BYTES,
    COSINES,
    FIRST_BLOCKS,
    HEAD_SIZE,
    HEADS,
    KEY_HEADS,
    KEY_NORM,
    NUM_COLUMNS,
    NUMBERS,
    POSITIONS,
    QUERY_HEADS,
    QUERY_NORM,
    ROOM,
    ROOM_BYTES,
    ROWS,
    SEEN,
    SINES,
    TABLE,
)
from frameworks.pytorch.compiled.jit import compiled, pointer_to_floats, pointer_to_integers


@compiled
def write_heads(arguments: Any, layer: int, number: int, threads: int) -> None:
    """Rotate this thread's share of the queries and keys, and write keys and values to the cache."""
    rows, query_heads, key_heads = arguments[ROWS], arguments[QUERY_HEADS], arguments[KEY_HEADS]
    heads = query_heads + 2 * key_heads
    first, end = rows * heads * number // threads, rows * heads * (number + 1) // threads
    # The rows of a head follow each other: in blocks they are read one behind the other.
    for head in range(first // rows, (end + rows - 1) // rows):
        row, end_row = max(first - head * rows, 0), min(end - head * rows, rows)
        if head < query_heads:
            for each in range(row, end_row):
                place = arguments[SEEN] + 4 * arguments[HEAD_SIZE] * (each * query_heads + head)
                _rotate_head(arguments, layer, _head(arguments, each, head, place), each, QUERY_NORM)
        elif head < query_heads + key_heads:
            _write_keys(arguments, layer, (row, end_row), head, number)
        else:
            _write_values(arguments, layer, (row, end_row), head, number)


@compiled
def _head(arguments: Any, row: int, head: int, place: int) -> int:
    """Return the address of a head of a row in one piece. In blocks it is not: it is copied to `place`."""
    size, block_bytes = arguments[HEAD_SIZE], arguments[BLOCK_BYTES]
    if not block_bytes:
        return int(arguments[HEADS] + 4 * size * (row * (arguments[QUERY_HEADS] + 2 * arguments[KEY_HEADS]) + head))
    parts = size // INPUTS
    given = arguments[HEADS] + head * parts * block_bytes + row * PART_BYTES
    copy_parts(given, block_bytes, place, PART_BYTES, parts)
    return place


@compiled
def _rotate_head(arguments: Any, layer: int, own: int, row: int, norm: int) -> None:
    """Normalize a head of a row in place, if the layer has weights for that, and rotate it."""
    weight = pointer_to_integers(arguments[TABLE] + 8 * NUM_COLUMNS * layer)[norm]
    size = arguments[HEAD_SIZE]
    if weight:
        normalize(own, own, weight, size, pointer_to_floats(arguments[NUMBERS])[0])
    angles = 4 * row * (size // 2)
    rotate(own, arguments[COSINES] + angles, arguments[SINES] + angles, size)


@compiled
def _write_keys(arguments: Any, layer: int, rows: Any, head: int, number: int) -> None:
    """Write a head of adjacent rows to the cache: as [size, KEYS], several rows at once where they lie in a block."""
    row, end = rows
    size, kind = arguments[HEAD_SIZE], arguments[CACHE_KIND]
    room = arguments[ROOM] + number * arguments[ROOM_BYTES]
    rounded, width = room + 4 * size, 4 if kind == FLOAT32 else 2
    positions, first_blocks = pointer_to_integers(arguments[POSITIONS]), pointer_to_integers(arguments[FIRST_BLOCKS])
    while row < end:
        last, position = row + ROWS_AT_ONCE - 1, positions[row]
        place = _cached(arguments, layer, row, head - arguments[QUERY_HEADS]) + position % KEYS * width
        are_adjacent = (
            last < end and positions[last] == position + ROWS_AT_ONCE - 1 and first_blocks[last] == first_blocks[row]
        )
        if kind == FLOAT32 or position % ROWS_AT_ONCE or not are_adjacent:
            own = _head(arguments, row, head, room)
            _rotate_head(arguments, layer, own, row, KEY_NORM)
            scatter(own, place, size, KEYS, kind)
            row += 1
            continue
        for index in range(ROWS_AT_ONCE):
            own = _head(arguments, row + index, head, room)
            _rotate_head(arguments, layer, own, row + index, KEY_NORM)
            narrow(own, rounded + 2 * size * index, size, kind)
        scatter_rows(rounded, place, size, KEYS)
        row += ROWS_AT_ONCE


@compiled
def _write_values(arguments: Any, layer: int, rows: Any, head: int, number: int) -> None:
    """Write a head of adjacent rows to the cache, as [KEYS, size]."""
    size, kind = arguments[HEAD_SIZE], arguments[CACHE_KIND]
    room = arguments[ROOM] + number * arguments[ROOM_BYTES]
    positions = pointer_to_integers(arguments[POSITIONS])
    for row in range(rows[0], rows[1]):
        own = _head(arguments, row, head, room)
        place = _cached(arguments, layer, row, head - arguments[QUERY_HEADS] - arguments[KEY_HEADS])
        place += arguments[CACHE_HALF_BYTES]
        if kind == FLOAT32:
            copy(own, place + positions[row] % KEYS * 4 * size, size)
        else:
            narrow(own, place + positions[row] % KEYS * 2 * size, size, kind)


@compiled
def _cached(arguments: Any, layer: int, row: int, key_head: int) -> int:
    """Return the address of the keys of a row's block, of one head."""
    first_block = pointer_to_integers(arguments[FIRST_BLOCKS])[row]
    index = first_block + pointer_to_integers(arguments[POSITIONS])[row] // KEYS
    block = pointer_to_integers(arguments[BLOCKS])[index]
    head_bytes = KEYS * arguments[HEAD_SIZE] * (4 if arguments[CACHE_KIND] == FLOAT32 else 2)
    place = arguments[CACHE] + layer * arguments[CACHE_LAYER_BYTES] + block * arguments[CACHE_BLOCK_BYTES]
    return int(place + key_head * head_bytes)
