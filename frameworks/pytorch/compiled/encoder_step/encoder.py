"""All layers of an encoder in one call, for texts that follow one another in the rows.

All threads run the layers together. A barrier ends each part of one.
"""

from typing import Any

from frameworks.pytorch.compiled.attention.attention_tiles import KEYS
from frameworks.pytorch.compiled.attention.cache_rows import (
    FLOAT32,
    ROWS_AT_ONCE,
    copy,
    narrow,
    scatter,
    scatter_float_rows,
    scatter_rows,
)
from frameworks.pytorch.compiled.cpu_features import has_amx
from frameworks.pytorch.compiled.decoder_step.norm_rope import apply_rope
from frameworks.pytorch.compiled.encoder_step.embeddings import embed_rows
from frameworks.pytorch.compiled.encoder_step.encoder_arguments import (
    ATTENDED,
    ATTENDED_NORM,
    ATTENTION_NORM,
    BIAS,
    BLOCK_FIELDS,
    BLOCK_ROW,
    BLOCK_TOKENS,
    BLOCKS,
    CACHE,
    CACHE_DTYPE,
    CONSTANTS,
    COSINES,
    DOWN,
    FEED_FORWARD_NORM,
    FIRST_BLOCK,
    FIRST_ROW,
    GATE,
    GEMM_COLUMNS,
    GEMMS,
    GEMMS_OF_LAYER,
    HEAD_SIZE,
    HEADS,
    HIDDEN,
    LAST_NORM,
    LAYERS,
    LENGTH,
    LONGEST,
    NORMED,
    NUM_BLOCKS,
    NUM_COLUMNS,
    NUM_HEADS,
    NUM_TILES,
    OUTPUT,
    POSITION,
    QUERY_KEY_VALUE,
    REGION,
    ROWS,
    SCRATCH,
    SCRATCH_BYTES,
    SINES,
    STATES,
    TABLE,
    TILE_FIELDS,
    TILES,
    TOKENS,
    UP,
    WINDOW,
)
from frameworks.pytorch.compiled.encoder_step.layer_norm import layer_norm
from frameworks.pytorch.compiled.jit import address_of, call_with, compiled, pointer_to_floats, pointer_to_integers
from frameworks.pytorch.compiled.parallel import barrier, num_threads, thread_number

if has_amx():
    from frameworks.pytorch.compiled.attention.amx_attention import attend_to_keys, scratch_bytes, tile_tokens
else:
    from frameworks.pytorch.compiled.attention.flash_attention import attend_to_keys, scratch_bytes, tile_tokens
__all__ = ["ADDRESS", "scratch_bytes", "tile_tokens"]


@compiled
def _gemm(arguments: Any, layer: int, index: int) -> None:
    own = arguments[GEMMS] + 8 * GEMM_COLUMNS * (layer * GEMMS_OF_LAYER + index)
    gemm = pointer_to_integers(own)
    if gemm[REGION]:
        call_with(gemm[REGION], own)
        barrier(arguments)


@compiled
def _norm_rows(arguments: Any, weight: int, bias: int, target: int, thread: int, threads: int) -> None:
    """Apply a norm to the states; none if its weight is 0."""
    if not weight:
        return
    size, epsilon = arguments[HIDDEN], pointer_to_floats(arguments[CONSTANTS])[0]
    for row in range(thread, arguments[ROWS], threads):
        offset = 4 * row * size
        layer_norm(arguments[STATES] + offset, target + offset, (weight, bias), size, epsilon)
    barrier(arguments)


@compiled
def _write_blocks(arguments: Any, layer: int, thread: int, threads: int) -> None:
    """Write keys, as [head size, KEYS], and values, as [KEYS, head size], to their blocks."""
    table = pointer_to_integers(arguments[TABLE] + 8 * NUM_COLUMNS * layer)
    heads, size, dtype = arguments[NUM_HEADS], arguments[HEAD_SIZE], arguments[CACHE_DTYPE]
    blocks = pointer_to_integers(arguments[BLOCKS])
    head_bytes, row_bytes, width = 4 * size, 4 * size * 3 * heads, 4 if dtype == FLOAT32 else 2
    rounded = arguments[SCRATCH] + thread * arguments[SCRATCH_BYTES]
    for task in range(thread, arguments[NUM_BLOCKS] * heads, threads):
        block, head = task // heads, task % heads
        row, tokens = blocks[BLOCK_FIELDS * block + BLOCK_ROW], blocks[BLOCK_FIELDS * block + BLOCK_TOKENS]
        keys = arguments[CACHE] + (2 * heads * block + head) * KEYS * size * width
        values = keys + heads * KEYS * size * width
        first_key = arguments[HEADS] + row * row_bytes + (heads + head) * head_bytes
        for token in range(tokens):
            key = first_key + token * row_bytes
            if table[COSINES]:
                angles = 4 * (row + token) * (size // 2)
                apply_rope(key - heads * head_bytes, table[COSINES] + angles, table[SINES] + angles, size)
                apply_rope(key, table[COSINES] + angles, table[SINES] + angles, size)
            if dtype == FLOAT32:
                copy(key + heads * head_bytes, values + token * head_bytes, size)
            else:
                narrow(key + heads * head_bytes, values + token * size * width, size, dtype)
        whole = tokens - tokens % ROWS_AT_ONCE
        for token in range(0, whole, ROWS_AT_ONCE):
            if dtype == FLOAT32:
                scatter_float_rows(first_key + token * row_bytes, keys + 4 * token, size, row_bytes // 4, KEYS)
                continue
            for index in range(ROWS_AT_ONCE):
                narrow(first_key + (token + index) * row_bytes, rounded + size * width * index, size, dtype)
            scatter_rows(rounded, keys + width * token, size, KEYS)
        for token in range(whole, tokens):
            scatter(first_key + token * row_bytes, keys + width * token, size, KEYS, dtype)
    barrier(arguments)


@compiled
def _attend_tiles(arguments: Any, layer: int, thread: int, threads: int) -> None:
    window = pointer_to_integers(arguments[TABLE] + 8 * NUM_COLUMNS * layer)[WINDOW]
    heads, size = arguments[NUM_HEADS], arguments[HEAD_SIZE]
    tiles = pointer_to_integers(arguments[TILES])
    scale = pointer_to_floats(arguments[CONSTANTS])[1]
    scratch = arguments[SCRATCH] + thread * arguments[SCRATCH_BYTES]
    head_bytes, dtype = 4 * size, arguments[CACHE_DTYPE]
    half_bytes = heads * KEYS * size * (4 if dtype == FLOAT32 else 2)
    for task in range(thread, arguments[NUM_TILES] * heads, threads):
        tile, head = task // heads * TILE_FIELDS, task % heads
        row, tokens, length = tiles[tile + FIRST_ROW], tiles[tile + TOKENS], tiles[tile + LENGTH]
        keys = arguments[CACHE] + head * half_bytes // heads
        visible = (length, 0, 0, length)
        if window:
            visible = (tiles[tile + POSITION] + 1 + window, 1, 2 * window + 1, length)
        bias = 0
        if arguments[BIAS]:
            distance = arguments[LONGEST] - 1 - tiles[tile + POSITION]
            bias = arguments[BIAS] + 4 * (head * (2 * arguments[LONGEST] - 1) + distance)
        attend_to_keys(
            arguments[HEADS] + (3 * heads * row + head) * head_bytes,
            arguments[ATTENDED] + (heads * row + head) * head_bytes,
            scratch,
            (tokens, 1, visible, bias),
            (size, 3 * heads * head_bytes, heads * head_bytes),
            (keys, keys + half_bytes, tiles[tile + FIRST_BLOCK], 2 * half_bytes, dtype),
            scale,
        )
    barrier(arguments)


def _region(arguments: Any) -> None:
    thread, threads = thread_number(arguments), num_threads(arguments)
    states, normed = arguments[STATES], arguments[NORMED]
    embed_rows(arguments, thread, threads)
    for layer in range(arguments[LAYERS]):
        table = pointer_to_integers(arguments[TABLE] + 8 * NUM_COLUMNS * layer)
        _norm_rows(arguments, table[ATTENTION_NORM], table[ATTENTION_NORM + 1], normed, thread, threads)
        _gemm(arguments, layer, QUERY_KEY_VALUE)
        _write_blocks(arguments, layer, thread, threads)
        _attend_tiles(arguments, layer, thread, threads)
        _gemm(arguments, layer, OUTPUT)
        _norm_rows(arguments, table[ATTENDED_NORM], table[ATTENDED_NORM + 1], states, thread, threads)
        _norm_rows(arguments, table[FEED_FORWARD_NORM], table[FEED_FORWARD_NORM + 1], normed, thread, threads)
        _gemm(arguments, layer, GATE)
        _gemm(arguments, layer, UP)
        _gemm(arguments, layer, DOWN)
        _norm_rows(arguments, table[LAST_NORM], table[LAST_NORM + 1], states, thread, threads)


ADDRESS = address_of(_region)
