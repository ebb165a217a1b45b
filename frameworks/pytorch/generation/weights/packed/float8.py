"""Weights of 8 bits with a sign, 4 bits of exponent and 3 of mantissa (e4m3), and a scale for each row or block."""

import math

import torch

from frameworks.pytorch.generation.weights.group_weights import GroupWeights, held_bytes
from frameworks.pytorch.generation.weights.packed.weight import Selection

FLOAT8 = torch.float8_e4m3fn
_NAN = 0x7F
_ROWS_AT_ONCE = 256


class Float8Weight:
    """A PackedWeight of floats. The scales of a tensor, of its rows or of its blocks become those of groups."""

    order: torch.Tensor | None = None
    bits = 8
    is_float = True

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int] | None) -> None:
        """`weight`: [outputs, inputs]. `scale`: one number, [outputs] or [outputs, 1], or with `block`, the outputs and
        inputs of one, [blocks of outputs, blocks of inputs].

        Raises ValueError where they do not fit each other.
        """
        if weight.dtype != FLOAT8 or weight.ndim != 2:
            raise ValueError(f"expected a matrix of float8_e4m3fn, got {weight.dtype} {list(weight.shape)}")
        self.outputs, self.inputs = int(weight.shape[0]), int(weight.shape[1])
        self._weight = weight
        scale = scale.float()
        if block is None or scale.numel() == 1:
            if scale.numel() not in (1, self.outputs):
                raise ValueError(f"expected weight_scale [{self.outputs}, 1], got {list(scale.shape)}")
            self._scale, self._block_outputs = scale.reshape(-1, 1), 1 if scale.numel() > 1 else self.outputs
            self.group = self.inputs
        else:
            expected = (-(-self.outputs // block[0]), -(-self.inputs // block[1]))
            if tuple(scale.shape) != expected:
                raise ValueError(f"expected the scales of blocks {list(expected)}, got {list(scale.shape)}")
            # The last block may have fewer inputs than the others.
            self.group = math.gcd(block[1], self.inputs)
            repeated = scale.repeat_interleave(block[1] // self.group, 1)
            self._scale, self._block_outputs = repeated[:, : self.inputs // self.group], block[0]
        if not bool(torch.isfinite(self._scale).all()):
            raise ValueError("expected finite scales, got others")
        # The kernels read NaN as a number.
        if any(bool(((rows & _NAN) == _NAN).any()) for rows in torch.split(weight.view(torch.uint8), _ROWS_AT_ONCE)):
            raise ValueError("expected weights without NaN, got NaN")
        self.held_bytes = held_bytes(self.outputs * self.inputs, self.bits, self.group)

    def read(self, selection: Selection) -> GroupWeights:
        """As PackedWeight.read."""
        chosen = torch.arange(self.outputs)[selection] if isinstance(selection, slice) else selection
        values = self._weight.view(torch.uint8)[selection]
        scale = self._scale[chosen // self._block_outputs]
        return GroupWeights(values.view(FLOAT8), scale.contiguous(), None, self.bits, self.group)
