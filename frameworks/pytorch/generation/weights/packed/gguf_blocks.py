"""Unpack the blocks of quantized tensors in GGUF files to weights with a scale for each group.

The layouts: ggml-common.h and ggml-quants.c of https://github.com/ggml-org/llama.cpp.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from frameworks.pytorch.generation.weights.group_weights import GroupWeights
from frameworks.text.gguf.header import BlockType

_MIDDLE = 8


@dataclass(frozen=True, slots=True)
class Groups:
    """Weights of blocks: values int8 [blocks, elements], float32 scale and shift [blocks, groups of a block].

    A weight is its value times the scale of its group, plus the shift. `shift`: None for 0.
    """

    values: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor | None = None


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """Return the 16-bit float at this byte of each block, [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor, run: int) -> torch.Tensor:
    """Return 4-bit integers, uint8 [blocks, elements]: of each `run` bytes first the low halves, then the high ones."""
    runs = packed.reshape(packed.shape[0], -1, 1, run)
    return torch.cat((runs & 15, runs >> 4), 2).reshape(packed.shape[0], -1)


def _bits(packed: torch.Tensor, bits: int, run: int) -> torch.Tensor:
    """Return integers of `bits` bits, uint8 [blocks, elements]: of each `run` bytes the lowest bits first."""
    runs = packed.reshape(packed.shape[0], -1, 1, run)
    mask = (1 << bits) - 1
    return torch.cat([(runs >> shift) & mask for shift in range(0, 8, bits)], 2).reshape(packed.shape[0], -1)


def _fifth_bits(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """Return 16 for each of 32 elements whose bit is set in the 4 bytes from `start`, else 0."""
    bits = blocks[:, start : start + 4, None] >> torch.arange(8, dtype=torch.uint8)
    return (bits & 1).reshape(len(blocks), 32) << 4


def _q8_0(blocks: torch.Tensor) -> Groups:
    return Groups(blocks[:, 2:].view(torch.int8), _half(blocks, 0))


def _q4_0(blocks: torch.Tensor) -> Groups:
    return Groups(_nibbles(blocks[:, 2:], 16).view(torch.int8) - _MIDDLE, _half(blocks, 0))


def _q4_1(blocks: torch.Tensor) -> Groups:
    scale = _half(blocks, 0)
    return Groups(_nibbles(blocks[:, 4:], 16).view(torch.int8) - _MIDDLE, scale, _MIDDLE * scale + _half(blocks, 2))


def _q5_0(blocks: torch.Tensor) -> Groups:
    values = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks, 2)
    return Groups(values.view(torch.int8) - 16, _half(blocks, 0))


def _q5_1(blocks: torch.Tensor) -> Groups:
    values = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks, 4)
    return Groups(values.view(torch.int8), _half(blocks, 0), _half(blocks, 2))


def _scales_and_minima(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scales and minima of the 8 groups of Q4_K and Q5_K, [blocks, 8]: 6 bits each, packed in 12 bytes."""
    low, middle, high = blocks[:, 4:16].reshape(-1, 3, 4).unbind(1)
    scale = torch.cat((low & 63, (high & 15) | ((low >> 2) & 48)), 1).float()
    minimum = torch.cat((middle & 63, (high >> 4) | ((middle >> 2) & 48)), 1).float()
    return _half(blocks, 0) * scale, _half(blocks, 2) * minimum


def _q4_k(blocks: torch.Tensor) -> Groups:
    scale, minimum = _scales_and_minima(blocks)
    return Groups(_nibbles(blocks[:, 16:], 32).view(torch.int8) - _MIDDLE, scale, _MIDDLE * scale - minimum)


def _q5_k(blocks: torch.Tensor) -> Groups:
    scale, minimum = _scales_and_minima(blocks)
    values = _nibbles(blocks[:, 48:], 32) | (_bits(blocks[:, 16:48], 1, 32) << 4)
    return Groups(values.view(torch.int8), scale, -minimum)


def _q6_k(blocks: torch.Tensor) -> Groups:
    values = _nibbles(blocks[:, :128], 64) | (_bits(blocks[:, 128:192], 2, 32) << 4)
    scale = _half(blocks, 208) * blocks[:, 192:208].contiguous().view(torch.int8).float()
    return Groups(values.view(torch.int8) - 32, scale)


_READERS: dict[str, Callable[[torch.Tensor], Groups]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def read_blocks(raw: torch.Tensor, block_type: BlockType) -> GroupWeights:
    """Return the weights of rows of blocks. `raw`: uint8 [outputs, bytes of a row], of a quantized type."""
    outputs = raw.shape[0]
    found = _READERS[block_type.name](raw.reshape(-1, block_type.size_bytes))
    return GroupWeights(
        found.values.reshape(outputs, -1),
        found.scale.reshape(outputs, -1),
        None if found.shift is None else found.shift.reshape(outputs, -1),
        block_type.bits,
        block_type.group,
    )
