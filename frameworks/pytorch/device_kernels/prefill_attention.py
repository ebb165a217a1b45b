"""Attention of prefills over the blocks of the KV cache, in place, by one Triton kernel for all prompts of a step."""

import torch
import triton
import triton.language as tl

from frameworks.pytorch.device_kernels.decode_attention import AttentionScores, read_cached
from frameworks.pytorch.device_kernels.launching import dot_dtype, dot_rows

# Of a tile, by the bytes of a head: query tokens, key tokens, and stages of loads ahead. A tile takes at most 96 KiB of
# shared memory, which all cards from Ampere on have, and its numbers fit the registers.
_TILES = {256: (64, 32, 3), 512: (64, 32, 2), 1024: (32, 32, 1)}
# On Hopper and Blackwell of data centres a group of warps multiplies 64 rows at once, with operands in shared memory.
_WIDE_TILE = (64, 64, 3)
_HAS_WARP_GROUPS = (9, 10)


@triton.jit
def _attend_part(
    query, keys, values, table, firsts, counts, starts, slopes, sinks, attended,
    scale, softcap, query_stride, part_stride, block_stride,
    QUERY_HEADS: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr, TOKENS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SLOPES: tl.constexpr,
    HAS_SINKS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    tile, query_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count = tl.load(counts + part)
    if tile * ROWS < count:
        first, start = tl.load(firsts + part).to(tl.int64), tl.load(starts + part)
        head = query_head // (QUERY_HEADS // HEADS)
        rows, columns, tokens = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, KEYS)
        is_column = columns < SIZE
        is_own = (rows < count)[:, None] & is_column[None, :]
        queries = tl.load(
            query + (first + rows)[:, None] * query_stride + query_head * SIZE + columns[None, :],
            mask=is_own,
            other=0.0,
        ).to(DOT)
        positions = start + rows
        low = tl.maximum(start + tile * ROWS + 1 - WINDOW, 0) // KEYS * KEYS if WINDOW else 0
        high = start + tl.minimum(tile * ROWS + ROWS, count)
        largest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        if HAS_SINKS:
            largest = tl.zeros([ROWS], tl.float32) + tl.load(sinks + query_head)
            total += 1.0
        whole = tl.zeros([ROWS, COLUMNS], tl.float32)
        if HAS_SLOPES:
            slope = tl.load(slopes + query_head)
        own_table = table + part.to(tl.int64) * part_stride
        for first_key in range(low, high, KEYS):
            others = first_key + tokens
            # Tokens behind the part are not read: earlier contents of a block may be NaN.
            is_token = others < start + count
            blocks = tl.load(own_table + others // TOKENS * block_stride, mask=is_token, other=0).to(tl.int64)
            of_tokens = (blocks * HEADS + head) * TOKENS + others % TOKENS
            own = of_tokens[:, None] * SIZE + columns[None, :]
            is_read = is_token[:, None] & is_column[None, :]
            key = read_cached(keys + own, is_read).to(DOT)
            scores = tl.dot(queries, tl.trans(key), input_precision="ieee").to(tl.float32) * scale
            if HAS_SOFTCAP:
                scores = softcap * (1.0 - 2.0 / (tl.exp(2.0 * scores / softcap) + 1.0))
            if HAS_SLOPES:
                scores += slope * (others[None, :] - positions[:, None]).to(tl.float32)
            is_visible = others[None, :] <= positions[:, None]
            if WINDOW:
                is_visible = is_visible & (others[None, :] > positions[:, None] - WINDOW)
            scores = tl.where(is_visible, scores, float("-inf"))
            new_largest = tl.maximum(largest, tl.max(scores, 1))
            # A row may see nothing of a block of the window.
            safe = tl.where(new_largest == float("-inf"), 0.0, new_largest)
            weights = tl.exp(scores - safe[:, None])
            factor = tl.exp(largest - safe)
            total = total * factor + tl.sum(weights, 1)
            value = read_cached(values + own, is_read)
            whole = whole * factor[:, None]
            whole += tl.dot(weights.to(value.dtype).to(DOT), value.to(DOT), input_precision="ieee").to(tl.float32)
            largest = new_largest
        whole = whole / tl.where(total == 0.0, 1.0, total)[:, None]
        target = attended + ((first + rows)[:, None] * QUERY_HEADS + query_head) * SIZE + columns[None, :]
        tl.store(target, whole.to(attended.dtype.element_ty), mask=is_own)


def tile_of(head_bytes: int, capability: int) -> tuple[int, int, int]:
    """Return query tokens, key tokens and stages of loads for heads of this size, a power of 2. `capability`: the major
    number.
    """
    if head_bytes <= 256 and capability in _HAS_WARP_GROUPS:
        return _WIDE_TILE
    return next((tile for most, tile in _TILES.items() if head_bytes <= most), (16, 16, 1))


def attend_prefills(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, firsts: torch.Tensor,
    counts: torch.Tensor, starts: torch.Tensor, most_tokens: int, scores: AttentionScores, attended: torch.Tensor,
) -> None:  # fmt: skip
    """Write the rows of the prefills into `attended`, [rows, query heads, size].

    `query`: [rows, query heads, size], the heads of a row one after the other. `keys`, `values`: of a layer, [blocks,
    heads, block tokens, size], with the tokens of the step; uint8: the bytes of float8_e4m3fn. `table`: int32
    [prefills, blocks] with any strides.
    `firsts`, `counts`, `starts`: int32 [prefills], the first row of each, its tokens, and those before them.
    `most_tokens`: of a prefill.
    """
    query_heads, size = query.shape[1:]
    heads, tokens = keys.shape[1], keys.shape[2]
    columns = dot_rows(size)
    capability = torch.cuda.get_device_capability(keys.device)[0] if keys.is_cuda else 0
    # The operands of a matmul have 16 bits at least.
    rows, key_tokens, stages = tile_of(columns * max(2, keys.element_size()), capability)
    grid = (triton.cdiv(most_tokens, rows), query_heads, len(counts))
    _attend_part[grid](
        query, keys, values, table, firsts, counts, starts,
        counts if scores.slopes is None else scores.slopes, counts if scores.sinks is None else scores.sinks, attended,
        scores.scale, scores.softcap, query.stride(0), table.stride(0), table.stride(1),
        QUERY_HEADS=query_heads, HEADS=heads, SIZE=size, COLUMNS=columns, TOKENS=tokens, ROWS=rows, KEYS=key_tokens,
        WINDOW=scores.window, HAS_SOFTCAP=scores.softcap != 0.0, HAS_SLOPES=scores.slopes is not None,
        HAS_SINKS=scores.sinks is not None, DOT=dot_dtype(keys.dtype, query.dtype), num_stages=stages,
    )  # fmt: skip
