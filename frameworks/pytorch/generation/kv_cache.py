"""The key/value memory: one tensor, cut into blocks, and the places in it that a step reads and writes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from frameworks.generation.blocks import Copy
from frameworks.generation.scheduler import StepPart
from frameworks.pytorch.generation.linear import filled_rows

BLOCK_TOKENS = 32
"""Tokens in a block: what two prompts have in common is found in such steps, and half a block is wasted on average."""

# Rows that belong to no sequence are read along with the others as long as they are not more than this share.
_MOST_IDLE_ROWS = 0.5


def unseen(dtype: torch.dtype) -> float:
    """Added to the products of what a query does not see. Finite: a row of which nothing is seen makes no NaN."""
    return -6e4 if dtype == torch.float16 else -1e9


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a model keeps of a token: keys and values of `heads` heads of `head_size` numbers, in each layer."""

    layers: int
    heads: int
    head_size: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.heads * self.head_size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class TextRows:
    """The blocks that the sequences of one token read, one row for each.

    `blocks`: a piece of the cache, or the blocks' numbers where they lie too far apart. `owner`: int64 [rows], the
    sequence of each row, and the number of sequences for a row of none; `asks`: the same, but any sequence for a row of
    none. `bias`: [rows * heads, queries per head, block
    tokens], 0 where a token is seen. `table`: int64 [sequences * most], the rows of each sequence, and the number of
    rows where it has fewer than `most`. `places`: int64 [rows], where in the table each row stands; for a row of none
    the first place.
    """

    sequences: int
    blocks: slice | torch.Tensor
    owner: torch.Tensor
    asks: torch.Tensor
    bias: torch.Tensor
    most: int
    table: torch.Tensor
    places: torch.Tensor


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

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        """[count, start + count], added to the products; None where each token simply sees those before it."""
        length = self.start + self.count
        if self.start == 0 and (window is None or window >= length):
            return None
        mask = self._masks.get(window)
        if mask is None:
            mask = self._masks[window] = causal_mask(self.count, length, window, dtype, self.blocks.device)
        return mask


@dataclass(slots=True)
class StepLayout:
    """Where a step's tokens belong. The tokens of sequences that compute one token, the texts, come first.

    `token_ids`, `positions`: int64 [rows]; behind the tokens they are filled up, with what belongs to nobody.
    `writes`: int64 [tokens * heads], where keys and values go: rows of `head_size` numbers in a layer. `last`: int64,
    the tokens behind which the next one is chosen.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    tokens: int
    writes: torch.Tensor
    last: torch.Tensor
    texts: int
    prompts: list[PromptPart]
    make_text_rows: Callable[[int | None], TextRows]
    rows_by_window: dict[int | None, TextRows] = field(default_factory=dict)

    def text_rows(self, window: int | None) -> TextRows:
        """What the texts read, in layers where a token sees so many, its own included; None: all before it."""
        rows = self.rows_by_window.get(window)
        if rows is None:
            rows = self.rows_by_window[window] = self.make_text_rows(window)
        return rows


class KeyValueCache:
    """`blocks` blocks on a device. What is not seen is multiplied by 0, and must be no NaN: they are zeroed, here and
    when a sequence begins one, for the one before may have left numbers in it that are none.
    """

    def __init__(self, shape: CacheShape, blocks: int, device: torch.device) -> None:
        self.shape = shape
        self.blocks = blocks
        self._tensor = torch.zeros(
            (shape.layers, 2, blocks, shape.heads, BLOCK_TOKENS, shape.head_size), dtype=shape.dtype, device=device
        )
        self.layers = [(layer[0], layer[1]) for layer in self._tensor]
        """Keys and values of each layer: [blocks, heads, BLOCK_TOKENS, head_size]."""

    @property
    def size_bytes(self) -> int:
        return self._tensor.nbytes

    def copy(self, copies: list[Copy]) -> None:
        """Makes them in their order, as many at a time as do not wait for one another."""
        start = 0
        written: set[int] = set()
        for position, one in enumerate(copies):
            if one.source in written or one.destination in written:
                self._copy(copies[start:position])
                start, written = position, set()
            written.add(one.destination)
        if copies[start:]:
            self._copy(copies[start:])

    def clear_begun(self, parts: list[StepPart]) -> None:
        """Zeroes the blocks of which a step writes the first token and not the last. Before it writes."""
        ends = [(part, (part.start + part.count) // BLOCK_TOKENS) for part in parts]
        blocks = [
            part.sequence.blocks[last]
            for part, last in ends
            if part.start <= last * BLOCK_TOKENS < part.start + part.count
        ]
        if blocks:
            self._tensor.index_fill_(2, torch.tensor(blocks, device=self._tensor.device), 0)

    def _copy(self, copies: list[Copy]) -> None:
        device = self._tensor.device
        sources = torch.tensor([one.source for one in copies], device=device)
        destinations = torch.tensor([one.destination for one in copies], device=device)
        self._tensor[:, :, destinations] = self._tensor.index_select(2, sources)


class LayoutMaker:
    """Says for each step where its tokens belong."""

    def __init__(self, shape: CacheShape, queries_per_head: int, device: torch.device) -> None:
        self._shape = shape
        self._queries_per_head = queries_per_head
        self._device = device
        self._heads = np.arange(shape.heads)

    def make(self, parts: list[StepPart]) -> StepLayout:
        """`parts`: of one token first."""
        texts = sum(part.count == 1 for part in parts)
        token_ids: list[int] = []
        for part in parts:
            token_ids += part.sequence.token_ids[part.start : part.start + part.count]
        positions = np.concatenate([np.arange(part.start, part.start + part.count) for part in parts])
        blocks = np.concatenate(
            [
                np.asarray(part.sequence.blocks)[np.arange(part.start, part.start + part.count) // BLOCK_TOKENS]
                for part in parts
            ]
        )
        writes = (blocks[:, None] * self._shape.heads + self._heads) * BLOCK_TOKENS + (positions % BLOCK_TOKENS)[
            :, None
        ]
        ends = np.cumsum([part.count for part in parts])
        tokens = len(token_ids)
        filling = (0, filled_rows(tokens, self._device) - tokens)
        return StepLayout(
            token_ids=self._on_device(np.pad(np.asarray(token_ids), filling)),
            positions=self._on_device(np.pad(positions, filling)),
            tokens=tokens,
            writes=self._on_device(writes.reshape(-1)),
            last=self._on_device((ends - 1)[[part.completes for part in parts]]),
            texts=texts,
            prompts=[
                PromptPart(
                    int(end) - part.count,
                    part.count,
                    part.start,
                    self._on_device(np.asarray(part.sequence.blocks[: -(-(part.start + part.count) // BLOCK_TOKENS)])),
                )
                for end, part in zip(ends[texts:], parts[texts:], strict=True)
            ],
            make_text_rows=partial(self._text_rows, parts[:texts]),
        )

    def _text_rows(self, parts: list[StepPart], window: int | None) -> TextRows:
        blocks: list[int] = []
        owners: list[int] = []
        seen: list[tuple[int, int]] = []
        most = 1
        for owner, part in enumerate(parts):
            length = part.start + 1
            first_seen = 0 if window is None else max(0, length - window)
            first_block, end_block = first_seen // BLOCK_TOKENS, -(-length // BLOCK_TOKENS)
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
        bias = self._on_device(np.where(is_seen, 0.0, unseen(self._shape.dtype)).astype(np.float32)).to(
            self._shape.dtype
        )
        return TextRows(
            sequences=len(parts),
            blocks=slice(low, high) if is_together else self._on_device(np.asarray(blocks)),
            owner=self._on_device(owner_of),
            asks=self._on_device(np.minimum(owner_of, len(parts) - 1)),
            bias=bias[:, None, None, :]
            .expand(-1, self._shape.heads, self._queries_per_head, -1)
            .reshape(-1, self._queries_per_head, BLOCK_TOKENS),
            most=most,
            table=self._on_device(table.reshape(-1)),
            places=self._on_device(places),
        )

    def _on_device(self, array: "np.ndarray[Any, np.dtype[Any]]") -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)


def causal_mask(count: int, length: int, window: int | None, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[count, length]: the last `count` tokens of a sequence see what is before them, as far as the window goes."""
    own = torch.arange(length - count, length, device=device)[:, None]
    other = torch.arange(length, device=device)
    is_seen = other <= own
    if window is not None:
        is_seen &= other > own - window
    return torch.zeros((count, length), dtype=dtype, device=device).masked_fill_(~is_seen, unseen(dtype))
