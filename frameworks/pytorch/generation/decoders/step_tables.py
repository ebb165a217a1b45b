"""The tables of a step that the device's kernels read: int32 numbers, which one copy brings to the device."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.scheduling.steps.sequence import StepPart


@dataclass(frozen=True, slots=True)
class PrefillTables:
    """Parts of more than one token. `firsts`, `counts`, `starts`: int32 [prefills], the first row of each, its tokens,
    and the tokens of its sequence before them. `table`: int32 [prefills, blocks]. `most_tokens`: of a part.
    """

    firsts: torch.Tensor
    counts: torch.Tensor
    starts: torch.Tensor
    table: torch.Tensor
    most_tokens: int


@dataclass(frozen=True, slots=True)
class StepTables:
    """Of a step. `token_ids`, `positions`, `blocks`, `offsets`: int32 [rows], what each row is, and the block that it
    is written to with its position there. `logit_rows`: int32 [logits]. `lengths`: int32 [decodes], tokens of each
    sequence with its own. `sources`: int32 [decodes], the row of the sampled ids that has the token; -1: `token_ids`
    has it. `table`: int32 [decodes, blocks]. `most_blocks`: of a decode. `prefills`: None without any.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    blocks: torch.Tensor
    offsets: torch.Tensor
    logit_rows: torch.Tensor
    lengths: torch.Tensor
    sources: torch.Tensor
    table: torch.Tensor
    most_blocks: int
    prefills: PrefillTables | None


def make_tables(parts: list[StepPart], device: torch.device) -> StepTables:
    """Return the tables of a step. `parts`: decodes first."""
    decodes = [part for part in parts if part.num_tokens == 1]
    prefills = parts[len(decodes) :]
    token_ids, positions, blocks = rows_of(parts)
    ends = list(itertools.accumulate(part.num_tokens for part in parts))
    logit_rows = logit_rows_of(parts, ends)
    counts = [part.num_tokens for part in prefills]
    firsts = [end - part.num_tokens for end, part in zip(ends[len(decodes) :], prefills, strict=True)]
    decode_table, prefill_table = _table(decodes), _table(prefills)
    columns: list[Sequence[int]] = [
        *(token_ids, positions, blocks, [position % BLOCK_TOKENS for position in positions], logit_rows),
        *([part.start + 1 for part in decodes], [part.sequence.unread_row for part in decodes]),
        *(firsts, counts, [part.start for part in prefills]),
    ]
    arrays = [np.asarray(each, dtype=np.int32) for each in columns]
    arrays += [decode_table.reshape(-1), prefill_table.reshape(-1)]
    joined = torch.from_numpy(np.concatenate(arrays)).to(device, non_blocking=True)
    views = torch.split(joined, [len(each) for each in arrays])
    of_parts: PrefillTables | None = None
    if prefills:
        of_parts = PrefillTables(views[7], views[8], views[9], views[11].view(prefill_table.shape), max(counts))
    table, most_blocks = views[10].view(decode_table.shape), decode_table.shape[1]
    return StepTables(
        views[0], views[1], views[2], views[3], views[4], views[5], views[6], table, most_blocks, of_parts
    )


def rows_of(parts: Sequence[StepPart]) -> tuple[list[int], list[int], list[int]]:
    """Return the token id and the position of each row, and the block that it is written to."""
    token_ids: list[int] = []
    positions: list[int] = []
    blocks: list[int] = []
    for part in parts:
        of_part = range(part.start, part.start + part.num_tokens)
        token_ids += part.token_ids
        positions += of_part
        own = part.sequence.blocks
        blocks += [own[position // BLOCK_TOKENS] for position in of_part]
    return token_ids, positions, blocks


def logit_rows_of(parts: list[StepPart], ends: list[int]) -> list[int]:
    """Return the rows whose logits are computed. `ends`: of the tokens of each part."""
    if not any([part.is_scored or part.proposed for part in parts]):  # noqa: C419 - a list is faster, and most steps get here
        return [end - 1 for end, part in zip(ends, parts, strict=True) if part.completes]
    return [row for end, part in zip(ends, parts, strict=True) for row in range(end - part.num_logits, end)]


def _table(parts: Sequence[StepPart]) -> "np.ndarray[tuple[int, int], np.dtype[np.int32]]":
    """Return the blocks of each part up to its end, int32 [parts, most blocks], zeros behind them."""
    ends = [-(-(part.start + part.num_tokens) // BLOCK_TOKENS) for part in parts]
    table = np.zeros((len(parts), max(ends, default=0)), dtype=np.int32)
    for row, part, end in zip(table, parts, ends, strict=True):
        row[:end] = part.sequence.blocks[:end]
    return table
