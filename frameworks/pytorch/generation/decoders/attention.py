"""Compute a step's attention over the blocks of the KV cache, for any number of sequences at once.

Decode: each block that a sequence reads is one entry of a batched matmul, wherever the block lies. The outputs of a
sequence's blocks are added, weighted by the blocks' parts of the softmax, as in Flash-Decoding (Dao et al., 2023).
Nothing is padded to the longest sequence. Prefill: the parts are computed one by one.
"""

import torch

from frameworks.pytorch import kernels
from frameworks.pytorch.generation.decoders.device_attention import DeviceAttention
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS, KeyValueCache, causal_mask, masked_bias
from frameworks.pytorch.generation.decoders.prefill_attention import are_blocks_faster, attend_in_blocks
from frameworks.pytorch.generation.decoders.step_layout import (
    BlockViews,
    DecodeRows,
    PrefillPart,
    StepLayout,
)

# In bfloat16 plain matmuls are faster from this number of tokens at the start of a prompt, and up to this context
# length. oneDNN compiles machine code for each size, so sizes are rounded up to a multiple.
_MIN_TOKENS_FROM_START, _MAX_TOKENS = 33, 256
_TOKENS_MULTIPLE = 16


class BlockAttention:
    """The attention of one model. The step's layout is set before its layers run."""

    def __init__(
        self, cache: KeyValueCache, query_heads: int, scale: float, device: DeviceAttention | None = None
    ) -> None:
        """`query_heads`: a multiple of the cache's heads. `scale`: factor of the attention scores, unless
        a layer has its own. `device`: computes it, where the device has kernels.
        """
        self.device = device
        self._cache = cache
        self._heads = cache.shape.heads
        self._size = cache.shape.head_size
        self._group = query_heads // self._heads
        self._scale = scale
        self.layout: StepLayout | None = None

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key_value: torch.Tensor,
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Write the tokens' keys and values, and return [rows, query heads, head size], zeros for padding rows.

        `query`: [rows, query heads, head size]. `key_value`: [rows, 2 * heads, head size], the keys first. `window`:
        tokens that a query attends to, its own included.
        """
        cached = self._cache.shape.dtype
        # Kernels convert float8 themselves.
        if query.dtype != cached and cached.itemsize > 1:
            return self(layer, query.to(cached), key_value.to(cached), window, scale, softcap).to(query.dtype)
        scale = self._scale if scale is None else scale
        if self.device is None:
            return self._by_matmuls(layer, query, key_value, window, scale, softcap)
        assert self.layout is not None
        self.device.write(layer, self.layout, key_value)
        return self.device.attend(layer, self.layout, query, self.device.scores(scale, window, softcap))

    def _by_matmuls(
        self,
        layer: int,
        query: torch.Tensor,
        key_value: torch.Tensor,
        window: int | None,
        scale: float,
        softcap: float | None,
    ) -> torch.Tensor:
        layout = self.layout
        assert layout is not None
        num_rows = query.shape[0]
        padding = num_rows - layout.num_tokens
        if padding:
            key_value = key_value[: layout.num_tokens]
        self._cache.write(layer, layout.writes, key_value)
        if layout.num_decodes == num_rows:
            return self.decode(query, layer, layout.decode_rows(window), scale, softcap)
        attended: list[torch.Tensor] = []
        if layout.num_decodes:
            queries = query[: layout.num_decodes]
            attended.append(self.decode(queries, layer, layout.decode_rows(window), scale, softcap))
        keys, values = self._cache.layers[layer]
        key, value = key_value[:, : self._heads], key_value[:, self._heads :]
        for part in layout.prefills:
            own = slice(part.first, part.first + part.num_tokens)
            if softcap is None and _is_matmul_faster(part, query):
                attended.append(self._prefill_by_matmul(query[own], keys, values, part, window, scale))
                continue
            if part.start == 0:
                past_key, past_value = key[own], value[own]
            else:
                past_key, past_value = self._past(keys, part), self._past(values, part)
            if softcap is None and are_blocks_faster(part, query, window):
                attended.append(attend_in_blocks(query[own], past_key, past_value, scale, window))
                continue
            mask = part.mask(window, query.dtype)
            attended.append(self._prefill(query[own], past_key, past_value, mask, scale, softcap))
        if padding:
            attended.append(query.new_zeros(padding, *query.shape[1:]))
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def decode(
        self,
        query: torch.Tensor,
        layer: int,
        rows: DecodeRows,
        scale: float,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Attend to blocks of the cache, one query of each sequence: [sequences, query heads, head size]."""
        keys, values = self._of_blocks(layer, rows)
        queries = query.index_select(0, rows.query_rows).view(-1, self._group, self._size)
        if softcap is None:
            scores = torch.baddbmm(rows.bias, queries, keys, alpha=scale)
        else:
            scores = torch.tanh(torch.bmm(queries, keys).mul_(scale / softcap)).mul_(softcap).add_(rows.bias)
        # The maximum and the sum of a softmax are slow and inexact in 16-bit dtypes.
        scores = scores.float()
        attend = self._of_one if rows.is_single_sequence else self._of_many
        return attend(scores, values, rows).to(query.dtype)

    def _of_blocks(self, layer: int, rows: DecodeRows) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys [rows * heads, head size, block tokens] and values [rows * heads, block tokens, head size]."""
        if isinstance(rows.blocks, BlockViews):
            return rows.blocks.keys[layer], rows.blocks.values[layer]
        return self._cache.copies_of_blocks(layer, rows.blocks)

    def _of_one(self, scores: torch.Tensor, values: torch.Tensor, rows: DecodeRows) -> torch.Tensor:
        """Attend for one sequence, with one softmax over all blocks: float32 [1, query heads, head size]."""
        heads = self._heads * self._group
        blocks = rows.max_blocks
        in_order = scores.view(blocks, heads, BLOCK_TOKENS).transpose(0, 1).reshape(heads, -1)
        weights = torch.softmax(in_order, -1).view(heads, blocks, BLOCK_TOKENS).transpose(0, 1)
        parts = torch.bmm(weights.reshape(-1, self._group, BLOCK_TOKENS).to(values.dtype), values)
        return parts.view(blocks, heads, self._size).sum(0, keepdim=True, dtype=torch.float32)

    def _of_many(self, scores: torch.Tensor, values: torch.Tensor, rows: DecodeRows) -> torch.Tensor:
        """Attend for several sequences: float32 [sequences, query heads, head size]."""
        heads = self._heads * self._group
        weights = torch.softmax(scores, -1)
        if rows.max_blocks > 1:
            # The logsumexp of each block, from its largest score: faster than torch.logsumexp.
            sums = (scores.amax(-1) - weights.amax(-1).log_()).view(-1, heads)
            sums = torch.cat((sums, sums.new_full((1, heads), masked_bias(torch.float32))))
            of_blocks = torch.softmax(sums.index_select(0, rows.table).view(rows.sequences, rows.max_blocks, heads), 1)
            weights *= of_blocks.view(-1, heads).index_select(0, rows.table_index).view(-1, self._group, 1)
        parts = torch.bmm(weights.to(values.dtype), values).view(-1, heads, self._size)
        if rows.max_blocks == 1:
            return parts.index_select(0, rows.table)
        whole = torch.zeros((rows.sequences + 1, heads, self._size), dtype=torch.float32, device=scores.device)
        return whole.index_add_(0, rows.owners, parts.float())[:-1]

    def _past(self, states: torch.Tensor, part: PrefillPart) -> torch.Tensor:
        """Return the keys or values of a sequence up to the part's end, [tokens, heads, head size]."""
        blocks = states.index_select(0, part.blocks).transpose(1, 2)
        return blocks.reshape(-1, self._heads, self._size)[: part.start + part.num_tokens]

    def _prefill_by_matmul(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        part: PrefillPart,
        window: int | None,
        scale: float,
    ) -> torch.Tensor:
        """As _prefill, by plain matmuls of few sizes: whole blocks of the cache, and a rounded number of tokens."""
        rows = -(-part.num_tokens // _TOKENS_MULTIPLE) * _TOKENS_MULTIPLE
        queries = query.new_zeros(self._heads, self._group, rows, self._size)
        queries[:, :, : part.num_tokens] = query.view(-1, self._heads, self._group, self._size).permute(1, 2, 0, 3)
        past_keys, past_values = (
            states.index_select(0, part.blocks).transpose(0, 1).reshape(self._heads, -1, self._size)
            for states in (keys, values)
        )
        mask = part.padded_mask(window, rows, self._group, query.dtype).expand(self._heads, -1, -1)
        scores = torch.baddbmm(mask, queries.view(self._heads, -1, self._size), past_keys.transpose(1, 2), alpha=scale)
        attended = torch.bmm(torch.softmax(scores, -1), past_values)
        attended = attended.reshape(self._heads, self._group, rows, self._size)[:, :, : part.num_tokens]
        return attended.permute(2, 0, 1, 3).reshape(part.num_tokens, -1, self._size)

    def _prefill(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
        softcap: float | None,
    ) -> torch.Tensor:
        """Attend for the last tokens of a sequence, over all of it. `mask` None: causal."""
        count, length = len(query), len(key)
        queries = query.view(count, self._heads, self._group, self._size).permute(1, 2, 0, 3)
        shape = (self._heads, self._group, length, self._size)
        keys = key.transpose(0, 1)[:, None].expand(shape)
        values = value.transpose(0, 1)[:, None].expand(shape)
        if softcap is None:
            attended = torch.nn.functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale
            )
        else:
            mask = causal_mask(0, count, length, None, query.dtype, query.device) if mask is None else mask
            scores = torch.tanh(torch.matmul(queries, keys.transpose(-1, -2)) * (scale / softcap)) * softcap + mask
            attended = torch.matmul(torch.softmax(scores.float(), -1).to(query.dtype), values)
        return attended.permute(2, 0, 1, 3).reshape(count, self._heads * self._group, self._size)


def _is_matmul_faster(part: PrefillPart, query: torch.Tensor) -> bool:
    """Return whether oneDNN's bfloat16 matmuls are faster than torch's attention, which does not use them."""
    if query.dtype != torch.bfloat16 or query.device.type != "cpu" or not kernels.multiplies_bf16():
        return False
    return (part.num_tokens >= _MIN_TOKENS_FROM_START or part.start > 0) and part.start + part.num_tokens <= _MAX_TOKENS
