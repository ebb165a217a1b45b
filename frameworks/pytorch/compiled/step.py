"""A whole step of a Llama decoder in one call: no Python and no operator of torch between its products.

All threads run the step together. A barrier ends each part of it.
"""

from typing import Any

from frameworks.pytorch.compiled.attention_tiles import KEYS
from frameworks.pytorch.compiled.jit import (
    address_of,
    call_with,
    compiled,
    pointer_to_floats,
    pointer_to_integers,
)
from frameworks.pytorch.compiled.matrix_tiles import order_row
from frameworks.pytorch.compiled.parallel import NUM_RESERVED, barrier, num_threads, thread_number
from frameworks.pytorch.compiled.products import TILES as PRODUCT_TILES
from frameworks.pytorch.compiled.products import X
from frameworks.pytorch.compiled.rows import FLOAT32, copy, narrow, normalize, rotate, scatter
from frameworks.pytorch.compiled.step_table import (
    ADAPTING,
    DOWN,
    FEED_FORWARD,
    GATE,
    OUTPUT,
    PRODUCT_COLUMNS,
    PRODUCTS_OF_LAYER,
    QUERY_KEY_VALUE,
    REGION,
    TAKES_ORDERED,
    UP,
)
from frameworks.pytorch.compiled.vectors import has_matrix_tiles

if has_matrix_tiles():
    from frameworks.pytorch.compiled.matrix_attention import MAX_TILE_ROWS, attend, tile_tokens
    from frameworks.pytorch.compiled.matrix_attention import room_bytes as attention_bytes
else:
    from frameworks.pytorch.compiled.attention import MAX_TILE_ROWS, tile_tokens
    from frameworks.pytorch.compiled.attention import attend_by_vectors as attend
    from frameworks.pytorch.compiled.attention import room_bytes as attention_bytes
__all__ = ["ADDRESS", "room_bytes", "tile_tokens"]

(
    ROWS, LOGITS, LAYERS, HIDDEN, QUERY_HEADS, KEY_HEADS, HEAD_SIZE, TILE_HEADS, ROOM_BYTES,
    TABLE, PRODUCTS, NUMBERS, EMBEDDING, FINAL_NORM,
    CACHE_KIND, CACHE, CACHE_LAYER_BYTES, CACHE_HALF_BYTES, CACHE_BLOCK_BYTES,
    TOKEN_IDS, POSITIONS, FIRST_BLOCKS, BLOCKS, LOGIT_ROWS, COSINES, SINES,
    TILES, NUM_TILES, LAST_TILES, NUM_LAST_TILES,
    STATES, NORMED, HEADS, SEEN, ROOM, NUM_STEP_ARGUMENTS,
) = range(NUM_RESERVED, NUM_RESERVED + 36)  # fmt: skip
"""Arguments of the step's region. Sizes, then addresses; a thread attends with `TILE_HEADS` query heads of a tile:

- `TABLE`: int64 [layers, columns], the layers. `PRODUCTS`: int64 [5 * layers + 1, PRODUCT_COLUMNS], the products'
  arguments, and behind them what step_table.py describes. `NUMBERS`: float32, epsilon and the scale.
- `EMBEDDING`, `FINAL_NORM`: weights; embedding 0 if `STATES` holds the rows already. `CACHE`: the first key.
  `CACHE_KIND`: of the cache's numbers.
- Of the step, int64: `TOKEN_IDS`, `POSITIONS` and `FIRST_BLOCKS` [rows], where the blocks of the row's sequence begin
  in `BLOCKS`, `LOGIT_ROWS` [logits], ascending. float32: `COSINES` and `SINES` [rows, head size / 2].
- `TILES`: int64 [tiles, 2], first row and tokens of each. `LAST_TILES`: those of the last layer, where rows without
  logits do not attend.
- For the work, float32: `STATES` and `NORMED` [rows, hidden], `HEADS` [rows, query and key and value heads, head size],
  `SEEN` [rows, query heads, head size], `ROOM` for attention, `ROOM_BYTES` for each thread.
"""
INPUT_NORM, QUERY_NORM, KEY_NORM, MIDDLE_NORM, WINDOW, NUM_COLUMNS = range(6)
"""Columns of the table: addresses of weights, 0 where there are none, and the tokens that a query sees, 0 for all."""


def room_bytes(head_size: int, kind: int) -> int:
    """Return the bytes that a thread needs for its work: for attention, and behind that for what a tile has seen."""
    return attention_bytes(head_size, kind) + 4 * head_size * MAX_TILE_ROWS


@compiled
def _multiply(arguments: Any, layer: int, index: int) -> None:
    own = arguments[PRODUCTS] + 8 * PRODUCT_COLUMNS * (layer * PRODUCTS_OF_LAYER + index)
    product = pointer_to_integers(own)
    if product[ADAPTING]:
        call_with(product[ADAPTING], own)
    call_with(product[REGION], own)
    barrier(arguments)


@compiled
def _feed_forward(arguments: Any, layer: int) -> None:
    own = arguments[PRODUCTS] + 8 * PRODUCT_COLUMNS * (layer * PRODUCTS_OF_LAYER + GATE)
    gate = pointer_to_integers(own)
    if _is_together(gate):
        call_with(gate[FEED_FORWARD], own)
        barrier(arguments)
        return
    _multiply(arguments, layer, GATE)
    _multiply(arguments, layer, UP)
    _multiply(arguments, layer, DOWN)


@compiled
def _normalize_rows(arguments: Any, layer: int, index: int, weight: int, rows: int, number: int, threads: int) -> None:
    """Normalize the states for a product."""
    own = pointer_to_integers(arguments[PRODUCTS] + 8 * PRODUCT_COLUMNS * (layer * PRODUCTS_OF_LAYER + index))
    size, normed = arguments[HIDDEN], arguments[NORMED]
    epsilon = pointer_to_floats(arguments[NUMBERS])[0]
    in_order = own[TAKES_ORDERED] and not (own[ADAPTING] or (index == GATE and not _is_together(own)))
    for row in range(number, rows, threads):
        source = arguments[STATES] + 4 * row * size
        if in_order:
            place = normed + 4 * number * size
            normalize(source, place, weight, size, epsilon)
            order_row(place, own[PRODUCT_TILES], row, (size, 0, size))
        else:
            normalize(source, normed + 4 * row * size, weight, size, epsilon)
    # All threads write the same.
    own[X] = 0 if in_order else normed
    barrier(arguments)


@compiled
def _is_together(gate: Any) -> bool:
    """Whether the products from `GATE` on are computed together. `gate`: its row of the table."""
    return bool(gate[FEED_FORWARD] and not (gate[ADAPTING] or gate[(DOWN - GATE) * PRODUCT_COLUMNS + ADAPTING]))


@compiled
def _write_heads(arguments: Any, layer: int, number: int, threads: int) -> None:
    """Rotate queries and keys, and write keys and values to the cache."""
    table = pointer_to_integers(arguments[TABLE] + 8 * NUM_COLUMNS * layer)
    query_heads, key_heads, size = arguments[QUERY_HEADS], arguments[KEY_HEADS], arguments[HEAD_SIZE]
    positions, first_blocks = pointer_to_integers(arguments[POSITIONS]), pointer_to_integers(arguments[FIRST_BLOCKS])
    blocks = pointer_to_integers(arguments[BLOCKS])
    epsilon = pointer_to_floats(arguments[NUMBERS])[0]
    head_bytes, kind = 4 * size, arguments[CACHE_KIND]
    cached_bytes = head_bytes if kind == FLOAT32 else 2 * size
    heads = query_heads + 2 * key_heads
    keys = arguments[CACHE] + layer * arguments[CACHE_LAYER_BYTES]
    for task in range(number, arguments[ROWS] * heads, threads):
        row, head = task // heads, task % heads
        own = arguments[HEADS] + task * head_bytes
        place, index = 0, head - query_heads
        if index >= 0:
            block = blocks[first_blocks[row] + positions[row] // KEYS]
            place = keys + block * arguments[CACHE_BLOCK_BYTES] + index % key_heads * KEYS * cached_bytes
        if index >= key_heads:
            place += arguments[CACHE_HALF_BYTES] + positions[row] % KEYS * cached_bytes
            _write_value(own, place, size, kind)
            continue
        weight = table[QUERY_NORM] if head < query_heads else table[KEY_NORM]
        if weight:
            normalize(own, own, weight, size, epsilon)
        angles = 4 * row * (size // 2)
        rotate(own, arguments[COSINES] + angles, arguments[SINES] + angles, size)
        if index >= 0:
            scatter(own, place + positions[row] % KEYS * (cached_bytes // size), size, KEYS, kind)
    barrier(arguments)


@compiled
def _write_value(source: int, target: int, size: int, kind: int) -> None:
    if kind == FLOAT32:
        copy(source, target, size)
    else:
        narrow(source, target, size, kind)


@compiled
def _attend_tiles(arguments: Any, layer: int, number: int, threads: int) -> None:
    is_last = layer == arguments[LAYERS] - 1
    tiles = pointer_to_integers(arguments[LAST_TILES] if is_last else arguments[TILES])
    num_tiles = arguments[NUM_LAST_TILES] if is_last else arguments[NUM_TILES]
    query_heads, key_heads, size = arguments[QUERY_HEADS], arguments[KEY_HEADS], arguments[HEAD_SIZE]
    window = pointer_to_integers(arguments[TABLE] + 8 * NUM_COLUMNS * layer)[WINDOW]
    positions, first_blocks = pointer_to_integers(arguments[POSITIONS]), pointer_to_integers(arguments[FIRST_BLOCKS])
    scale = pointer_to_floats(arguments[NUMBERS])[1]
    keys = arguments[CACHE] + layer * arguments[CACHE_LAYER_BYTES]
    room = arguments[ROOM] + number * arguments[ROOM_BYTES]
    head_bytes, kind = 4 * size, arguments[CACHE_KIND]
    cached_bytes = head_bytes if kind == FLOAT32 else 2 * size
    query_bytes, out_bytes = (query_heads + 2 * key_heads) * head_bytes, query_heads * head_bytes
    group, at_once = query_heads // key_heads, arguments[TILE_HEADS]
    shares = (group + at_once - 1) // at_once
    tasks = key_heads * shares
    product = pointer_to_integers(arguments[PRODUCTS] + 8 * PRODUCT_COLUMNS * (layer * PRODUCTS_OF_LAYER + OUTPUT))
    # Behind the last layer's attention, rows are selected first.
    in_order = product[TAKES_ORDERED] and not (product[ADAPTING] or is_last)
    seen = room + arguments[ROOM_BYTES] - head_bytes * MAX_TILE_ROWS
    for task in range(number, num_tiles * tasks, threads):
        tile, key_head = task // tasks, task % tasks // shares
        row, tokens = tiles[2 * tile], tiles[2 * tile + 1]
        first = task % shares * at_once
        head = key_head * group + first
        place = keys + key_head * KEYS * cached_bytes
        blocks = arguments[BLOCKS] + 8 * first_blocks[row]
        heads = min(at_once, group - first)
        attend(
            arguments[HEADS] + row * query_bytes + head * head_bytes,
            seen if in_order else arguments[SEEN] + row * out_bytes + head * head_bytes,
            room,
            (tokens, heads, positions[row], window),
            (size, query_bytes, heads * head_bytes if in_order else out_bytes),
            (place, place + arguments[CACHE_HALF_BYTES], blocks, arguments[CACHE_BLOCK_BYTES], kind),
            scale,
        )
        if in_order:
            for token in range(tokens):
                source, column = seen + token * heads * head_bytes, head * size
                order_row(source, product[PRODUCT_TILES], row + token, (query_heads * size, column, heads * size))
    # All threads write the same.
    product[X] = 0 if in_order else arguments[SEEN]
    barrier(arguments)


@compiled
def _select_rows(arguments: Any, number: int, threads: int) -> None:
    """Move the rows with logits to the front: no other row of the last layer is needed after its attention."""
    rows, hidden = pointer_to_integers(arguments[LOGIT_ROWS]), arguments[HIDDEN]
    _move(arguments[STATES], rows, (arguments[LOGITS], hidden), (number, threads))
    _move(arguments[SEEN], rows, (arguments[LOGITS], arguments[QUERY_HEADS] * arguments[HEAD_SIZE]), (number, threads))
    barrier(arguments)


@compiled
def _move(states: int, rows: Any, sizes: Any, share: Any) -> None:
    """Move this thread's share of the columns. A row moves towards the front, past rows that have moved."""
    count, size = sizes
    number, threads = share
    first, end = size * number // threads, size * (number + 1) // threads
    for row in range(count):
        copy(states + 4 * (rows[row] * size + first), states + 4 * (row * size + first), end - first)


@compiled
def _embed(arguments: Any, number: int, threads: int) -> None:
    size = arguments[HIDDEN]
    token_ids = pointer_to_integers(arguments[TOKEN_IDS])
    for row in range(number, arguments[ROWS], threads):
        copy(arguments[EMBEDDING] + 4 * token_ids[row] * size, arguments[STATES] + 4 * row * size, size)
    barrier(arguments)


def _region(arguments: Any) -> None:
    number, threads = thread_number(arguments), num_threads(arguments)
    rows = arguments[ROWS]
    if arguments[EMBEDDING]:
        _embed(arguments, number, threads)
    for layer in range(arguments[LAYERS]):
        table = pointer_to_integers(arguments[TABLE] + 8 * NUM_COLUMNS * layer)
        _normalize_rows(arguments, layer, QUERY_KEY_VALUE, table[INPUT_NORM], rows, number, threads)
        _multiply(arguments, layer, QUERY_KEY_VALUE)
        _write_heads(arguments, layer, number, threads)
        _attend_tiles(arguments, layer, number, threads)
        if layer == arguments[LAYERS] - 1 and arguments[LOGITS] < rows:
            rows = arguments[LOGITS]
            if not rows:
                return
            _select_rows(arguments, number, threads)
        _multiply(arguments, layer, OUTPUT)
        _normalize_rows(arguments, layer, GATE, table[MIDDLE_NORM], rows, number, threads)
        _feed_forward(arguments, layer)
    _normalize_rows(arguments, arguments[LAYERS], 0, arguments[FINAL_NORM], rows, number, threads)
    _multiply(arguments, arguments[LAYERS], 0)


ADDRESS = address_of(_region)
