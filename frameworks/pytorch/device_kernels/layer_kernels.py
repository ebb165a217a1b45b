"""Triton kernels of a decoder's layer: norm with residual, rotation with the write into the cache, gated units."""

import torch
import triton
import triton.language as tl

from frameworks.pytorch.device_kernels.float8 import narrow

# Columns of a norm for each warp beyond the first four: 16 numbers a thread.
_WARP_COLUMNS = 512
# Columns that one program of the gate computes.
_GATE_COLUMNS = 1024


@triton.jit
def _norm(states, residual, weight, normed, size, epsilon, HAS_RESIDUAL: tl.constexpr, COLUMNS: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, COLUMNS)
    is_column = columns < size
    own = row * size + columns
    values = tl.load(states + own, mask=is_column, other=0.0)
    if HAS_RESIDUAL:
        # The sum is rounded to the dtype of the states, as torch rounds it, and stays the residual.
        wide_sum = values.to(tl.float32) + tl.load(residual + own, mask=is_column, other=0.0).to(tl.float32)
        values = wide_sum.to(values.dtype)
        tl.store(residual + own, values, mask=is_column)
    wide = values.to(tl.float32)
    scaled = wide / tl.sqrt(tl.sum(wide * wide, 0) / size + epsilon)
    factors = tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
    tl.store(normed + own, (scaled * factors).to(values.dtype), mask=is_column)


def norm(
    states: torch.Tensor, weight: torch.Tensor, epsilon: float, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the root mean square norm of `states`, [rows, size], times `weight`, [size], computed in float32.

    With a `residual`, [rows, size], the norm is that of their sum, which replaces the residual.
    """
    rows, size = states.shape
    normed = torch.empty_like(states)
    columns = triton.next_power_of_2(size)
    if rows:
        _norm[(rows,)](
            states, states if residual is None else residual, weight, normed, size, epsilon,
            HAS_RESIDUAL=residual is not None, COLUMNS=columns, num_warps=min(16, max(4, columns // _WARP_COLUMNS)),
        )  # fmt: skip
    return normed


@triton.jit
def _as_cached(states, cache):
    """Convert states to the dtype of keys or values; bytes are float8."""
    if cache.dtype.element_ty == tl.uint8:
        cached = narrow(states.to(tl.float32))
    else:
        cached = states.to(cache.dtype.element_ty)
    return cached


@triton.jit
def _rotate_and_write(
    heads, cosine, sine, query_norm, key_norm, keys, values, blocks, offsets, row_stride, epsilon,
    QUERY_HEADS: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr, HAS_NORMS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, COLUMNS)
    is_column = columns < HALF
    low = heads + row * row_stride + head * SIZE + columns
    first = tl.load(low, mask=is_column, other=0.0)
    second = tl.load(low + HALF, mask=is_column, other=0.0)
    if head < QUERY_HEADS + HEADS:
        wide, other = first.to(tl.float32), second.to(tl.float32)
        if HAS_NORMS:
            weight = query_norm if head < QUERY_HEADS else key_norm
            length = tl.sqrt((tl.sum(wide * wide, 0) + tl.sum(other * other, 0)) / SIZE + epsilon)
            wide = wide / length * tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
            other = other / length * tl.load(weight + HALF + columns, mask=is_column, other=0.0).to(tl.float32)
        turn = row * HALF + columns
        across = tl.load(cosine + turn, mask=is_column, other=0.0)
        along = tl.load(sine + turn, mask=is_column, other=0.0)
        first = (wide * across - other * along).to(heads.dtype.element_ty)
        second = (other * across + wide * along).to(heads.dtype.element_ty)
    if head < QUERY_HEADS:
        tl.store(low, first, mask=is_column)
        tl.store(low + HALF, second, mask=is_column)
    else:
        block = tl.load(blocks + row).to(tl.int64)
        # Padding has no block.
        is_written = is_column & (tl.full([COLUMNS], 0, tl.int64) + block >= 0)
        own = head - QUERY_HEADS
        inside = tl.load(offsets + row).to(tl.int64) * SIZE + columns
        if own < HEADS:
            target = keys + (block * HEADS + own) * TOKENS * SIZE + inside
            tl.store(target, _as_cached(first, keys), mask=is_written)
            tl.store(target + HALF, _as_cached(second, keys), mask=is_written)
        else:
            target = values + (block * HEADS + own - HEADS) * TOKENS * SIZE + inside
            tl.store(target, _as_cached(first, values), mask=is_written)
            tl.store(target + HALF, _as_cached(second, values), mask=is_written)


def rotate_and_write(
    heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, norms: tuple[torch.Tensor, torch.Tensor] | None,
    epsilon: float, keys: torch.Tensor, values: torch.Tensor, blocks: torch.Tensor, offsets: torch.Tensor,
) -> None:  # fmt: skip
    """Rotate the queries in place, and write rotated keys, and values, into a layer of the cache.

    `heads`: [rows, query heads + 2 * heads, size], queries, keys, values. `cosine`, `sine`: float32 [rows, size / 2];
    element i of a head pairs with i + size / 2. `norms`: weights [size] of the norms of queries and of keys before the
    rotation. `keys`, `values`: [blocks, heads, block tokens, size]; uint8: the bytes of float8_e4m3fn. `blocks`,
    `offsets`: int32 [rows], the block of each token and its position in it; block -1: padding.
    """
    rows, _, size = heads.shape
    key_heads, tokens = keys.shape[1], keys.shape[2]
    query_norm, key_norm = norms or (cosine, cosine)
    _rotate_and_write[(rows, heads.shape[1])](
        heads, cosine, sine, query_norm, key_norm, keys, values, blocks, offsets, heads.stride(0), epsilon,
        QUERY_HEADS=heads.shape[1] - 2 * key_heads, HEADS=key_heads, SIZE=size, HALF=size // 2,
        COLUMNS=triton.next_power_of_2(size // 2), TOKENS=tokens, HAS_NORMS=norms is not None,
    )  # fmt: skip


@triton.jit
def _write(
    states, keys, values, blocks, offsets, row_stride, head_stride,
    HEADS: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    row, head, columns = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, COLUMNS)
    block = tl.load(blocks + row).to(tl.int64)
    is_written = (columns < SIZE) & (tl.full([COLUMNS], 0, tl.int64) + block >= 0)
    own = tl.load(states + row * row_stride + head * head_stride + columns, mask=columns < SIZE, other=0.0)
    inside = tl.load(offsets + row).to(tl.int64) * SIZE + columns
    if head < HEADS:
        target = keys + (block * HEADS + head) * TOKENS * SIZE + inside
        tl.store(target, _as_cached(own, keys), mask=is_written)
    else:
        target = values + (block * HEADS + head - HEADS) * TOKENS * SIZE + inside
        tl.store(target, _as_cached(own, values), mask=is_written)


def write(
    states: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, blocks: torch.Tensor, offsets: torch.Tensor
) -> None:
    """Write keys and values, [rows, 2 * heads, size], the keys first, into a layer of the cache.

    The rest as for `rotate_and_write`.
    """
    rows, heads, size = states.shape
    _write[(rows, heads)](
        states, keys, values, blocks, offsets, states.stride(0), states.stride(1),
        HEADS=heads // 2, SIZE=size, COLUMNS=triton.next_power_of_2(size), TOKENS=keys.shape[2],
    )  # fmt: skip


@triton.jit
def _gate(joined, gated, size, IS_GELU: tl.constexpr, COLUMNS: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < size
    gate = tl.load(joined + row * 2 * size + columns, mask=is_column, other=0.0)
    wide = gate.to(tl.float32)
    if IS_GELU:
        # tanh(x) = 1 - 2 / (exp(2x) + 1)
        inner = 0.7978845608028654 * (wide + 0.044715 * wide * wide * wide)
        wide = 0.5 * wide * (2.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0))
    else:
        wide = wide / (1.0 + tl.exp(-wide))
    up = tl.load(joined + row * 2 * size + size + columns, mask=is_column, other=0.0).to(tl.float32)
    tl.store(gated + row * size + columns, (wide * up).to(gate.dtype), mask=is_column)


def gated(joined: torch.Tensor, *, is_gelu: bool = False) -> torch.Tensor:
    """Return SiLU, or GELU by tanh, of the first half of [rows, 2 * size], times the second: [rows, size]."""
    rows, size = joined.shape[0], joined.shape[1] // 2
    result = joined.new_empty(rows, size)
    columns = min(_GATE_COLUMNS, triton.next_power_of_2(size))
    if rows:
        _gate[(rows, triton.cdiv(size, columns))](joined, result, size, IS_GELU=is_gelu, COLUMNS=columns)
    return result
