"""Attention of decodes over the blocks of the KV cache, in place, by one Triton kernel.

Flash-Decoding (Dao et al., 2023): the blocks of a sequence are divided into a fixed number of splits, which run side by
side. The last of them to arrive adds the outputs of all, weighted by their parts of the softmax. Lengths and block
tables are read on the device, so that a launch depends on the number of sequences alone, as a CUDA graph needs it.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from frameworks.pytorch.device_kernels.float8 import widen_with_nan
from frameworks.pytorch.device_kernels.launching import dot_dtype, dot_rows

# The last split reads the outputs of all, alone: more of them would delay it.
_MAX_SPLITS = 32
# Programs that each processor of the device is given, so that it has loads in flight while others compute.
_PROGRAMS_PER_PROCESSOR = 2


@dataclass(frozen=True, slots=True)
class AttentionScores:
    """How scores are computed. `window`: tokens that a query attends to, its own included; 0: all. `softcap`: 0: none.

    `slopes`: float32 [query heads], ALiBi. `sinks`: float32 [query heads], a score without a value.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None


@triton.jit
def read_cached(own, is_read):
    """Load keys or values; bytes are float8."""
    if own.dtype.element_ty == tl.uint8:
        states = widen_with_nan(tl.load(own, mask=is_read, other=0))
    else:
        states = tl.load(own, mask=is_read, other=0.0)
    return states


@triton.jit
def _attend_split(
    query, keys, values, table, lengths, slopes, sinks, outputs, sums, arrivals, attended,
    scale, softcap, query_stride, sequence_stride, block_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr, HAS_SINKS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    sequence, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence)
    first = tl.maximum(length - WINDOW, 0) if WINDOW else 0
    first_block, end_block = first // TOKENS, tl.cdiv(length, TOKENS)
    blocks_per_split = tl.cdiv(end_block - first_block, SPLITS)
    low = first_block + split * blocks_per_split
    high = tl.minimum(low + blocks_per_split, end_block)
    rows, columns, tokens = tl.arange(0, GROUP_ROWS), tl.arange(0, COLUMNS), tl.arange(0, TOKENS)
    is_row, is_column = rows < GROUP, columns < SIZE
    is_own = is_row[:, None] & is_column[None, :]
    query_heads = head * GROUP + rows
    own_query = query + sequence.to(tl.int64) * query_stride + query_heads[:, None] * SIZE + columns[None, :]
    queries = tl.load(own_query, mask=is_own, other=0.0).to(DOT)
    if HAS_SLOPES:
        slope = tl.load(slopes + query_heads, mask=is_row, other=0.0)
    largest = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_ROWS], tl.float32)
    whole = tl.zeros([GROUP_ROWS, COLUMNS], tl.float32)
    for block in range(low, high):
        index = tl.load(table + sequence.to(tl.int64) * sequence_stride + block * block_stride).to(tl.int64)
        positions = block * TOKENS + tokens
        is_visible = (positions >= first) & (positions < length)
        # Other tokens are not read: earlier contents of a block may be NaN.
        inside = (index * HEADS + head) * TOKENS * SIZE + tokens[:, None] * SIZE + columns[None, :]
        is_read = is_visible[:, None] & is_column[None, :]
        key = read_cached(keys + inside, is_read).to(DOT)
        scores = tl.dot(queries, tl.trans(key), input_precision="ieee").to(tl.float32) * scale
        if HAS_SOFTCAP:
            # tanh(x) = 1 - 2 / (exp(2x) + 1)
            scores = softcap * (1.0 - 2.0 / (tl.exp(2.0 * scores / softcap) + 1.0))
        if HAS_SLOPES:
            scores += slope[:, None] * (positions - (length - 1))[None, :].to(tl.float32)
        scores = tl.where(is_visible[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - new_largest[:, None])
        factor = tl.exp(largest - new_largest)
        total = total * factor + tl.sum(weights, 1)
        value = read_cached(values + inside, is_read)
        whole = whole * factor[:, None]
        whole += tl.dot(weights.to(value.dtype).to(DOT), value.to(DOT), input_precision="ieee").to(tl.float32)
        largest = new_largest
    # Without a block: no part of the softmax.
    sum_of_split = tl.where(total == 0.0, float("-inf"), largest + tl.log(tl.where(total == 0.0, 1.0, total)))
    whole = whole / tl.where(total == 0.0, 1.0, total)[:, None]
    row = (sequence.to(tl.int64) * HEADS * GROUP + query_heads) * SPLITS
    is_last = True
    if SPLITS > 1:
        tl.store(sums + row + split, sum_of_split, mask=is_row)
        tl.store(outputs + (row + split)[:, None] * SIZE + columns[None, :], whole, mask=is_own)
        # All threads have stored before one of them counts the program.
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals + sequence * HEADS + head, 1, sem="acq_rel", scope="gpu")
        is_last = arrived == SPLITS - 1
    if is_last:
        if SPLITS > 1:
            tl.debug_barrier()
            largest = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
            for other in range(SPLITS):
                # Not by the cache of one processor: others wrote them.
                of_other = tl.load(sums + row + other, mask=is_row, other=0.0, cache_modifier=".cg")
                largest = tl.maximum(largest, of_other)
            whole = tl.zeros([GROUP_ROWS, COLUMNS], tl.float32)
        else:
            largest = sum_of_split
        if HAS_SINKS:
            sink = tl.load(sinks + query_heads, mask=is_row, other=0.0)
            largest = tl.maximum(largest, sink)
        # Padding has no tokens: its output is 0.
        largest = tl.where(largest == float("-inf"), 0.0, largest)
        if SPLITS > 1:
            total = tl.zeros([GROUP_ROWS], tl.float32)
            for other in range(SPLITS):
                of_other = tl.load(sums + row + other, mask=is_row, other=0.0, cache_modifier=".cg")
                part = outputs + (row + other)[:, None] * SIZE + columns[None, :]
                weight = tl.exp(of_other - largest)
                total += weight
                whole += tl.load(part, mask=is_own, other=0.0, cache_modifier=".cg") * weight[:, None]
            tl.store(arrivals + sequence * HEADS + head, 0)
        else:
            total = tl.exp(sum_of_split - largest)
            whole = whole * total[:, None]
        if HAS_SINKS:
            total += tl.exp(sink - largest)
        whole = whole / tl.where(total == 0.0, 1.0, total)[:, None]
        target = attended + (sequence.to(tl.int64) * HEADS * GROUP + query_heads)[:, None] * SIZE + columns[None, :]
        tl.store(target, whole.to(attended.dtype.element_ty), mask=is_own)


class DecodeAttention:
    """The kernel with its buffers, for one cache. Launches follow one another on one stream.

    The buffers never move: a captured graph has their addresses.
    """

    def __init__(
        self, heads: int, group: int, size: int, device: torch.device, *, num_processors: int | None = None
    ) -> None:
        """`heads`: of the keys. `group`: query heads of each. `size`: of a head. `num_processors`: None for the
        device's.
        """
        self._heads = heads
        # Programs of a launch with splits.
        self._programs = _PROGRAMS_PER_PROCESSOR * (num_processors or _num_processors(device))
        # Zero between launches: the last split of each head resets its own.
        self._arrivals = torch.zeros(self._programs, dtype=torch.int32, device=device)
        self._sums = torch.empty(self._programs * group, dtype=torch.float32, device=device)
        self._outputs = torch.empty(self._programs * group * size, dtype=torch.float32, device=device)

    def num_splits(self, sequences: int, blocks: int) -> int:
        """Return the splits that occupy the device, a power of 2. `blocks`: of the longest sequence."""
        wanted = min(_MAX_SPLITS, blocks, self._programs // max(1, sequences * self._heads))
        return 1 << max(0, wanted.bit_length() - 1)

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor,
        scores: AttentionScores, splits: int, attended: torch.Tensor,
    ) -> None:  # fmt: skip
        """Write into `attended`, [sequences, query heads, size].

        `query`: [sequences, query heads, size], the heads of a sequence one after the other. `keys`, `values`: of a
        layer of the cache, [blocks, heads, block tokens, size]; uint8: the bytes of float8_e4m3fn. `table`: int32
        [sequences, blocks] with any strides, those of each sequence in their order. `lengths`: int32 [sequences],
        tokens of each, its own included; 0: padding, whose output is 0. `splits`: of `num_splits`.
        """
        sequences, query_heads, size = query.shape
        heads, tokens = keys.shape[1], keys.shape[2]
        group = query_heads // heads
        assert splits == 1 or sequences * heads * splits <= self._programs
        _attend_split[(sequences, heads, splits)](
            query, keys, values, table, lengths,
            lengths if scores.slopes is None else scores.slopes, lengths if scores.sinks is None else scores.sinks,
            self._outputs, self._sums, self._arrivals, attended,
            scores.scale, scores.softcap, query.stride(0), table.stride(0), table.stride(1),
            HEADS=heads, GROUP=group, GROUP_ROWS=dot_rows(group), SIZE=size, COLUMNS=dot_rows(size), TOKENS=tokens,
            SPLITS=splits, WINDOW=scores.window, HAS_SOFTCAP=scores.softcap != 0.0,
            HAS_SLOPES=scores.slopes is not None, HAS_SINKS=scores.sinks is not None,
            DOT=dot_dtype(keys.dtype, query.dtype),
        )  # fmt: skip


def _num_processors(device: torch.device) -> int:
    """Return the streaming multiprocessors of a device; 8 for one that is simulated."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8
