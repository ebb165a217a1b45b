"""Attention of a decoder over the blocks of the KV cache: to its own tokens, and to the states of the encoder."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from frameworks.pytorch.generation.decoders.attention import BlockAttention
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS, CacheSlots, KeyValueCache, causal_mask
from frameworks.pytorch.generation.decoders.step_layout import DecodeRows

Biases = Mapping[int, torch.Tensor]
"""By layer: the addends of its scores by distance, [heads, distances]; a layer that has none uses the first one's."""


@dataclass(slots=True)
class TokenRows:
    """The decoder tokens of one pass: one token of each of several sequences, or several tokens of one sequence.

    `positions`: int64 [rows], in the text of the decoder. `writes`: where their keys and values are written.
    `own`, `source`: for one token of each sequence, the blocks of its text and of its source. `blocks`, `start`: for
    several tokens of one, int64 blocks of its text, and the tokens before them. `source_blocks`, `num_source`: for
    these, the blocks of its source and its tokens. `states`: of the encoder, where this pass writes the keys and values
    of cross-attention, which go to `source_writes`.
    """

    positions: torch.Tensor
    writes: CacheSlots
    own: DecodeRows | None = None
    source: DecodeRows | None = None
    blocks: torch.Tensor | None = None
    start: int = 0
    source_blocks: torch.Tensor | None = None
    num_source: int = 0
    source_writes: CacheSlots | None = None
    own_by_layer: dict[int, DecodeRows] = field(default_factory=dict)


class DecoderAttention:
    """The attention of one decoder. The rows of a pass are set before its layers run."""

    def __init__(self, cache: KeyValueCache, query_heads: int, biases: Biases) -> None:
        """`query_heads`: a multiple of the cache's heads. `biases`: empty where scores have no addends."""
        self.cache = cache
        self._blocks = BlockAttention(cache, query_heads, cache.shape.head_size**-0.5)
        self._heads, self._size = cache.shape.heads, cache.shape.head_size
        self._biases = biases
        self.rows: TokenRows | None = None
        shape = cache.shape
        self.nothing = torch.zeros(1, shape.heads, 0, shape.head_size, device=cache.device)
        """The keys and values of a source that the blocks have, float32 [1, heads, 0, head size]."""
        self.source_states: torch.Tensor | None = None
        """Of the encoder, [1, source tokens, hidden size], in the pass that writes their keys and values."""
        self.reads_source = False
        """Whether the layer that attends next does so to the source; the cache that it asks for its states knows."""
        self.aligned_heads: dict[int, list[int]] = {}
        """By layer: the heads whose attention to the source says when a token is spoken."""
        self.aligned: list[torch.Tensor] | None = None
        """Their weights in a pass that keeps them, float32 [heads, rows, source tokens] of each layer."""

    def write_source(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, writes: CacheSlots | None = None
    ) -> None:
        """Write keys and values of cross-attention, [1, heads, source tokens, head size], with zeros behind them.

        `writes`: None: as the rows of the pass say.
        """
        if writes is None:
            assert self.rows is not None
            writes = self.rows.source_writes
        assert writes is not None
        states = torch.cat((key[0], value[0])).transpose(0, 1)
        padding = -len(states) % BLOCK_TOKENS
        # A masked value is multiplied by 0, so that it must not be NaN.
        padded = torch.nn.functional.pad(states, (0, 0, 0, 0, 0, padding))
        self.cache.write(layer, writes, padded.to(self.cache.shape.dtype))

    def to_source(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attend to the source: [1, query heads, rows, head size] → [1, rows, query heads, head size].

        `key`, `value`: of the source in the pass that writes them, [1, heads, source tokens, head size]; else empty.
        """
        rows = self.rows
        assert rows is not None
        if rows.source is not None:
            return self._decode(layer, query, rows.source, scale)
        if not key.shape[2]:
            assert rows.source_blocks is not None
            key, value = (states.to(query.dtype) for states in self._read(layer, rows.source_blocks, rows.num_source))
        if self.aligned is not None and layer in self.aligned_heads:
            heads = self.aligned_heads[layer]
            scores = (query[0, heads] * scale) @ key[0, heads].transpose(1, 2)
            self.aligned.append(scores.float().softmax(-1))
        return _attend(query, key, value, None, scale)

    def to_own(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Write the tokens' keys and values, and attend to their texts, as `to_source`.

        `key`, `value`: of the rows, [1, heads, rows, head size].
        """
        rows = self.rows
        assert rows is not None
        states = torch.cat((key[0], value[0])).transpose(0, 1)
        self.cache.write(layer, rows.writes, states.to(self.cache.shape.dtype))
        if rows.own is not None:
            return self._decode(layer, query, self._own_rows(layer, rows, rows.own), scale)
        count = query.shape[2]
        length = rows.start + count
        if rows.start:
            assert rows.blocks is not None
            key, value = (states.to(query.dtype) for states in self._read(layer, rows.blocks, length))
        mask = causal_mask(rows.start, count, length, None, query.dtype, query.device)
        bias = self._bias(layer)
        if bias is not None:
            own = torch.arange(rows.start, length, device=query.device)[:, None]
            distances = (own - torch.arange(length, device=query.device)).clamp_(min=0)
            mask = mask + bias[:, distances].to(query.dtype)
        return _attend(query, key, value, mask, scale)

    def _bias(self, layer: int) -> torch.Tensor | None:
        if not self._biases:
            return None
        found = self._biases.get(layer)
        return next(iter(self._biases.values())) if found is None else found

    def _decode(self, layer: int, query: torch.Tensor, rows: DecodeRows, scale: float) -> torch.Tensor:
        queries = query[0].transpose(0, 1).to(self.cache.shape.dtype)
        return self._blocks.decode(queries, layer, rows, scale)[None].to(query.dtype)

    def _own_rows(self, layer: int, rows: TokenRows, own: DecodeRows) -> DecodeRows:
        bias = self._bias(layer)
        if bias is None:
            return own
        index = layer if layer in self._biases else next(iter(self._biases))
        found = rows.own_by_layer.get(index)
        if found is None:
            first = torch.remainder(own.table_index, own.max_blocks) * BLOCK_TOKENS
            columns = first[:, None] + torch.arange(BLOCK_TOKENS, device=first.device)
            distances = (rows.positions[own.query_rows][:, None] - columns).clamp_(min=0)
            # [heads, blocks, tokens of a block] → as the bias of the rows.
            addends = bias[:, distances].transpose(0, 1).reshape(-1, own.bias.shape[1], BLOCK_TOKENS)
            found = rows.own_by_layer[index] = replace(own, bias=own.bias + addends.to(own.bias.dtype))
        return found

    def _read(self, layer: int, blocks: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of a sequence from its blocks, [1, heads, count, head size] each."""
        keys, values = self.cache.layers[layer]
        found = (
            states.index_select(0, blocks).transpose(0, 1).reshape(1, self._heads, -1, self._size)[:, :, :count]
            for states in (keys, values)
        )
        key, value = found
        return key, value


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    attended = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return attended.transpose(1, 2)


def slots_of(cache: KeyValueCache, blocks: list[int], start: int, count: int) -> CacheSlots:
    """Return where tokens from `start` on are written, of a text with these blocks."""
    positions = np.arange(start, start + count)
    return cache.slots(np.asarray(blocks)[positions // BLOCK_TOKENS], positions)  # type: ignore[arg-type]
