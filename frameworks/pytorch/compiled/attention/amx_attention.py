"""Attention by the matrix tiles of Intel's AMX, where keys and values are bfloat16.

As attention.py, with queries and shares that are rounded to bfloat16. Exponentials and sums are float32. 16 or 32 rows
are multiplied at once; where there are fewer, the results of the others are not read. 32 adjacent blocks of keys, as
the text numbers them, are added at once. Those that a row does not see add zeros to its sums. So a row's result depends
on its own keys alone.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.amx.amx_gemm import matrix_tile, place_in_order
from frameworks.pytorch.compiled.amx.amx_registers import INPUTS, ROWS, STEP_BYTES, TILE_BYTES, configure, release
from frameworks.pytorch.compiled.attention import flash_attention
from frameworks.pytorch.compiled.attention.amx_softmax_tiles import (
    BLOCK_BYTES,
    LOG2_E,
    exceeds,
    power_of_two,
    shares_of_block,
    values_adder,
)
from frameworks.pytorch.compiled.attention.attention_tiles import KEYS, LANES, LOWEST, fetch_lines
from frameworks.pytorch.compiled.attention.cache_rows import BFLOAT16, copy
from frameworks.pytorch.compiled.attention.flash_attention import (
    END,
    STATE_NUMBERS,
    attend_by_vectors,
    begin_rows,
    finish_rows,
)
from frameworks.pytorch.compiled.jit import (
    inlined,
    llvm_function,
    ordered,
    pointer_to_floats,
    pointer_to_integers,
    stack_floats,
)
from frameworks.pytorch.compiled.matmul.bfloat16_activations import store_rounded
from frameworks.pytorch.compiled.simd.llvm_vectors import BYTES, LINE_BYTES, load, number, splat

_AT_ONCE = 2 * ROWS
"""Rows of a product."""
MAX_TILE_ROWS = 4 * _AT_ONCE
"""Rows of a tile: keys and values are put in the order of the products once for all of them."""
_BLOCKS = 32
"""Blocks of keys that are added together: a row's sums are loaded and stored once for all of them."""
_ROW = ir.VectorType(ir.IntType(16), KEYS)
_one_tile, _two_tiles = matrix_tile(1), matrix_tile(2)
_shares1, _shares2 = (shares_of_block(row_tiles, is_whole=False) for row_tiles in (1, 2))
_whole_shares1, _whole_shares2 = (shares_of_block(row_tiles, is_whole=True) for row_tiles in (1, 2))
_add_values1, _add_values2 = (values_adder(row_tiles) for row_tiles in (1, 2))


def _is_by_tiles(head_size: int, kind: int) -> bool:
    return kind == BFLOAT16 and head_size % INPUTS == 0


def tile_tokens(heads: int, head_size: int, kind: int, /) -> int:
    """Return the tokens of a tile with so many query heads."""
    if not _is_by_tiles(head_size, kind):
        return flash_attention.tile_tokens(heads, head_size, kind)
    return max(1, MAX_TILE_ROWS // heads)


def room_bytes(head_size: int, kind: int, /) -> int:
    """Return the bytes that a thread needs for its work."""
    if not _is_by_tiles(head_size, kind):
        return flash_attention.room_bytes(head_size, kind)
    of_rows = (2 + 4) * head_size + 4 * STATE_NUMBERS
    of_block = 2 * 2 * KEYS * head_size + 2 * TILE_BYTES
    of_product = 2 * BLOCK_BYTES + 4 * LANES * _AT_ONCE
    return -(-(MAX_TILE_ROWS * of_rows + _BLOCKS * of_block + of_product) // LINE_BYTES) * LINE_BYTES


@inlined
def _places_in(room: int, size: int) -> tuple[int, int, int, int, int]:
    """Return the addresses behind the queries, which are the first: of the sums and the states of the rows, float32, of
    the keys and the values in order, and of two blocks' scores.
    """
    sums = room + MAX_TILE_ROWS * 2 * size
    states = sums + MAX_TILE_ROWS * 4 * size
    keys = states + MAX_TILE_ROWS * 4 * STATE_NUMBERS
    values = keys + _BLOCKS * 2 * KEYS * size
    return sums, states, keys, values, values + _BLOCKS * 2 * KEYS * size


@inlined
def _behind_scores(scores: int) -> tuple[int, int]:
    """Return the addresses of the shares, and of the sums of earlier shares, [_AT_ONCE, LANES]."""
    shares = scores + 2 * BLOCK_BYTES
    return shares, shares + _BLOCKS * 2 * TILE_BYTES


@llvm_function
def _write_pairs(_context: Any, _source: Any, _row_bytes: Any, _count: Any, _target: Any) -> Any:
    """(address of rows of 32 numbers of 16 bits, bytes from row to row, number of rows, target) → nothing.

    It writes a step of weights, [16 pairs of rows, 32 numbers, 2], with zeros for rows that there are not.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, target = builder.inttoptr(arguments[0], BYTES), builder.inttoptr(arguments[3], BYTES)
        lanes = [place // 2 + KEYS * (place % 2) for place in range(2 * KEYS)]
        order = ir.Constant(ir.VectorType(ir.IntType(32), 2 * KEYS), lanes)
        zeros = ir.Constant(_ROW, [0] * KEYS)
        with cgutils.for_range_slice(builder, number(0), number(INPUTS), number(2)) as (row, _):
            found = []
            for index in (row, builder.add(row, number(1))):
                given = load(builder, builder.gep(source, [builder.mul(index, arguments[1])]), _ROW)
                found.append(builder.select(builder.icmp_signed("<", index, arguments[2]), given, zeros))
            pairs = builder.shuffle_vector(*found, order)
            place = builder.gep(target, [builder.mul(row, number(2 * KEYS))])
            builder.store(pairs, builder.bitcast(place, pairs.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), write


@llvm_function
def _write_queries(_context: Any, _source: Any, _scale: Any, _target: Any) -> Any:
    """(address of INPUTS floats, scale, target) → nothing, after writing them times the scale as bfloat16."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        source, target = (builder.inttoptr(each, BYTES) for each in (arguments[0], arguments[2]))
        given = load(builder, source, ir.VectorType(ir.FloatType(), INPUTS))
        store_rounded(builder, builder.fmul(given, splat(builder, arguments[1], INPUTS)), target)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64), write


@ordered
def _multiply(rows: int, x: int, weights: int, out: int, steps: int) -> None:
    if rows > ROWS:
        _two_tiles(x, weights, out, steps, 0)
    else:
        _one_tile(x, weights, out, steps, 0)


@ordered
def _attend_by_tiles(queries: int, out: int, room: int, tile: Any, sizes: Any, cache: Any, scale: Any) -> None:
    """As `attend_by_vectors`, with heads of a multiple of INPUTS numbers."""
    tokens, heads, position, window = tile
    size, query_bytes, out_bytes = sizes
    keys, values, blocks, block_bytes, _ = cache
    rows, row_bytes, steps = tokens * heads, 4 * size, size // INPUTS
    sums, states, own_keys, own_values, scores = _places_in(room, size)
    begin_rows(sums, states, (tokens, heads, position), row_bytes)
    exponents = scale * np.float32(LOG2_E)
    for row in range(rows):
        given = queries + row // heads * query_bytes + row % heads * row_bytes
        place = place_in_order(room, row, size)
        for step in range(steps):
            _write_queries(given + 4 * INPUTS * step, exponents, place + TILE_BYTES * step)
    oldest = max(0, position + 1 - window) // KEYS if window else 0
    end = position + tokens
    configure()
    for start in range(oldest // _BLOCKS * _BLOCKS, (end + KEYS - 1) // KEYS, _BLOCKS):
        seen = (start, oldest, end)
        _order_blocks((keys, values, blocks, block_bytes), (own_keys, own_values), seen, size)
        for first in range(0, rows, _AT_ONCE):
            own = (room + first * 2 * size, own_keys, own_values, scores, sums + first * row_bytes)
            own_states = states + 4 * STATE_NUMBERS * first
            _add_blocks(own, own_states, (min(_AT_ONCE, rows - first), size), (start * KEYS, window))
    release()
    finish_rows(out, (tokens, heads, out_bytes), (size, row_bytes), (sums, states))


@ordered
def _order_blocks(cache: Any, room: Any, seen: Any, size: int) -> None:
    """Write up to _BLOCKS blocks in the order of the tiles: keys as [blocks, steps, …], values as [steps, blocks, …].

    `cache`: as `attend_by_vectors` has it. `seen`: the first of the blocks, the first one that any row sees, and the
    position behind the last token. Values that no row sees become zeros, and keys stay what is there.
    """
    keys, values, blocks, block_bytes = cache
    wide_keys, wide_values = room
    start, oldest, end = seen
    steps, numbers = size // INPUTS, pointer_to_integers(blocks)
    for block in range(_BLOCKS):
        count = min(KEYS, end - (start + block) * KEYS)
        if count <= 0:
            return
        offset = numbers[max(start + block, oldest)] * block_bytes
        if start + block < oldest:
            count = 0
        elif count < end - (start + block) * KEYS:
            following = numbers[start + block + 1] * block_bytes
            fetch_lines(keys + following, 2 * size * KEYS)
            fetch_lines(values + following, 2 * size * KEYS)
        for step in range(steps):
            own_keys = wide_keys + STEP_BYTES * (steps * block + step)
            own_values = wide_values + STEP_BYTES * (_BLOCKS * step + block)
            _write_pairs(keys + offset + 2 * KEYS * INPUTS * step, 2 * KEYS, INPUTS, own_keys)
            _write_pairs(values + offset + 2 * INPUTS * step, 2 * size, count, own_values)


@ordered
def _add_blocks(room: Any, states: int, sizes: Any, seen: Any) -> None:
    """Add blocks of keys and values to up to _AT_ONCE rows.

    `room`: addresses of the queries, the keys and the values in the order of the tiles, of the scores and of the sums.
    `sizes`: rows, size of a head. `seen`: position of the first key, and the window, 0 for none.
    """
    values, scores, sums = room[2], room[3], room[4]
    rows, size = sizes
    start, window = seen
    blocks = min(_BLOCKS, (_end(states, rows - 1) - start + KEYS - 1) // KEYS)
    if blocks <= 0 or (window and _end(states, 0) - window >= start + _BLOCKS * KEYS):
        return
    shares, before = _behind_scores(scores)
    for row in range(rows):
        copy(states + 4 * (STATE_NUMBERS * row + LANES), before + 4 * LANES * row, LANES)
    _share_blocks(room, states, sizes, seen, blocks)
    num_exceeding = 0
    for row in range(rows):
        num_exceeding += exceeds(states + 4 * STATE_NUMBERS * row)
    if num_exceeding:
        _set_references(room, states, sizes, seen, blocks)
        _share_blocks(room, states, sizes, seen, blocks)
    for step in range(size // INPUTS):
        own_values, own_sums = values + STEP_BYTES * _BLOCKS * step, sums + 4 * INPUTS * step
        if rows > ROWS:
            _add_values2(shares, own_values, own_sums, blocks, 4 * size)
        else:
            _add_values1(shares, own_values, own_sums, blocks, 4 * size)


@inlined
def _end(states: int, row: int) -> int:
    """Return the position behind the last key of a row."""
    return int(pointer_to_integers(states + 4 * STATE_NUMBERS * row)[END])


@ordered
def _share_blocks(room: Any, states: int, sizes: Any, seen: Any, blocks: int) -> None:
    """Write the shares of some blocks of keys. Arguments as `_add_blocks` has them."""
    queries, keys, scores = room[0], room[1], room[3]
    rows, size = sizes
    start, window = seen
    steps = size // INPUTS
    shares, _ = _behind_scores(scores)
    first_end, last_end = _end(states, 0), _end(states, rows - 1)
    _multiply(rows, queries, keys, scores, steps)
    for block in range(blocks):
        key, following = start + KEYS * block, block + 1
        # A row has a reference if it sees the key before.
        is_known = key > 0 and (not window or last_end - window < key)
        is_whole = is_known and first_end >= key + KEYS
        places = (scores + block % 2 * BLOCK_BYTES, states, shares + block * TILE_BYTES)
        given = (queries, keys + STEP_BYTES * steps * following, scores + following % 2 * BLOCK_BYTES)
        counts, numbers = (rows, blocks * TILE_BYTES), (steps, 1 if following < blocks else 0)
        if rows > ROWS and is_whole:
            _whole_shares2(places, counts, (key, window), given, numbers)
        elif rows > ROWS:
            _shares2(places, counts, (key, window), given, numbers)
        elif is_whole:
            _whole_shares1(places, counts, (key, window), given, numbers)
        else:
            _shares1(places, counts, (key, window), given, numbers)


@ordered
def _set_references(room: Any, states: int, sizes: Any, seen: Any, blocks: int) -> None:
    """Make the largest score of some blocks the reference of rows whose sums of shares are too large. Make the sums of
    all rows those before these blocks. Arguments as `_add_blocks` has them.
    """
    queries, keys, _, scores, sums = room
    rows, size = sizes
    start, window = seen
    _, before = _behind_scores(scores)
    largest = pointer_to_floats(stack_floats(_AT_ONCE))
    for row in range(rows):
        largest[row] = LOWEST
    for block in range(blocks):
        _multiply(rows, queries, keys + STEP_BYTES * size // INPUTS * block, scores, size // INPUTS)
        for row in range(rows):
            end = _end(states, row) - start - KEYS * block
            own = pointer_to_floats(scores + 4 * KEYS * row)
            for key in range(max(0, end - window) if window else 0, min(KEYS, end)):
                largest[row] = max(largest[row], own[key])
    for row in range(rows):
        state = states + 4 * STATE_NUMBERS * row
        is_exceeding = exceeds(state)
        copy(before + 4 * LANES * row, state + 4 * LANES, LANES)
        if is_exceeding:
            numbers = pointer_to_floats(state)
            factor = power_of_two(numbers[0] - largest[row])
            numbers[0] = largest[row]
            _scale(state + 4 * LANES, LANES, factor)
            _scale(sums + 4 * size * row, size, factor)


@ordered
def _scale(place: int, count: int, factor: Any) -> None:
    numbers = pointer_to_floats(place)
    for position in range(count):
        numbers[position] *= factor


@ordered
def attend(queries: int, out: int, room: int, tile: Any, sizes: Any, cache: Any, scale: Any) -> None:
    """As `attend_by_vectors`, by tiles where the numbers of the cache allow it."""
    if cache[4] == BFLOAT16 and sizes[0] % INPUTS == 0:
        _attend_by_tiles(queries, out, room, tile, sizes, cache, scale)
    else:
        attend_by_vectors(queries, out, room, tile, sizes, cache, scale)
