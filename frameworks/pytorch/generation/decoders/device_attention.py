"""A step's attention by the kernels of frameworks/pytorch/device_kernels, which read the cache in place."""

from functools import cache as cached
from typing import TYPE_CHECKING

import torch

from frameworks.pytorch.generation.decoders.kv_cache import KeyValueCache
from frameworks.pytorch.generation.decoders.step_layout import StepLayout

if TYPE_CHECKING:
    from frameworks.pytorch.device_kernels.decode_attention import AttentionScores


class DeviceAttention:
    """Of one model. Used by one thread."""

    def __init__(self, cache: KeyValueCache, query_heads: int, device: torch.device) -> None:
        """`cache`: with rows of keys, not transposed. `query_heads`: a multiple of its heads."""
        # Importing them needs Triton.
        from frameworks.pytorch.device_kernels import decode_attention, layer_kernels, prefill_attention

        self.kernels = layer_kernels
        self._cache = cache
        heads = cache.shape.heads
        self._decode = decode_attention.DecodeAttention(heads, query_heads // heads, cache.shape.head_size, device)
        self._attend_prefills = prefill_attention.attend_prefills
        self._scores = cached(decode_attention.AttentionScores)

    def scores(self, scale: float, window: int | None, softcap: float | None) -> "AttentionScores":
        """Return how a layer computes its scores."""
        return self._scores(scale, window or 0, softcap or 0.0)

    def write(self, layer: int, layout: StepLayout, key_value: torch.Tensor) -> None:
        """Write keys and values, [rows, 2 * heads, head size], the keys first."""
        assert layout.tables is not None
        keys, values = self._cache.layers[layer]
        if key_value.stride(2) != 1:
            key_value = key_value.contiguous()
        self.kernels.write(key_value, keys, values, layout.tables.blocks, layout.tables.offsets)

    def rotate_and_write(
        self,
        layer: int,
        layout: StepLayout,
        heads: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        epsilon: float,
    ) -> None:
        """As layer_kernels.rotate_and_write, into the cache. `rotation`: cosines and sines."""
        assert layout.tables is not None
        keys, values = self._cache.layers[layer]
        blocks, offsets = layout.tables.blocks, layout.tables.offsets
        self.kernels.rotate_and_write(heads, *rotation, norms, epsilon, keys, values, blocks, offsets)

    def attend(self, layer: int, layout: StepLayout, query: torch.Tensor, scores: "AttentionScores") -> torch.Tensor:
        """Attend to what is written: [rows, query heads, head size] → the same."""
        tables, decodes = layout.tables, layout.num_decodes
        assert tables is not None
        keys, values = self._cache.layers[layer]
        if query.stride(2) != 1 or query.stride(1) != query.shape[2]:
            query = query.contiguous()
        attended = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if decodes:
            splits = self._decode.num_splits(decodes, tables.most_blocks)
            self._decode.attend(
                *(query[:decodes], keys, values, tables.table, tables.lengths, scores, splits, attended[:decodes])
            )
        if tables.prefills is not None:
            of_parts = tables.prefills
            self._attend_prefills(
                *(query, keys, values, of_parts.table, of_parts.firsts, of_parts.counts, of_parts.starts),
                *(of_parts.most_tokens, scores, attended),
            )
        return attended
