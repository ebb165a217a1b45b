"""The places in the key/value memory that a step reads and writes."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from frameworks.generation.scheduler import StepPart
from frameworks.pytorch.generation.kv_cache import BLOCK_TOKENS, KeyValueCache, unseen
from frameworks.pytorch.generation.linear import padded_rows

# Rows that belong to no sequence are read along with the others as long as they are not more than this share.
_MOST_IDLE_ROWS = 0.5


@dataclass(frozen=True, slots=True)
class BlockViews:
    """Blocks that lie together, of each layer: a view of the cache, made once for all of them.

    `keys`: [blocks * heads, head size, block tokens]. `values`: [blocks * heads, block tokens, head size].
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class TextRows:
    """The blocks that the sequences of one token read, one row for each.

    `blocks`: a piece of the cache, or int64 the blocks' numbers where they lie too far apart. `owner`: int64 [rows],
    the sequence of each row, and the number of sequences for a row of none; `asks`: the same, but any sequence for a
    row of none. `bias`: [rows * heads, queries per head, block tokens], 0 where a token is seen. `table`: int64
    [sequences * most], the rows of each sequence, and the number of rows where it has fewer than `most`. `places`:
    int64 [rows], where in the table each row stands; for a row of none the first place. `is_one_text`: there is one
    sequence, and every row is of it.
    """

    sequences: int
    blocks: BlockViews | torch.Tensor
    owner: torch.Tensor
    asks: torch.Tensor
    bias: torch.Tensor
    most: int
    table: torch.Tensor
    places: torch.Tensor
    is_one_text: bool


class PromptPart:
    """`count` tokens of one prompt in a step, `first` the first of them among the step's tokens; `start` tokens lie
    before them in the sequence, `blocks` (int64) hold them all.
    """

    def __init__(self, first: int, count: int, start: int, blocks: torch.Tensor) -> None:
        self.first = first
        self.count = count
        self.start = start
        self.blocks = blocks
        self._masks: dict[int | None, torch.Tensor] = {}
        self._padded_masks: dict[int | None, torch.Tensor] = {}

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        """[count, start + count], added to the products; None where each token simply sees those before it."""
        length = self.start + self.count
        if self.start == 0 and (window is None or window >= length):
            return None
        mask = self._masks.get(window)
        if mask is None:
            mask = self._masks[window] = causal_mask(self.start, self.count, length, window, dtype, self.blocks.device)
        return mask

    def padded_mask(self, window: int | None, rows: int, times: int, dtype: torch.dtype) -> torch.Tensor:
        """[times * rows, all tokens of its blocks], added to the products of `rows` tokens, the part's own and some
        behind them that are nobody's. `rows`, `times`, `dtype`: of one part always the same.
        """
        mask = self._padded_masks.get(window)
        if mask is None:
            length = len(self.blocks) * BLOCK_TOKENS
            mask = causal_mask(self.start, rows, length, window, dtype, self.blocks.device).repeat(times, 1)
            self._padded_masks[window] = mask
        return mask


@dataclass(slots=True)
class StepLayout:
    """Where a step's tokens belong. The tokens of sequences that compute one token, the texts, come first.

    `token_ids`, `positions`: int64 [rows]; behind the tokens they are filled up, with what belongs to nobody.
    `writes`: int64 [tokens * 2 * heads], where each token's keys and then its values go among the rows of a layer.
    `last`: int64, the `num_last` tokens behind which the next one is chosen, filled up like them.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    tokens: int
    writes: torch.Tensor
    last: torch.Tensor
    num_last: int
    texts: int
    prompts: list[PromptPart]
    make_text_rows: Callable[[int | None], TextRows]
    rows_by_window: dict[int | None, TextRows] = field(default_factory=dict)

    @property
    def wanted(self) -> torch.Tensor | None:
        """`last`, unless it is every token in its order."""
        return None if self.num_last == self.tokens else self.last

    def text_rows(self, window: int | None) -> TextRows:
        """What the texts read, in layers where a token sees so many, its own included; None: all before it."""
        rows = self.rows_by_window.get(window)
        if rows is None:
            rows = self.rows_by_window[window] = self.make_text_rows(window)
        return rows


class LayoutMaker:
    """Says for each step where its tokens belong."""

    def __init__(self, cache: KeyValueCache, queries_per_head: int, device: torch.device) -> None:
        self._cache = cache
        self._shape = shape = cache.shape
        self._queries_per_head = queries_per_head
        self._device = device
        heads = np.arange(shape.heads)
        self._heads = np.concatenate((heads, cache.blocks * shape.heads + heads))

    def make(self, parts: list[StepPart]) -> StepLayout:
        """`parts`: of one token first."""
        texts = sum(part.count == 1 for part in parts)
        token_ids: list[int] = []
        positions: list[int] = []
        blocks: list[int] = []
        for part in parts:
            of_part = range(part.start, part.start + part.count)
            token_ids += part.sequence.token_ids[of_part.start : of_part.stop]
            positions += of_part
            own = part.sequence.blocks
            blocks += [own[position // BLOCK_TOKENS] for position in of_part]
        places = np.asarray(blocks)[:, None] * self._shape.heads + self._heads
        writes = places * BLOCK_TOKENS + np.asarray(positions)[:, None] % BLOCK_TOKENS
        ends = list(itertools.accumulate(part.count for part in parts))
        last = [end - 1 for end, part in zip(ends, parts, strict=True) if part.completes]
        return StepLayout(
            token_ids=self._filled(token_ids),
            positions=self._filled(positions),
            tokens=len(token_ids),
            writes=self._on_device(writes.reshape(-1)),
            last=self._filled(last),
            num_last=len(last),
            texts=texts,
            prompts=[
                PromptPart(
                    end - part.count,
                    part.count,
                    part.start,
                    self._on_device(np.asarray(part.sequence.blocks[: -(-(part.start + part.count) // BLOCK_TOKENS)])),
                )
                for end, part in zip(ends[texts:], parts[texts:], strict=True)
            ],
            make_text_rows=partial(self._text_rows, parts[:texts]),
        )

    def _text_rows(self, parts: list[StepPart], window: int | None) -> TextRows:
        if len(parts) == 1:
            seen = _seen_of(parts[0], window)
            blocks = parts[0].sequence.blocks[seen.first_block : seen.end_block]
            if blocks == list(range(blocks[0], blocks[0] + len(blocks))):
                return self._rows_of_one(parts[0], seen, blocks[0])
        return self._rows_of_many(parts, window)

    def _rows_of_one(self, part: StepPart, seen: "_Seen", low: int) -> TextRows:
        """Of one text whose blocks lie in a row from `low` on: it asks for much less than many do."""
        count = seen.end_block - seen.first_block
        hidden = np.zeros((count, BLOCK_TOKENS), dtype=np.float32)
        hidden[-1, part.start + 1 - (seen.end_block - 1) * BLOCK_TOKENS :] = unseen(self._shape.dtype)
        hidden[0, : seen.first - seen.first_block * BLOCK_TOKENS] = unseen(self._shape.dtype)
        nobody_else = torch.zeros(count, dtype=torch.int64, device=self._device)
        order = torch.arange(count, device=self._device)
        return TextRows(
            sequences=1,
            blocks=self._views(low, low + count),
            owner=nobody_else,
            asks=nobody_else,
            bias=self._bias(hidden),
            most=count,
            table=order,
            places=order,
            is_one_text=True,
        )

    def _rows_of_many(self, parts: list[StepPart], window: int | None) -> TextRows:
        blocks: list[int] = []
        owners: list[int] = []
        seen: list[tuple[int, int]] = []
        most = 1
        for owner, part in enumerate(parts):
            length = part.start + 1
            first_seen, first_block, end_block = _seen_of(part, window)
            blocks += part.sequence.blocks[first_block:end_block]
            owners += [owner] * (end_block - first_block)
            seen += [
                (max(0, first_seen - block * BLOCK_TOKENS), min(BLOCK_TOKENS, length - block * BLOCK_TOKENS))
                for block in range(first_block, end_block)
            ]
            most = max(most, end_block - first_block)
        low, high = min(blocks), max(blocks) + 1
        is_together = high - low <= len(blocks) * (1 + _MOST_IDLE_ROWS) + 4
        rows = np.asarray(blocks) - low if is_together else np.arange(len(blocks))
        count = high - low if is_together else len(blocks)
        owner_of = np.full(count, len(parts))
        owner_of[rows] = owners
        limits = np.zeros((count, 2), dtype=np.int64)
        limits[rows] = seen
        tokens = np.arange(BLOCK_TOKENS)
        is_seen = (tokens >= limits[:, :1]) & (tokens < limits[:, 1:])
        table = np.full((len(parts), most), count)
        places = np.zeros(count, dtype=np.int64)
        column = np.concatenate([np.arange(n) for n in np.bincount(owners, minlength=len(parts))])
        table[owners, column] = rows
        places[rows] = np.asarray(owners) * most + column
        return TextRows(
            sequences=len(parts),
            blocks=self._views(low, high) if is_together else self._on_device(np.asarray(blocks)),
            owner=self._on_device(owner_of),
            asks=self._on_device(np.minimum(owner_of, len(parts) - 1)),
            bias=self._bias(np.where(is_seen, np.float32(0), np.float32(unseen(self._shape.dtype)))),
            most=most,
            table=self._on_device(table.reshape(-1)),
            places=self._on_device(places),
            is_one_text=len(parts) == 1 and count == most,
        )

    def _views(self, low: int, high: int) -> BlockViews:
        keys, values = self._cache.blocks_of_all_layers(low, high)
        return BlockViews(keys.transpose(-1, -2).unbind(0), values.unbind(0))

    def _bias(self, hidden: "np.ndarray[Any, np.dtype[np.float32]]") -> torch.Tensor:
        """[rows, block tokens] → the same for each query of each head, as TextRows has it."""
        rows = self._on_device(hidden).to(self._shape.dtype)[:, None, None, :]
        return rows.expand(-1, self._shape.heads, self._queries_per_head, -1).reshape(
            -1, self._queries_per_head, BLOCK_TOKENS
        )

    def _filled(self, numbers: list[int]) -> torch.Tensor:
        """With zeros, up to a number of rows that is computed."""
        filling = [0] * (padded_rows(len(numbers), self._device) - len(numbers))
        return self._on_device(np.asarray(numbers + filling, dtype=np.int64))

    def _on_device(self, array: "np.ndarray[Any, np.dtype[Any]]") -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)


class _Seen(NamedTuple):
    """What the one token of a text sees of its sequence: from token `first` on, which lie in these of its blocks."""

    first: int
    first_block: int
    end_block: int


def _seen_of(part: StepPart, window: int | None) -> _Seen:
    length = part.start + 1
    first = 0 if window is None else max(0, length - window)
    return _Seen(first, first // BLOCK_TOKENS, -(-length // BLOCK_TOKENS))


def causal_mask(
    start: int, count: int, length: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[count, length]: the tokens of a sequence from `start` on see what is before them, as far as the window goes."""
    own = torch.arange(start, start + count, device=device)[:, None]
    other = torch.arange(length, device=device)
    is_seen = other <= own
    if window is not None:
        is_seen &= other > own - window
    return torch.zeros((count, length), dtype=dtype, device=device).masked_fill_(~is_seen, unseen(dtype))
