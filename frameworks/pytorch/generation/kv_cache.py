"""The key/value cache: one tensor, divided into blocks."""

from dataclasses import dataclass

import torch

from frameworks.generation.blocks import Copy
from frameworks.generation.sequence import StepPart

BLOCK_TOKENS = 32
"""Tokens per block: prefixes are matched in such steps, and half a block per sequence is unused on average."""


def masked_bias(dtype: torch.dtype) -> float:
    """Return the addend for products of a token that is not visible. Finite, so that a fully masked row
    gives no NaN.
    """
    return -6e4 if dtype == torch.float16 else -1e9


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Keys and values of a token: `heads` heads of `head_size` numbers in each layer."""

    layers: int
    heads: int
    head_size: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.heads * self.head_size * self.dtype.itemsize


class KeyValueCache:
    """`blocks` blocks on a device. Masked numbers are multiplied by 0, so they must not be NaN: blocks are zeroed here,
    and again when a sequence starts one, since earlier contents may be NaN or infinite.
    """

    def __init__(self, shape: CacheShape, blocks: int, device: torch.device) -> None:
        self.shape = shape
        self.blocks = blocks
        self._tensor = torch.zeros(
            (shape.layers, 2, blocks, shape.heads, BLOCK_TOKENS, shape.head_size), dtype=shape.dtype, device=device
        )
        self.layers = [(layer[0], layer[1]) for layer in self._tensor]
        """Keys and values of each layer: [blocks, heads, BLOCK_TOKENS, head_size]."""
        self.rows = [layer.view(-1, shape.head_size) for layer in self._tensor]
        """The same of each layer as rows of head_size numbers, all keys first."""

    @property
    def size_bytes(self) -> int:
        return self._tensor.nbytes

    def blocks_of_all_layers(self, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the blocks from `low` to `high`: [layers, blocks * heads, BLOCK_TOKENS,
        head_size] each.
        """
        piece = self._tensor[:, :, low:high].flatten(2, 3)
        return piece[:, 0], piece[:, 1]

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
        ends = [(part, (part.start + part.num_tokens) // BLOCK_TOKENS) for part in parts]
        blocks = [
            part.sequence.blocks[last]
            for part, last in ends
            if part.start <= last * BLOCK_TOKENS < part.start + part.num_tokens
        ]
        if blocks:
            self._tensor.index_fill_(2, torch.tensor(blocks, device=self._tensor.device), 0)

    def _copy(self, copies: list[Copy]) -> None:
        device = self._tensor.device
        sources = torch.tensor([one.source for one in copies], device=device)
        destinations = torch.tensor([one.destination for one in copies], device=device)
        self._tensor[:, :, destinations] = self._tensor.index_select(2, sources)
