"""The KV cache: one tensor, divided into blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from frameworks.pytorch.large_pages import zeros
from frameworks.scheduling.steps.blocks import Copy
from frameworks.scheduling.steps.sequence import StepPart

BLOCK_TOKENS = 32
"""Tokens per block: prefixes are matched in such steps, and half a block per sequence is unused on average."""


def masked_bias(dtype: torch.dtype) -> float:
    """Return the addend for the score of a masked token. Finite, so that a softmax of masked scores alone is no NaN."""
    return -6e4 if dtype == torch.float16 else -1e9


def causal_mask(
    start: int, count: int, length: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the addends of the scores of tokens from `start` on, [count, length]: 0 within the causal window."""
    own = torch.arange(start, start + count, device=device)[:, None]
    other = torch.arange(length, device=device)
    is_visible = other <= own
    if window is not None:
        is_visible &= other > own - window
    return torch.zeros((count, length), dtype=dtype, device=device).masked_fill_(~is_visible, masked_bias(dtype))


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Keys and values of a token: `heads` heads of `head_size` elements in each layer."""

    layers: int
    heads: int
    head_size: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.heads * self.head_size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class CacheSlots:
    """Where the keys and values of tokens are written.

    With transposed keys: `blocks` and `offsets`, int64 [tokens], are the block of each token and its position in it.
    Otherwise: `rows`, int64 [tokens * 2 * heads], are the rows of a layer for each token's keys, then for its values.
    """

    blocks: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    rows: torch.Tensor | None = None


class KeyValueCache:
    """`blocks` blocks on a device. Masked values are multiplied by 0, so they must not be NaN: blocks are zeroed here,
    and again when a sequence starts one, since earlier contents may be NaN or infinite.

    On a CPU the keys of a block are transposed, [head size, tokens]: the scores of a query are sums of whole vectors.
    """

    def __init__(
        self, shape: CacheShape, blocks: int, device: torch.device, *, is_transposed: bool | None = None
    ) -> None:
        """`is_transposed`: whether keys are; None: as the device has them. Raises RuntimeError without memory."""
        self.shape = shape
        self.blocks = blocks
        self.device = device
        self._is_transposed = device.type == "cpu" if is_transposed is None else is_transposed
        sizes = (shape.layers, 2, blocks, shape.heads, BLOCK_TOKENS * shape.head_size)
        # The bytes of float8: few operators of torch take it.
        dtype = torch.uint8 if shape.dtype == torch.float8_e4m3fn else shape.dtype
        self._tensor = zeros(sizes, dtype) if device.type == "cpu" else torch.zeros(sizes, dtype=dtype, device=device)
        keys, values = self._tensor.unbind(1)
        in_rows = (*keys.shape[:-1], BLOCK_TOKENS, shape.head_size)
        in_columns = (*keys.shape[:-1], shape.head_size, BLOCK_TOKENS)
        # [layers, blocks, heads, head_size, BLOCK_TOKENS]
        self._columns = keys.view(in_columns) if self._is_transposed else keys.view(in_rows).transpose(-1, -2)
        self._keys = self._columns.transpose(-1, -2)
        self._values = values.view(in_rows)
        self.layers = list(zip(self._keys, self._values, strict=True))
        """Keys and values of each layer: [blocks, heads, BLOCK_TOKENS, head_size]."""
        self._rows = [layer.view(-1, shape.head_size) for layer in self._tensor]
        # Of a token, relative to its block's first key: those of all heads, keys first.
        heads = np.arange(shape.heads)
        self._heads = np.concatenate((heads, blocks * shape.heads + heads))

    @property
    def size_bytes(self) -> int:
        return self._tensor.nbytes

    def slots(self, blocks: Sequence[int], positions: Sequence[int]) -> CacheSlots:
        """Return where tokens are written, from the block of each and its position in its sequence."""
        of_blocks, in_blocks = np.asarray(blocks), np.asarray(positions) % BLOCK_TOKENS
        if self._is_transposed:
            return CacheSlots(torch.from_numpy(of_blocks), torch.from_numpy(in_blocks))
        rows = (of_blocks[:, None] * self.shape.heads + self._heads) * BLOCK_TOKENS + in_blocks[:, None]
        return CacheSlots(rows=torch.from_numpy(rows.reshape(-1)).to(self.device, non_blocking=True))

    def write(self, layer: int, slots: CacheSlots, states: torch.Tensor) -> None:
        """Write keys and values of a layer. `states`: [tokens, 2 * heads, head size], the keys first."""
        if slots.rows is not None:
            self._rows[layer].index_copy_(0, slots.rows, states.reshape(-1, self.shape.head_size))
            return
        for target, own in zip(self.layers[layer], states.chunk(2, 1), strict=True):
            target[slots.blocks, :, slots.offsets] = own

    def blocks_of_all_layers(self, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the blocks from `low` to `high`: keys [layers, blocks * heads, head_size, BLOCK_TOKENS], values
        [layers, blocks * heads, BLOCK_TOKENS, head_size].
        """
        return self._columns[:, low:high].flatten(1, 2), self._values[:, low:high].flatten(1, 2)

    def copies_of_blocks(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As blocks_of_all_layers, of one layer, as copies. `blocks`: int64, in any order."""
        if self._is_transposed:
            keys = self._columns[layer].index_select(0, blocks).flatten(0, 1)
        else:
            keys = self._keys[layer].index_select(0, blocks).flatten(0, 1).transpose(1, 2)
        return keys, self._values[layer].index_select(0, blocks).flatten(0, 1)

    def copy(self, copies: list[Copy]) -> None:
        """Make the copies in their order, as many at once as are independent."""
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
        """Zero the blocks that a step starts and does not fill. Call it before the step writes."""
        blocks = []
        for part in parts:
            end = part.start + part.num_tokens
            last = end // BLOCK_TOKENS
            if part.start <= last * BLOCK_TOKENS < end:
                blocks.append(part.sequence.blocks[last])
        self.clear(blocks)

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero these blocks."""
        if blocks:
            self._tensor.index_fill_(2, torch.tensor(blocks, device=self._tensor.device), 0)

    def _copy(self, copies: list[Copy]) -> None:
        device = self._tensor.device
        sources = torch.tensor([one.source for one in copies], device=device)
        destinations = torch.tensor([one.destination for one in copies], device=device)
        self._tensor[:, :, destinations] = self._tensor.index_select(2, sources)
