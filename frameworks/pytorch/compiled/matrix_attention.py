"""Attention by the matrix tiles of Intel's AMX, where keys and values are bfloat16.

As attention.py, with queries and shares that are rounded to bfloat16. Exponentials and sums are float32. 16 or 32 rows
are multiplied at once; where there are fewer, the results of the others are not read. Four adjacent blocks of keys, as
the text numbers them, are added at once. Those that a row does not see add zeros to its sums. So a row's result depends
on its own keys alone.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from frameworks.pytorch.compiled.attention import (
    END,
    STATE_NUMBERS,
    attend_by_vectors,
    begin_rows,
    finish_rows,
    places_in,
)
from frameworks.pytorch.compiled.attention_tiles import KEYS, fetch_lines, shares_of
from frameworks.pytorch.compiled.bfloat16_rows import write_rounded
from frameworks.pytorch.compiled.elementwise import multiply_add
from frameworks.pytorch.compiled.formats import VECTORS
from frameworks.pytorch.compiled.jit import llvm_function, ordered, pointer_to_floats, pointer_to_integers, stack_floats
from frameworks.pytorch.compiled.matrix_tiles import (
    INPUTS,
    ROWS,
    STEP_BYTES,
    TILE_BYTES,
    configure,
    matrix_tile,
    release,
)
from frameworks.pytorch.compiled.rows import BFLOAT16
from frameworks.pytorch.compiled.tiles import BYTES, PARTS, at, load, number, splat

_AT_ONCE = 2 * ROWS
"""Rows of a product."""
_BLOCKS = 4
"""Blocks of keys whose scores become shares together: a row's largest score and factor are found for all of them."""
_NUMBERS = _AT_ONCE * KEYS
_SCORES, _SHARES = _BLOCKS * _NUMBERS, _BLOCKS * _NUMBERS // 2
_ROW = ir.VectorType(ir.IntType(16), KEYS)
_one_tile, _two_tiles = matrix_tile(1), matrix_tile(2)
_shares_of_blocks = shares_of(_BLOCKS, 4 * _NUMBERS)


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
def _add_products(_context: Any, _products: Any, _sums: Any, _factor: Any) -> Any:
    """(addresses of 32 products of a row, and of its sums; factor) → nothing, after sums = sums * factor + products."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        products, sums = (builder.inttoptr(each, BYTES) for each in arguments[:2])
        factor, kind = splat(builder, arguments[2], VECTORS.lanes), VECTORS.floats
        for part in PARTS:
            offset = 4 * VECTORS.lanes * part
            before = load(builder, at(builder, sums, offset), kind)
            total = multiply_add(builder, before, factor, load(builder, at(builder, products, offset), kind))
            builder.store(total, builder.bitcast(at(builder, sums, offset), kind.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), write


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
    rows, row_bytes = tokens * heads, 4 * size
    sums, states, _, wide_keys, _ = places_in(room, row_bytes)
    # The rounded queries take the place of those of float32, which are written where the keys come next.
    begin_rows(queries, wide_keys, (tokens, heads, query_bytes, position), (size, row_bytes), (sums, states), scale)
    steps = size // INPUTS
    for row in range(rows):
        for step in range(steps):
            place = room + (row // ROWS * steps + step) * TILE_BYTES + row % ROWS * 2 * INPUTS
            write_rounded(wide_keys + row * row_bytes + 4 * INPUTS * step, place)
    oldest = max(0, position + 1 - window) // KEYS if window else 0
    end = position + tokens
    own_values = wide_keys + _BLOCKS * 2 * KEYS * size
    configure()
    for start in range(oldest // _BLOCKS * _BLOCKS, (end + KEYS - 1) // KEYS, _BLOCKS):
        seen = (start, oldest, end)
        _order_blocks((keys, values, blocks, block_bytes), (wide_keys, own_values), seen, size)
        for first in range(0, rows, _AT_ONCE):
            own = (room + first * 2 * size, wide_keys, own_values, sums + first * row_bytes)
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

    `room`: addresses of the queries, the keys and the values in the order of the tiles, and of the sums. `sizes`: rows,
    size of a head. `seen`: position of the first key, and the window, 0 for none.
    """
    queries, keys, values, sums = room
    rows, size = sizes
    start, window = seen
    blocks = min(
        _BLOCKS, (pointer_to_integers(states + 4 * STATE_NUMBERS * (rows - 1))[END] - start + KEYS - 1) // KEYS
    )
    if blocks <= 0 or (window and pointer_to_integers(states)[END] - window >= start + _BLOCKS * KEYS):
        return
    scores, shares, products = stack_floats(_SCORES), stack_floats(_SHARES), stack_floats(_NUMBERS)
    factors = pointer_to_floats(stack_floats(_AT_ONCE))
    steps = size // INPUTS
    for block in range(blocks):
        _multiply(rows, queries, keys + STEP_BYTES * steps * block, scores + 4 * _NUMBERS * block, steps)
    for row in range(rows):
        state, own = states + 4 * STATE_NUMBERS * row, scores + 4 * KEYS * row
        last = pointer_to_integers(state)[END] - start
        factors[row] = _shares_of_blocks(own, state, last - window if window else 0, last)
        place = shares + row // ROWS * blocks * TILE_BYTES + row % ROWS * 2 * KEYS
        for block in range(blocks):
            write_rounded(own + 4 * _NUMBERS * block, place + TILE_BYTES * block)
    for step in range(steps):
        _multiply(rows, shares, values + STEP_BYTES * _BLOCKS * step, products, blocks)
        for row in range(rows):
            _add_products(products + 4 * INPUTS * row, sums + 4 * (size * row + INPUTS * step), factors[row])


@ordered
def attend(queries: int, out: int, room: int, tile: Any, sizes: Any, cache: Any, scale: Any) -> None:
    """As `attend_by_vectors`, by tiles where the numbers of the cache allow it."""
    if cache[4] == BFLOAT16 and sizes[0] % INPUTS == 0:
        _attend_by_tiles(queries, out, room, tile, sizes, cache, scale)
    else:
        attend_by_vectors(queries, out, room, tile, sizes, cache, scale)
