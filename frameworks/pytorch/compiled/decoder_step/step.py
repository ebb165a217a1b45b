"""A whole step of a Llama decoder in one call: no Python and no operator of torch between its GEMMs.

All threads run the step together. A barrier ends each part of it.
"""

from typing import Any

from frameworks.pytorch.compiled.amx.amx_gemm import pack_row, packed_row_address
from frameworks.pytorch.compiled.amx.amx_registers import INPUTS, TILE_BYTES
from frameworks.pytorch.compiled.attention.attention_tiles import KEYS
from frameworks.pytorch.compiled.attention.cache_rows import FLOAT32, copy, widen
from frameworks.pytorch.compiled.cpu_features import has_amx
from frameworks.pytorch.compiled.decoder_step.blocked_states import PIECE_BYTES, copy_pieces, rms_norm_row
from frameworks.pytorch.compiled.decoder_step.norm_rope import rms_norm
from frameworks.pytorch.compiled.decoder_step.rope_and_cache import write_heads
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
    EMBEDDING,
    EMBEDDING_DTYPE,
    FINAL_NORM,
    FIRST_BLOCKS,
    GEMMS,
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
    POSITIONS,
    QUERY_HEADS,
    ROWS,
    SCRATCH,
    SCRATCH_BYTES,
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
from frameworks.pytorch.compiled.matmul.gemm import TILES as GEMM_TILES
from frameworks.pytorch.compiled.matmul.gemm import X
from frameworks.pytorch.compiled.matmul.gemm_table import (
    ADAPTING,
    DOWN,
    FEED_FORWARD,
    GATE,
    GEMM_COLUMNS,
    GEMMS_OF_LAYER,
    OUTPUT,
    QUERY_KEY_VALUE,
    REGION,
    TAKES_PACKED,
    UP,
)
from frameworks.pytorch.compiled.parallel import barrier, num_threads, thread_number

if has_amx():
    from frameworks.pytorch.compiled.attention.amx_attention import MAX_TILE_ROWS, attend, tile_tokens
    from frameworks.pytorch.compiled.attention.amx_attention import scratch_bytes as attention_bytes
else:
    from frameworks.pytorch.compiled.attention.flash_attention import MAX_TILE_ROWS, tile_tokens
    from frameworks.pytorch.compiled.attention.flash_attention import attend_by_vectors as attend
    from frameworks.pytorch.compiled.attention.flash_attention import scratch_bytes as attention_bytes
__all__ = ["ADDRESS", "scratch_bytes", "tile_tokens"]


def scratch_bytes(head_size: int, dtype: int) -> int:
    """Return the bytes of the scratch buffer of a thread: for attention, and behind that for the output of a tile."""
    return attention_bytes(head_size, dtype) + 4 * head_size * MAX_TILE_ROWS


@compiled
def _gemm(arguments: Any, layer: int, index: int) -> None:
    own = arguments[GEMMS] + 8 * GEMM_COLUMNS * (layer * GEMMS_OF_LAYER + index)
    gemm = pointer_to_integers(own)
    if gemm[ADAPTING]:
        call_with(gemm[ADAPTING], own)
    call_with(gemm[REGION], own)
    barrier(arguments)


@compiled
def _feed_forward(arguments: Any, layer: int) -> None:
    own = arguments[GEMMS] + 8 * GEMM_COLUMNS * (layer * GEMMS_OF_LAYER + GATE)
    gate = pointer_to_integers(own)
    if _is_fused(gate):
        call_with(gate[FEED_FORWARD], own)
        barrier(arguments)
        return
    _gemm(arguments, layer, GATE)
    _gemm(arguments, layer, UP)
    _gemm(arguments, layer, DOWN)


@compiled
def _rms_norm_rows(arguments: Any, layer: int, index: int, weight: int, rows: int, thread: int, threads: int) -> None:
    """Apply RMSNorm to the states, as activations of a GEMM."""
    own = pointer_to_integers(arguments[GEMMS] + 8 * GEMM_COLUMNS * (layer * GEMMS_OF_LAYER + index))
    size, normed, block_bytes = arguments[HIDDEN], arguments[NORMED], arguments[BLOCK_BYTES]
    epsilon = pointer_to_floats(arguments[CONSTANTS])[0]
    is_packed = own[TAKES_PACKED] and not (own[ADAPTING] or (index == GATE and not _is_fused(own)))
    for row in range(thread, rows, threads):
        target, part_bytes = normed + 4 * row * size, PIECE_BYTES
        if is_packed:
            target, part_bytes = packed_row_address(own[GEMM_TILES], row, size), TILE_BYTES
        if block_bytes:
            parts = (arguments[STATES] + row * PIECE_BYTES, block_bytes, size // INPUTS)
            rms_norm_row(parts, weight, epsilon, (target, part_bytes), is_packed)
        else:
            rms_norm(arguments[STATES] + 4 * row * size, target, weight, size, epsilon)
    # All threads write the same.
    own[X] = 0 if is_packed else normed
    barrier(arguments)


@compiled
def _is_fused(gate: Any) -> bool:
    """Whether the GEMMs from `GATE` on are fused. `gate`: its row of the table."""
    return bool(gate[FEED_FORWARD] and not (gate[ADAPTING] or gate[(DOWN - GATE) * GEMM_COLUMNS + ADAPTING]))


@compiled
def _attend_tiles(arguments: Any, layer: int, thread: int, threads: int) -> None:
    is_last = layer == arguments[LAYERS] - 1
    tiles = pointer_to_integers(arguments[LAST_TILES] if is_last else arguments[TILES])
    num_tiles = arguments[NUM_LAST_TILES] if is_last else arguments[NUM_TILES]
    query_heads, key_heads, size = arguments[QUERY_HEADS], arguments[KEY_HEADS], arguments[HEAD_SIZE]
    window = pointer_to_integers(arguments[TABLE] + 8 * NUM_COLUMNS * layer)[WINDOW]
    positions, first_blocks = pointer_to_integers(arguments[POSITIONS]), pointer_to_integers(arguments[FIRST_BLOCKS])
    scale = pointer_to_floats(arguments[CONSTANTS])[1]
    keys = arguments[CACHE] + layer * arguments[CACHE_LAYER_BYTES]
    scratch = arguments[SCRATCH] + thread * arguments[SCRATCH_BYTES]
    head_bytes, dtype = 4 * size, arguments[CACHE_DTYPE]
    cached_bytes = head_bytes if dtype == FLOAT32 else 2 * size
    out_bytes = query_heads * head_bytes
    queries, query_bytes = arguments[HEADS], (query_heads + 2 * key_heads) * head_bytes
    if arguments[BLOCK_BYTES]:
        # A tile's queries are read before its outputs overwrite them.
        queries, query_bytes = arguments[ATTENDED], out_bytes
    group, at_once = query_heads // key_heads, arguments[TILE_HEADS]
    splits = (group + at_once - 1) // at_once
    tasks = key_heads * splits
    gemm = pointer_to_integers(arguments[GEMMS] + 8 * GEMM_COLUMNS * (layer * GEMMS_OF_LAYER + OUTPUT))
    # After the last layer's attention, rows are selected first.
    is_packed = gemm[TAKES_PACKED] and not (gemm[ADAPTING] or is_last)
    attended = scratch + arguments[SCRATCH_BYTES] - head_bytes * MAX_TILE_ROWS
    for task in range(thread, num_tiles * tasks, threads):
        tile, key_head = task // tasks, task % tasks // splits
        row, tokens = tiles[2 * tile], tiles[2 * tile + 1]
        first = task % splits * at_once
        head = key_head * group + first
        keys_of_head = keys + key_head * KEYS * cached_bytes
        blocks = arguments[BLOCKS] + 8 * first_blocks[row]
        heads = min(at_once, group - first)
        attend(
            queries + row * query_bytes + head * head_bytes,
            attended if is_packed else arguments[ATTENDED] + row * out_bytes + head * head_bytes,
            scratch,
            (tokens, heads, positions[row], window),
            (size, query_bytes, heads * head_bytes if is_packed else out_bytes),
            (keys_of_head, keys_of_head + arguments[CACHE_HALF_BYTES], blocks, arguments[CACHE_BLOCK_BYTES], dtype),
            scale,
        )
        if is_packed:
            for token in range(tokens):
                source, column = attended + token * heads * head_bytes, head * size
                pack_row(source, gemm[GEMM_TILES], row + token, (query_heads * size, column, heads * size))
    # All threads write the same.
    gemm[X] = 0 if is_packed else arguments[ATTENDED]
    barrier(arguments)


@compiled
def _select_rows(arguments: Any, thread: int, threads: int) -> None:
    """Move the rows with logits to the front: no other row of the last layer is needed after its attention."""
    rows, count, hidden = pointer_to_integers(arguments[LOGIT_ROWS]), arguments[LOGITS], arguments[HIDDEN]
    block_bytes = arguments[BLOCK_BYTES]
    if block_bytes:
        blocks = hidden // INPUTS
        first, end = blocks * thread // threads, blocks * (thread + 1) // threads
        states = arguments[STATES] + first * block_bytes
        for row in range(count):
            source, target = states + rows[row] * PIECE_BYTES, states + row * PIECE_BYTES
            copy_pieces(source, block_bytes, target, block_bytes, end - first)
    else:
        _move(arguments[STATES], rows, (count, hidden), (thread, threads))
    _move(arguments[ATTENDED], rows, (count, arguments[QUERY_HEADS] * arguments[HEAD_SIZE]), (thread, threads))
    barrier(arguments)


@compiled
def _move(states: int, rows: Any, sizes: Any, split: Any) -> None:
    """Move this thread's share of the columns. A row moves towards the front, past rows that have moved."""
    count, size = sizes
    thread, threads = split
    first, end = size * thread // threads, size * (thread + 1) // threads
    for row in range(count):
        copy(states + 4 * (rows[row] * size + first), states + 4 * (row * size + first), end - first)


@compiled
def _embed(arguments: Any, thread: int, threads: int) -> None:
    size, block_bytes = arguments[HIDDEN], arguments[BLOCK_BYTES]
    token_ids = pointer_to_integers(arguments[TOKEN_IDS])
    dtype = arguments[EMBEDDING_DTYPE]
    width = 4 if dtype == FLOAT32 else 2
    for row in range(thread, arguments[ROWS], threads):
        given, state = arguments[EMBEDDING] + width * token_ids[row] * size, arguments[STATES] + 4 * row * size
        if not block_bytes:
            widen(given, state, size, dtype)
            continue
        own = arguments[NORMED] + 4 * row * size
        widen(given, own, size, dtype)
        copy_pieces(own, PIECE_BYTES, arguments[STATES] + row * PIECE_BYTES, block_bytes, size // INPUTS)
    barrier(arguments)


def _region(arguments: Any) -> None:
    thread, threads = thread_number(arguments), num_threads(arguments)
    rows = arguments[ROWS]
    if arguments[EMBEDDING]:
        _embed(arguments, thread, threads)
    for layer in range(arguments[LAYERS]):
        table = pointer_to_integers(arguments[TABLE] + 8 * NUM_COLUMNS * layer)
        _rms_norm_rows(arguments, layer, QUERY_KEY_VALUE, table[INPUT_NORM], rows, thread, threads)
        _gemm(arguments, layer, QUERY_KEY_VALUE)
        write_heads(arguments, layer, thread, threads)
        barrier(arguments)
        _attend_tiles(arguments, layer, thread, threads)
        if layer == arguments[LAYERS] - 1 and arguments[LOGITS] < rows:
            rows = arguments[LOGITS]
            if not rows:
                return
            _select_rows(arguments, thread, threads)
        _gemm(arguments, layer, OUTPUT)
        _rms_norm_rows(arguments, layer, GATE, table[MIDDLE_NORM], rows, thread, threads)
        _feed_forward(arguments, layer)
    _rms_norm_rows(arguments, arguments[LAYERS], 0, arguments[FINAL_NORM], rows, thread, threads)
    _gemm(arguments, arguments[LAYERS], 0)


ADDRESS = address_of(_region)
