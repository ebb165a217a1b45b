"""A whole step of a Llama decoder in one call: no Python and no operator of torch between its products.

All threads run the step together. A barrier ends each part of it.
"""

from typing import Any

from frameworks.pytorch.compiled.amx.amx_gemm import order_row, place_in_order
from frameworks.pytorch.compiled.amx.amx_registers import INPUTS, TILE_BYTES
from frameworks.pytorch.compiled.attention.attention_tiles import KEYS
from frameworks.pytorch.compiled.attention.cache_rows import FLOAT32, copy, widen
from frameworks.pytorch.compiled.cpu_features import has_matrix_tiles
from frameworks.pytorch.compiled.decoder_step.blocked_states import PART_BYTES, copy_parts, normalize_row
from frameworks.pytorch.compiled.decoder_step.norm_rope import normalize
from frameworks.pytorch.compiled.decoder_step.rope_and_cache import write_heads
from frameworks.pytorch.compiled.decoder_step.step_arguments import (
    BLOCK_BYTES,
    BLOCKS,
    CACHE,
    CACHE_BLOCK_BYTES,
    CACHE_HALF_BYTES,
    CACHE_KIND,
    CACHE_LAYER_BYTES,
    EMBEDDING,
    EMBEDDING_KIND,
    FINAL_NORM,
    FIRST_BLOCKS,
    HEAD_SIZE,
    HEADS,
    HIDDEN,
    INPUT_NORM,
    KEY_HEADS,
    LAST_TILES,
    LAYERS,
    LOGIT_ROWS,
    LOGITS,
    MIDDLE_NORM,
    NORMED,
    NUM_COLUMNS,
    NUM_LAST_TILES,
    NUM_TILES,
    NUMBERS,
    POSITIONS,
    PRODUCTS,
    QUERY_HEADS,
    ROOM,
    ROOM_BYTES,
    ROWS,
    SEEN,
    STATES,
    TABLE,
    TILE_HEADS,
    TILES,
    TOKEN_IDS,
    WINDOW,
)
from frameworks.pytorch.compiled.jit import (
    address_of,
    call_with,
    compiled,
    pointer_to_floats,
    pointer_to_integers,
)
from frameworks.pytorch.compiled.matmul.gemm import TILES as PRODUCT_TILES
from frameworks.pytorch.compiled.matmul.gemm import X
from frameworks.pytorch.compiled.matmul.gemm_table import (
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
from frameworks.pytorch.compiled.parallel import barrier, num_threads, thread_number

if has_matrix_tiles():
    from frameworks.pytorch.compiled.attention.amx_attention import MAX_TILE_ROWS, attend, tile_tokens
    from frameworks.pytorch.compiled.attention.amx_attention import room_bytes as attention_bytes
else:
    from frameworks.pytorch.compiled.attention.flash_attention import MAX_TILE_ROWS, tile_tokens
    from frameworks.pytorch.compiled.attention.flash_attention import attend_by_vectors as attend
    from frameworks.pytorch.compiled.attention.flash_attention import room_bytes as attention_bytes
__all__ = ["ADDRESS", "room_bytes", "tile_tokens"]


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
    size, normed, block_bytes = arguments[HIDDEN], arguments[NORMED], arguments[BLOCK_BYTES]
    epsilon = pointer_to_floats(arguments[NUMBERS])[0]
    in_order = own[TAKES_ORDERED] and not (own[ADAPTING] or (index == GATE and not _is_together(own)))
    for row in range(number, rows, threads):
        target, part_bytes = normed + 4 * row * size, PART_BYTES
        if in_order:
            target, part_bytes = place_in_order(own[PRODUCT_TILES], row, size), TILE_BYTES
        if block_bytes:
            parts = (arguments[STATES] + row * PART_BYTES, block_bytes, size // INPUTS)
            normalize_row(parts, weight, epsilon, (target, part_bytes), in_order)
        else:
            normalize(arguments[STATES] + 4 * row * size, target, weight, size, epsilon)
    # All threads write the same.
    own[X] = 0 if in_order else normed
    barrier(arguments)


@compiled
def _is_together(gate: Any) -> bool:
    """Whether the products from `GATE` on are computed together. `gate`: its row of the table."""
    return bool(gate[FEED_FORWARD] and not (gate[ADAPTING] or gate[(DOWN - GATE) * PRODUCT_COLUMNS + ADAPTING]))


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
    out_bytes = query_heads * head_bytes
    queries, query_bytes = arguments[HEADS], (query_heads + 2 * key_heads) * head_bytes
    if arguments[BLOCK_BYTES]:
        # A tile's queries are read before what it has seen takes their place.
        queries, query_bytes = arguments[SEEN], out_bytes
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
            queries + row * query_bytes + head * head_bytes,
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
    rows, count, hidden = pointer_to_integers(arguments[LOGIT_ROWS]), arguments[LOGITS], arguments[HIDDEN]
    block_bytes = arguments[BLOCK_BYTES]
    if block_bytes:
        blocks = hidden // INPUTS
        first, end = blocks * number // threads, blocks * (number + 1) // threads
        states = arguments[STATES] + first * block_bytes
        for row in range(count):
            source, target = states + rows[row] * PART_BYTES, states + row * PART_BYTES
            copy_parts(source, block_bytes, target, block_bytes, end - first)
    else:
        _move(arguments[STATES], rows, (count, hidden), (number, threads))
    _move(arguments[SEEN], rows, (count, arguments[QUERY_HEADS] * arguments[HEAD_SIZE]), (number, threads))
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
    size, block_bytes = arguments[HIDDEN], arguments[BLOCK_BYTES]
    token_ids = pointer_to_integers(arguments[TOKEN_IDS])
    kind = arguments[EMBEDDING_KIND]
    width = 4 if kind == FLOAT32 else 2
    for row in range(number, arguments[ROWS], threads):
        given, place = arguments[EMBEDDING] + width * token_ids[row] * size, arguments[STATES] + 4 * row * size
        if not block_bytes:
            widen(given, place, size, kind)
            continue
        own = arguments[NORMED] + 4 * row * size
        widen(given, own, size, kind)
        copy_parts(own, PART_BYTES, arguments[STATES] + row * PART_BYTES, block_bytes, size // INPUTS)
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
        write_heads(arguments, layer, number, threads)
        barrier(arguments)
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
