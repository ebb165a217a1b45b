"""Triton kernels of sampling: a token id of each row of logits stays on the device, for the next step to read.

The weights of a row are integers, as in `generation/sampling/multinomial.py`: sums are exact in any order. So the
token is the one that the CPU samples, where both compute the same exponentials. Nothing is sorted: the candidates of
top-k, top-p and min-p are few. They are collected, and their limits are found by bisection over the bits of a weight.
"""

from dataclasses import dataclass, fields

import torch
import triton
import triton.language as tl

GREEDY, DRAWN, TRUNCATED = 0, 1, 2
"""How a row is sampled: the largest logit, from all tokens, or from those that top-k, top-p and min-p keep."""
PARAMETERS = 12
"""Of a row: kind, temperature, top_k, top_p, min_p and the uniform random number; the first of its edits and their end;
the row of the last step that has its last token, or -1, and the penalties of that token: divisor, frequency, presence.
"""
# Columns that one program reads, and candidates that one pass reads.
_COLUMNS = 4096
_CANDIDATES = 1024
# With more columns a thread spills registers.
_WARPS = 8
# Candidates have at least 2 ** -n of the largest weight, with the least n of these that suffices; else all tokens.
_LEVELS = 16


@triton.jit
def _largest(logits, row_stride, size, maxima, positions, num_found, SPLITS: tl.constexpr, COLUMNS: tl.constexpr):
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = split * COLUMNS + tl.arange(0, COLUMNS)
    values = tl.load(logits + row * row_stride + columns, mask=columns < size, other=-float("inf")).to(tl.float32)
    is_nan = values != values
    value, position = tl.max(tl.where(is_nan, float("inf"), values), 0, return_indices=True)
    own = row * SPLITS + split
    tl.store(maxima + own, tl.where(tl.max(is_nan.to(tl.int32), 0) > 0, float("nan"), value))
    tl.store(positions + own, split * COLUMNS + position)
    tl.store(num_found + row, 0, mask=split == 0)


@triton.jit
def _row_maximum(maxima, row, SPLITS: tl.constexpr, SPLIT_ROWS: tl.constexpr):
    """Return the largest logit of a row, NaN where one is."""
    splits = tl.arange(0, SPLIT_ROWS)
    values = tl.load(maxima + row * SPLITS + splits, mask=splits < SPLITS, other=-float("inf"))
    is_nan = values != values
    largest = tl.max(tl.where(is_nan, -float("inf"), values), 0)
    return tl.where(tl.max(is_nan.to(tl.int32), 0) > 0, float("nan"), largest)


@triton.jit
def _weigh(
    logits, row_stride, size, parameters, maxima, weights, totals, levels, max_weight,
    SPLITS: tl.constexpr, SPLIT_ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEVELS: tl.constexpr,
    NUM_PARAMETERS: tl.constexpr,
):  # fmt: skip
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kind = tl.load(parameters + row * NUM_PARAMETERS)
    if kind > 0:
        temperature = tl.load(parameters + row * NUM_PARAMETERS + 1).to(tl.float32)
        largest = _row_maximum(maxima, row, SPLITS, SPLIT_ROWS)
        columns = split * COLUMNS + tl.arange(0, COLUMNS)
        is_column = columns < size
        values = tl.load(logits + row * row_stride + columns, mask=is_column, other=-float("inf")).to(tl.float32)
        # Below -60 the weight is 0.
        scaled = tl.exp(tl.maximum((values - largest) / temperature, -60.0)) * max_weight
        # From 2 ** 23 on a float32 has no fraction.
        rounded = tl.where(is_column, tl.where(scaled < 8388608.0, tl.floor(scaled + 0.5), scaled), 0.0)
        tl.store(weights + (row * SPLITS + split) * COLUMNS + tl.arange(0, COLUMNS), rounded)
        whole = rounded.to(tl.int64)
        own = row * SPLITS + split
        tl.store(totals + own, tl.sum(whole, 0))
        if kind > 1:
            least = max_weight
            for level in range(LEVELS):
                least = least * 0.5
                is_above = rounded >= least
                tl.store(levels + own * 2 * LEVELS + 2 * level, tl.sum(is_above.to(tl.int64), 0))
                tl.store(levels + own * 2 * LEVELS + 2 * level + 1, tl.sum(tl.where(is_above, whole, 0), 0))


@triton.jit
def _total_of(counts, row, stride, SPLITS: tl.constexpr, SPLIT_ROWS: tl.constexpr):
    """Sum a number of all splits of a row, `stride` apart: int64."""
    splits = tl.arange(0, SPLIT_ROWS)
    return tl.sum(tl.load(counts + (row * SPLITS + splits) * stride, mask=splits < SPLITS, other=0), 0)


@triton.jit
def _collect(
    parameters, weights, totals, levels, found, found_columns, num_found, size, max_weight,
    SPLITS: tl.constexpr, SPLIT_ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEVELS: tl.constexpr,
    NUM_PARAMETERS: tl.constexpr,
):  # fmt: skip
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    own = parameters + row * NUM_PARAMETERS
    if tl.load(own) > 1:
        top_k, top_p, min_p = tl.load(own + 2).to(tl.int64), tl.load(own + 3), tl.load(own + 4)
        total = _total_of(totals, row, 1, SPLITS, SPLIT_ROWS).to(tl.float64)
        least = max_weight
        bound = tl.full([], -1.0, tl.float32)
        for level in range(LEVELS):
            least = least * 0.5
            count = _total_of(levels + 2 * level, row, 2 * LEVELS, SPLITS, SPLIT_ROWS)
            above = _total_of(levels + 2 * level + 1, row, 2 * LEVELS, SPLITS, SPLIT_ROWS)
            # With top-k, top-p is a part of the k largest weights: so these have to be there.
            is_enough = tl.where(top_k < size, count >= top_k, above.to(tl.float64) >= top_p * total)
            is_likely = ((top_k >= size) | (top_p >= 1.0)) & (min_p * max_weight >= least)
            suffices = is_enough | is_likely
            bound = tl.where((bound < 0) & suffices, least, bound)
        columns = split * COLUMNS + tl.arange(0, COLUMNS)
        first = row * SPLITS * COLUMNS
        values = tl.load(weights + first + columns)
        is_found = (values >= bound) & (columns < size)
        slots = tl.cumsum(is_found.to(tl.int32), 0) - 1
        start = tl.atomic_add(num_found + row, tl.sum(is_found.to(tl.int32), 0))
        tl.store(found + first + start + slots, values, mask=is_found)
        tl.store(found_columns + first + start + slots, columns, mask=is_found)


@triton.jit
def _count_from(found, count, least, CANDIDATES: tl.constexpr):
    """Return the number of candidates with at least the weight `least`, and their sum: int64."""
    number = tl.zeros([CANDIDATES], tl.int64)
    total = tl.zeros([CANDIDATES], tl.int64)
    for start in range(0, count, CANDIDATES):
        slots = start + tl.arange(0, CANDIDATES)
        values = tl.load(found + slots, mask=slots < count, other=-1.0)
        is_above = values >= least
        number += is_above.to(tl.int64)
        total += tl.where(is_above, values.to(tl.int64), 0)
    return tl.sum(number, 0), tl.sum(total, 0)


@triton.jit
def _largest_reaching(found, count, least_number, least_total, CANDIDATES: tl.constexpr):
    """Return the largest weight from which on there are so many candidates with such a sum, float32, and number and
    sum of the candidates above it. The weight is 0 where all of them do not suffice.

    Bisection over the bits of float32, whose order is that of the weights. Both ends move to weights that occur: it
    takes as many passes as the logarithm of their number.
    """
    low = tl.full([], 0x7F800000, tl.int32)
    high = tl.full([], 0, tl.int32)
    for start in range(0, count, CANDIDATES):
        slots = start + tl.arange(0, CANDIDATES)
        bits = tl.load(found + slots, mask=slots < count, other=0.0).to(tl.int32, bitcast=True)
        low = tl.minimum(low, tl.min(tl.where(slots < count, bits, 0x7F800000), 0))
        high = tl.maximum(high, tl.max(bits, 0))
    number, total = _count_from(found, count, 0.0, CANDIDATES)
    is_reached = (number >= least_number) & (total.to(tl.float64) >= least_total)
    low = tl.where(is_reached, low, 0)
    high = tl.where(is_reached, high, 0)
    while low < high:
        middle = low + (high - low + 1) // 2
        above = high
        below = low
        counts = tl.zeros([CANDIDATES], tl.int64)
        sums = tl.zeros([CANDIDATES], tl.int64)
        for start in range(0, count, CANDIDATES):
            slots = start + tl.arange(0, CANDIDATES)
            values = tl.load(found + slots, mask=slots < count, other=0.0)
            bits = values.to(tl.int32, bitcast=True)
            is_above = (bits >= middle) & (slots < count)
            counts += is_above.to(tl.int64)
            sums += tl.where(is_above, values.to(tl.int64), 0)
            above = tl.minimum(above, tl.min(tl.where(is_above, bits, high), 0))
            below = tl.maximum(below, tl.max(tl.where(is_above, low, bits), 0))
        is_reached = (tl.sum(counts, 0) >= least_number) & (tl.sum(sums, 0).to(tl.float64) >= least_total)
        low = tl.where(is_reached, above, low)
        high = tl.where(is_reached, high, below)
    number, total = _count_from(found, count, (low + 1).to(tl.float32, bitcast=True), CANDIDATES)
    return low.to(tl.float32, bitcast=True), number, total


@triton.jit
def _nth_column(found, found_columns, count, weight, nth, size, CANDIDATES: tl.constexpr):
    """Return the column of the candidate of this weight before which there are `nth` others."""
    low = tl.full([], 0, tl.int32)
    high = low + size
    while low < high:
        middle = (low + high) // 2
        number = tl.zeros([CANDIDATES], tl.int32)
        for start in range(0, count, CANDIDATES):
            slots = start + tl.arange(0, CANDIDATES)
            is_own = slots < count
            values = tl.load(found + slots, mask=is_own, other=-1.0)
            columns = tl.load(found_columns + slots, mask=is_own, other=0)
            number += ((values == weight) & (columns <= middle)).to(tl.int32)
        reaches = tl.sum(number, 0) > nth
        high = tl.where(reaches, middle, high)
        low = tl.where(reaches, low, middle + 1)
    return low


@triton.jit
def _draw_from_candidates(
    own, found, found_columns, count, total, size, max_weight, CANDIDATES: tl.constexpr
):  # fmt: skip
    top_k, top_p, min_p, uniform = tl.load(own + 2).to(tl.int64), tl.load(own + 3), tl.load(own + 4), tl.load(own + 5)
    kept = top_k
    if top_k < size:
        weight, number, above = _largest_reaching(found, count, top_k, 0.0, CANDIDATES)
        total = above + (top_k - number) * weight.to(tl.int64)
    if top_p < 1.0:
        wanted = tl.maximum(top_p * total.to(tl.float64), 1.0)
        weight, number, above = _largest_reaching(found, count, 1, wanted, CANDIDATES)
        # The weight is 0 where min-p left too few candidates for top-p.
        more = tl.ceil((wanted - above.to(tl.float64)) / tl.maximum(weight, 1.0).to(tl.float64)).to(tl.int64)
        kept = tl.minimum(kept, number + more)
    if min_p > 0.0:
        number, above = _count_from(found, count, min_p * max_weight, CANDIDATES)
        kept = tl.minimum(kept, number)
    kept = tl.maximum(kept, 1)
    weight, number, above = _largest_reaching(found, count, kept, 0.0, CANDIDATES)
    kept_total = above + (kept - number) * weight.to(tl.int64)
    wide = kept_total.to(tl.float64)
    target = tl.minimum(tl.floor(wide * uniform), wide - 1.0)
    weight, number, above = _largest_reaching(found, count, 1, target + 1.0, CANDIDATES)
    nth = ((target.to(tl.int64) - above) // weight.to(tl.int64)).to(tl.int32)
    return _nth_column(found, found_columns, count, weight, nth, size, CANDIDATES)


@triton.jit
def _draw_from_all(
    own, weights, totals, row, total, SPLITS: tl.constexpr, SPLIT_ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    wide = total.to(tl.float64)
    target = tl.minimum(tl.floor(wide * tl.load(own + 5)), wide - 1.0).to(tl.int64)
    splits = tl.arange(0, SPLIT_ROWS)
    of_splits = tl.load(totals + row * SPLITS + splits, mask=splits < SPLITS, other=0)
    ends = tl.cumsum(of_splits, 0)
    split = tl.minimum(tl.sum((ends <= target).to(tl.int32), 0), SPLITS - 1)
    before = tl.sum(tl.where(splits < split, of_splits, 0), 0)
    columns = tl.arange(0, COLUMNS)
    within = tl.cumsum(tl.load(weights + (row * SPLITS + split) * COLUMNS + columns).to(tl.int64), 0)
    return split * COLUMNS + tl.sum((within <= target - before).to(tl.int32), 0)


@triton.jit
def _choose(
    parameters, maxima, positions, weights, totals, found, found_columns, num_found, ids, row_maxima, size, max_weight,
    SPLITS: tl.constexpr, SPLIT_ROWS: tl.constexpr, COLUMNS: tl.constexpr, CANDIDATES: tl.constexpr,
    NUM_PARAMETERS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    own = parameters + row * NUM_PARAMETERS
    kind = tl.load(own)
    largest = _row_maximum(maxima, row, SPLITS, SPLIT_ROWS)
    splits = tl.arange(0, SPLIT_ROWS)
    is_split = splits < SPLITS
    of_splits = tl.load(maxima + row * SPLITS + splits, mask=is_split, other=-float("inf"))
    columns = tl.load(positions + row * SPLITS + splits, mask=is_split, other=0)
    chosen = tl.min(tl.where((of_splits == largest) & is_split, columns, size - 1), 0)
    # The difference is NaN for an infinite maximum too: nothing is drawn then, and the host reports the row.
    if (kind > 0) & (largest - largest == 0.0):
        total = _total_of(totals, row, 1, SPLITS, SPLIT_ROWS)
        first = row * SPLITS * COLUMNS
        if kind > 1:
            count = tl.load(num_found + row)
            chosen = _draw_from_candidates(
                own, found + first, found_columns + first, count, total, size, max_weight, CANDIDATES
            )
        else:
            chosen = _draw_from_all(own, weights, totals, row, total, SPLITS, SPLIT_ROWS, COLUMNS)
    # A row that fails has an id too: the next step may have begun with it.
    tl.store(ids + row, tl.maximum(tl.minimum(chosen, size - 1), 0).to(tl.int32))
    tl.store(row_maxima + row, largest)


@dataclass(frozen=True, slots=True)
class SamplingBuffers:
    """The buffers of the kernels, for up to `rows` rows."""

    rows: int
    changed: torch.Tensor
    maxima: torch.Tensor
    positions: torch.Tensor
    weights: torch.Tensor
    totals: torch.Tensor
    levels: torch.Tensor
    found: torch.Tensor
    found_columns: torch.Tensor
    num_found: torch.Tensor

    @classmethod
    def make(cls, size: int, rows: int, device: torch.device) -> "SamplingBuffers":
        """Allocate them for rows of `size` logits: 16 bytes for each logit."""
        splits = triton.cdiv(size, _COLUMNS)

        def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.empty(rows, *shape, dtype=dtype, device=device)

        return cls(
            rows,
            empty(torch.float32, size),
            empty(torch.float32, splits),
            empty(torch.int32, splits),
            empty(torch.float32, splits * _COLUMNS),
            empty(torch.int64, splits),
            empty(torch.int64, splits, 2 * _LEVELS),
            empty(torch.float32, splits * _COLUMNS),
            empty(torch.int32, splits * _COLUMNS),
            empty(torch.int32),
        )

    @property
    def size_bytes(self) -> int:
        """Return their memory on the device."""
        values = (getattr(self, each.name) for each in fields(self))
        return sum(each.nbytes for each in values if isinstance(each, torch.Tensor))


def sample_rows(
    logits: torch.Tensor, parameters: torch.Tensor, kinds: set[int], max_weight: float, buffers: SamplingBuffers,
    ids: torch.Tensor, maxima: torch.Tensor,
) -> None:  # fmt: skip
    """Write a token id of each row into `ids`, int32 [rows], and its largest logit into `maxima`, float32 [rows].

    `logits`: [rows, size], at most as many rows as the buffers have. `parameters`: float64 [rows, PARAMETERS], of which
    `kinds` are the different kinds. `max_weight`: of the most likely token. A row's result is the same whatever the
    other rows are. Where the largest logit is not finite, the id is some token.
    """
    rows, size = logits.shape
    splits = triton.cdiv(size, _COLUMNS)
    shape = {"SPLITS": splits, "SPLIT_ROWS": triton.next_power_of_2(splits), "COLUMNS": _COLUMNS}
    shape["NUM_PARAMETERS"] = PARAMETERS
    grid = (rows, splits)
    _largest[grid](
        logits, logits.stride(0), size, buffers.maxima, buffers.positions, buffers.num_found,
        SPLITS=splits, COLUMNS=_COLUMNS, num_warps=_WARPS,
    )  # fmt: skip
    if kinds != {GREEDY}:
        _weigh[grid](
            logits, logits.stride(0), size, parameters, buffers.maxima, buffers.weights, buffers.totals, buffers.levels,
            max_weight, LEVELS=_LEVELS, num_warps=_WARPS, **shape,
        )  # fmt: skip
    if TRUNCATED in kinds:
        _collect[grid](
            parameters, buffers.weights, buffers.totals, buffers.levels, buffers.found, buffers.found_columns,
            buffers.num_found, size, max_weight, LEVELS=_LEVELS, num_warps=_WARPS, **shape,
        )  # fmt: skip
    _choose[(rows,)](
        parameters, buffers.maxima, buffers.positions, buffers.weights, buffers.totals, buffers.found,
        buffers.found_columns, buffers.num_found, ids, maxima, size, max_weight,
        CANDIDATES=_CANDIDATES, **shape,
    )  # fmt: skip
