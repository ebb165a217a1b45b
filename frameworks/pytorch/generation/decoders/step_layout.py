"""Compute where a step reads and writes in the KV cache."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from frameworks.pytorch.generation.decoders.kv_cache import (
    BLOCK_TOKENS,
    CacheSlots,
    KeyValueCache,
    causal_mask,
    masked_bias,
)
from frameworks.pytorch.generation.decoders.sampled_ids import SampledIds
from frameworks.pytorch.generation.decoders.step_tables import StepTables, logit_rows_of, make_tables, rows_of
from frameworks.pytorch.generation.vision.step_images import StepImages
from frameworks.pytorch.generation.weights.linear import padded_rows
from frameworks.scheduling.steps.sequence import StepPart

# Blocks of other sequences are read along as idle rows, up to this part of all rows.
_MAX_IDLE_ROWS = 0.5


@dataclass(frozen=True, slots=True)
class BlockViews:
    """Adjacent blocks of each layer, as a view of the cache that is made once for all layers.

    `keys`: [blocks * heads, head size, block tokens]. `values`: [blocks * heads, block tokens, head size].
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The blocks that the decodes read, one row for each.

    `blocks`: adjacent blocks of the cache, or their indices (int64) if they lie too far apart. `owners`: int64 [rows],
    the sequence of each row, or the number of sequences for an idle row. `query_rows`: the same, but any sequence for
    an idle row. `bias`: [rows * heads, queries per head, block tokens], 0 where a token is visible. `table`: int64
    [sequences * max_blocks], the rows of each sequence, or the number of rows where it has fewer than `max_blocks`.
    `table_index`: int64 [rows], the index of each row in `table`; 0 for an idle row. `is_single_sequence`: there is one
    sequence, and every row belongs to it.
    """

    sequences: int
    blocks: BlockViews | torch.Tensor
    owners: torch.Tensor
    query_rows: torch.Tensor
    bias: torch.Tensor
    max_blocks: int
    table: torch.Tensor
    table_index: torch.Tensor
    is_single_sequence: bool


class TextBlocks(NamedTuple):
    """The blocks of one text, and the number of its tokens that a query attends to."""

    blocks: list[int]
    length: int


class PrefillPart:
    """`num_tokens` tokens of one prompt in a step.

    `first`: index of the first of them among the step's tokens. `start`: number of tokens before them in the sequence.
    `blocks`: int64, the blocks of all of them. `spans`: tokens of the sequence that see each other, as (first, end).
    """

    def __init__(
        self,
        first: int,
        num_tokens: int,
        start: int,
        blocks: torch.Tensor,
        spans: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.spans = spans
        self.first = first
        self.num_tokens = num_tokens
        self.start = start
        self.blocks = blocks
        self._masks: dict[int | None, torch.Tensor] = {}
        self._padded_masks: dict[int | None, torch.Tensor] = {}

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        """Return the addends of the scores, [num_tokens, start + num_tokens], or None for plain causal attention."""
        length = self.start + self.num_tokens
        if self.start == 0 and not self.spans and (window is None or window >= length):
            return None
        mask = self._masks.get(window)
        if mask is None:
            mask = causal_mask(self.start, self.num_tokens, length, window, dtype, self.blocks.device)
            mask = self._masks[window] = self._with_spans(mask, window)
        return mask

    def padded_mask(self, window: int | None, rows: int, times: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the addends of the scores of `rows` tokens with padding, [times * rows, all tokens of its blocks].

        `rows`, `times` and `dtype` are the same in every call for a part.
        """
        mask = self._padded_masks.get(window)
        if mask is None:
            length = len(self.blocks) * BLOCK_TOKENS
            mask = causal_mask(self.start, rows, length, window, dtype, self.blocks.device)
            mask = self._padded_masks[window] = self._with_spans(mask, window).repeat(times, 1)
        return mask

    def _with_spans(self, mask: torch.Tensor, window: int | None) -> torch.Tensor:
        """Return the addends of the scores, 0 also for later tokens of the same span: [tokens, all tokens].

        The window bounds the earlier ones only, as in Gemma 3.
        """
        for first, end in self.spans:
            own = mask[max(0, first - self.start) : max(0, end - self.start), first:end]
            is_later = torch.ones_like(own, dtype=torch.bool).triu_(max(0, self.start - first))
            own.masked_fill_(is_later, 0)
        return mask


@dataclass(slots=True)
class StepLayout:
    """Where a step's tokens belong. The tokens of decodes come first.

    `token_ids`, `positions`: int64 [rows], padded behind the tokens. `writes`: where the tokens' keys and values are
    written. `logit_rows`: int64, the `num_logits` tokens whose logits are sampled or scored, padded too. `tables`: what
    the device's kernels read, instead of all that follows; the numbers before are then int32. `images`: those of the
    step; None without any. `rope_positions`: int64 [sections, rows], where they are not `positions`.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    num_tokens: int
    logit_rows: torch.Tensor
    num_logits: int
    num_decodes: int
    tables: StepTables | None = None
    writes: CacheSlots = field(default_factory=CacheSlots)
    prefills: list[PrefillPart] = field(default_factory=list)
    make_decode_rows: Callable[[int | None], DecodeRows] | None = None
    decode_rows_by_window: dict[int | None, DecodeRows] = field(default_factory=dict)
    images: StepImages | None = None
    rope_positions: torch.Tensor | None = None

    @property
    def selected_rows(self) -> torch.Tensor | None:
        """`logit_rows`, int64 [num_logits] with padding, or None if they are all tokens in order."""
        return None if self.num_logits == self.num_tokens else self.logit_rows

    def decode_rows(self, window: int | None) -> DecodeRows:
        """Return the rows that decodes read in layers with this attention window. None: no window."""
        rows = self.decode_rows_by_window.get(window)
        if rows is None:
            assert self.make_decode_rows is not None
            rows = self.decode_rows_by_window[window] = self.make_decode_rows(window)
        return rows


class LayoutMaker:
    """Makes the layout of each step."""

    def __init__(
        self,
        cache: KeyValueCache,
        queries_per_head: int,
        device: torch.device,
        *,
        makes_tables: bool = False,
        sampled: SampledIds | None = None,
    ) -> None:
        """`makes_tables`: for the device's kernels. `sampled`: ids that the host has not read; None: it reads all."""
        self.makes_tables = makes_tables
        self._sampled = sampled
        self._cache = cache
        self._shape = cache.shape
        self._queries_per_head = queries_per_head
        self._device = device

    def make(self, parts: list[StepPart], images: StepImages | None = None) -> StepLayout:
        """Return the layout of a step. `parts`: decodes first. `images`: those of the step."""
        layout = self._with_tables(parts) if self.makes_tables else self._with_rows(parts)
        if images is not None:
            layout.images = images
            if images.positions is not None:
                padding = len(layout.token_ids) - images.positions.shape[1]
                layout.rope_positions = self._on_device(np.pad(images.positions, ((0, 0), (0, padding))))
        return layout

    def _with_rows(self, parts: list[StepPart]) -> StepLayout:
        num_decodes = sum(part.num_tokens == 1 for part in parts)
        token_ids, positions, blocks = rows_of(parts)
        ends = list(itertools.accumulate(part.num_tokens for part in parts))
        logit_rows = logit_rows_of(parts, ends)
        return StepLayout(
            token_ids=self._padded(token_ids),
            positions=self._padded(positions),
            num_tokens=len(token_ids),
            writes=self._cache.slots(blocks, positions),
            logit_rows=self._padded(logit_rows),
            num_logits=len(logit_rows),
            num_decodes=num_decodes,
            prefills=[
                PrefillPart(
                    end - part.num_tokens,
                    part.num_tokens,
                    part.start,
                    self._on_device(
                        np.asarray(part.sequence.blocks[: -(-(part.start + part.num_tokens) // BLOCK_TOKENS)])
                    ),
                    spans_of(part),
                )
                for end, part in zip(ends[num_decodes:], parts[num_decodes:], strict=True)
            ],
            make_decode_rows=partial(
                self.decode_rows, [TextBlocks(part.sequence.blocks, part.start + 1) for part in parts[:num_decodes]]
            ),
        )

    def _with_tables(self, parts: list[StepPart]) -> StepLayout:
        tables = make_tables(parts, self._device)
        if self._sampled is not None and any(part.sequence.is_unread for part in parts):
            self._sampled.fill_in(tables.token_ids, tables.sources)
        return StepLayout(
            token_ids=tables.token_ids,
            positions=tables.positions,
            num_tokens=len(tables.token_ids),
            logit_rows=tables.logit_rows,
            num_logits=len(tables.logit_rows),
            num_decodes=len(tables.lengths),
            tables=tables,
        )

    def decode_rows(self, texts: Sequence[TextBlocks], window: int | None = None) -> DecodeRows:
        """Return the rows that one query of each text reads in layers with this attention window. None: no window."""
        if len(texts) == 1:
            visible = _visible_blocks(texts[0].length, window)
            blocks = texts[0].blocks[visible.first_block : visible.end_block]
            if blocks == list(range(blocks[0], blocks[0] + len(blocks))):
                return self._single_rows(texts[0].length, visible, blocks[0])
        return self._batch_rows(texts, window)

    def _single_rows(self, length: int, visible: "_VisibleBlocks", low: int) -> DecodeRows:
        """Return the rows of one sequence whose blocks are adjacent from `low` on: less work than `_batch_rows`."""
        count = visible.end_block - visible.first_block
        masked = np.zeros((count, BLOCK_TOKENS), dtype=np.float32)
        masked[-1, length - (visible.end_block - 1) * BLOCK_TOKENS :] = masked_bias(self._shape.dtype)
        masked[0, : visible.first - visible.first_block * BLOCK_TOKENS] = masked_bias(self._shape.dtype)
        owners = torch.zeros(count, dtype=torch.int64, device=self._device)
        order = torch.arange(count, device=self._device)
        return DecodeRows(
            sequences=1,
            blocks=self._views(low, low + count),
            owners=owners,
            query_rows=owners,
            bias=self._bias(masked),
            max_blocks=count,
            table=order,
            table_index=order,
            is_single_sequence=True,
        )

    def _batch_rows(self, texts: Sequence[TextBlocks], window: int | None) -> DecodeRows:
        blocks: list[int] = []
        owners: list[int] = []
        visible: list[tuple[int, int]] = []
        max_blocks = 1
        for owner, (own, length) in enumerate(texts):
            first_visible, first_block, end_block = _visible_blocks(length, window)
            blocks += own[first_block:end_block]
            owners += [owner] * (end_block - first_block)
            visible += [
                (max(0, first_visible - block * BLOCK_TOKENS), min(BLOCK_TOKENS, length - block * BLOCK_TOKENS))
                for block in range(first_block, end_block)
            ]
            max_blocks = max(max_blocks, end_block - first_block)
        low, high = min(blocks), max(blocks) + 1
        # A block that several texts read is a row for each of them.
        is_together = high - low <= len(blocks) * (1 + _MAX_IDLE_ROWS) + 4 and len(set(blocks)) == len(blocks)
        rows = np.asarray(blocks) - low if is_together else np.arange(len(blocks))
        count = high - low if is_together else len(blocks)
        owner_of = np.full(count, len(texts))
        owner_of[rows] = owners
        limits = np.zeros((count, 2), dtype=np.int64)
        limits[rows] = visible
        tokens = np.arange(BLOCK_TOKENS)
        is_visible = (tokens >= limits[:, :1]) & (tokens < limits[:, 1:])
        table = np.full((len(texts), max_blocks), count)
        table_index = np.zeros(count, dtype=np.int64)
        column = np.concatenate([np.arange(n) for n in np.bincount(owners, minlength=len(texts))])
        table[owners, column] = rows
        table_index[rows] = np.asarray(owners) * max_blocks + column
        return DecodeRows(
            sequences=len(texts),
            blocks=self._views(low, high) if is_together else self._on_device(np.asarray(blocks)),
            owners=self._on_device(owner_of),
            query_rows=self._on_device(np.minimum(owner_of, len(texts) - 1)),
            bias=self._bias(np.where(is_visible, np.float32(0), np.float32(masked_bias(self._shape.dtype)))),
            max_blocks=max_blocks,
            table=self._on_device(table.reshape(-1)),
            table_index=self._on_device(table_index),
            is_single_sequence=len(texts) == 1 and count == max_blocks,
        )

    def _views(self, low: int, high: int) -> BlockViews:
        keys, values = self._cache.blocks_of_all_layers(low, high)
        return BlockViews(keys.unbind(0), values.unbind(0))

    def _bias(self, masked: "np.ndarray[Any, np.dtype[np.float32]]") -> torch.Tensor:
        """[rows, block tokens] → the same for each query of each head, as in DecodeRows."""
        rows = self._on_device(masked).to(self._shape.dtype)[:, None, None, :]
        return rows.expand(-1, self._shape.heads, self._queries_per_head, -1).reshape(
            -1, self._queries_per_head, BLOCK_TOKENS
        )

    def _padded(self, values: list[int]) -> torch.Tensor:
        """Return int64 [rows that are computed], zeros behind the values."""
        padding = [0] * (padded_rows(len(values), self._device) - len(values))
        return self._on_device(np.asarray(values + padding, dtype=np.int64))

    def _on_device(self, array: "np.ndarray[Any, np.dtype[Any]]") -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)


def spans_of(part: StepPart) -> tuple[tuple[int, int], ...]:
    """Return the tokens that see each other, as (first, end), of the images that the part computes."""
    media = part.sequence.request.media
    if media is None:
        return ()
    return tuple(each for each in media.blocks if each[1] > part.start and each[0] < part.start + part.num_tokens)


class _VisibleBlocks(NamedTuple):
    """The blocks that one decode reads: from token `first` on."""

    first: int
    first_block: int
    end_block: int


def _visible_blocks(length: int, window: int | None) -> _VisibleBlocks:
    first = 0 if window is None else max(0, length - window)
    return _VisibleBlocks(first, first // BLOCK_TOKENS, -(-length // BLOCK_TOKENS))
