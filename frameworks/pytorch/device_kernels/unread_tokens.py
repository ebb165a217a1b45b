"""Triton kernels that read the token ids which the last step sampled, before the host has read them.

The next step begins with them, and penalties of the logits count them.
"""

import torch
import triton
import triton.language as tl

from frameworks.pytorch.device_kernels.sampling import PARAMETERS

EDIT_COLUMNS = 4
"""Of an edit, int32: token id, the bits of divisor and shift, and whether the text has the token."""

_FILL_ROWS = 32
_EDITS = 1024


# Steps of another number of texts compile no other code.
@triton.jit(do_not_specialize=["num_rows"])
def _fill_in(token_ids, sources, ids, num_rows, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    source = tl.load(sources + row, mask=row < num_rows, other=-1)
    has_source = source >= 0
    tl.store(token_ids + row, tl.load(ids + source, mask=has_source, other=0), mask=has_source)


def fill_in(token_ids: torch.Tensor, sources: torch.Tensor, ids: torch.Tensor) -> None:
    """Set `token_ids[row]` to `ids[sources[row]]` where that source is not -1; all int32, at most [sources] rows."""
    rows = len(sources)
    if rows:
        _fill_in[(triton.cdiv(rows, _FILL_ROWS),)](token_ids, sources, ids, rows, ROWS=_FILL_ROWS)


@triton.jit
def _edit(
    values, parameters, edits, before, size,
    EDITS: tl.constexpr, NUM_PARAMETERS: tl.constexpr, EDIT_COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    own = parameters + row * NUM_PARAMETERS
    first, end, source = tl.load(own + 6).to(tl.int32), tl.load(own + 7).to(tl.int32), tl.load(own + 8).to(tl.int32)
    divisor, frequency, presence = (
        tl.load(own + 9).to(tl.float32), tl.load(own + 10).to(tl.float32), tl.load(own + 11).to(tl.float32)
    )  # fmt: skip
    last = tl.load(before + source, mask=source >= 0, other=-1)
    is_known = tl.full([], 0, tl.int32)
    for start in range(first, end, EDITS):
        slots = start + tl.arange(0, EDITS)
        is_own = slots < end
        edit = edits + slots.to(tl.int64) * EDIT_COLUMNS
        ids = tl.load(edit, mask=is_own, other=0)
        divisors = tl.load(edit + 1, mask=is_own, other=0).to(tl.float32, bitcast=True)
        shifts = tl.load(edit + 2, mask=is_own, other=0).to(tl.float32, bitcast=True)
        is_counted = tl.load(edit + 3, mask=is_own, other=0) > 0
        is_last = is_own & (ids == last)
        is_known = tl.maximum(is_known, tl.max(is_last.to(tl.int32), 0))
        divisors = tl.where(is_last, divisor, divisors)
        shifts = tl.where(is_last, shifts - frequency - tl.where(is_counted, 0.0, presence), shifts)
        target = values + row * size + ids
        value = tl.load(target, mask=is_own, other=0.0)
        tl.store(target, tl.where(value < 0, value * divisors, value / divisors) + shifts, mask=is_own)
    if (last >= 0) & (is_known == 0):
        target = values + row * size + last
        value = tl.load(target)
        tl.store(target, tl.where(value < 0, value * divisor, value / divisor) - frequency - presence)


def edit_rows(values: torch.Tensor, parameters: torch.Tensor, edits: torch.Tensor, before: torch.Tensor) -> None:
    """Apply penalties and biases to logits in place. `values`: float32 [rows, size], contiguous.

    `parameters`: as for `sample_rows`. `edits`: int32 [edits of all rows, EDIT_COLUMNS], of tokens that the host has
    read. `before`: int32, the ids of the last step, of which a row's own counts once more.
    """
    rows, size = values.shape
    _edit[(rows,)](
        values, parameters, edits, before, size,
        EDITS=_EDITS, NUM_PARAMETERS=PARAMETERS, EDIT_COLUMNS=EDIT_COLUMNS,
    )  # fmt: skip
