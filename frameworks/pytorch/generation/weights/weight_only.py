"""Weight-only quantization: linear layers of int8 and int4 weights with bfloat16 activations.

torch has fast matmuls of these weights for bfloat16 activations alone, in vector instructions of AVX2 and AVX-512. With
float32 activations they take three to a hundred times as long.
"""

import torch

from frameworks.pytorch.generation.weights.group_weights import GroupWeights
from frameworks.pytorch.generation.weights.linear import UnfusedLinear
from frameworks.pytorch.int8_matmul import quantize_weight
from frameworks.quantization.ranges import WHOLE

INT8_INPUTS_MULTIPLE = 32
"""torch's int8 matmul reads beyond rows of other lengths."""
INT4_OUTPUTS_MULTIPLE = 16
INT4_GROUPS = (32, 64, 128, 256)


class Int8WeightLinear(UnfusedLinear):
    """int8 weights with one scale for each output."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """`weight`: [outputs, inputs], the inputs a multiple of INT8_INPUTS_MULTIPLE."""
        values, scale = quantize_weight(weight, WHOLE)
        self._values = values
        self._scale = scale.bfloat16()
        # The operator's scale is rounded to bfloat16; its relative error is corrected here, and the bias added.
        self._correction = scale / self._scale.float()
        self._bias = None if bias is None else bias.detach().float()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.aten._weight_int8pack_mm(rows.bfloat16(), self._values, self._scale)
        wide = product.float().mul_(self._correction)
        return (wide if self._bias is None else wide.add_(self._bias)).to(rows.dtype)


class Int4WeightLinear(UnfusedLinear):
    """int4 weights with a scale and a shift for each group of inputs."""

    def __init__(self, weights: GroupWeights, bias: torch.Tensor | None = None) -> None:
        """`weights`: as `packs_int4` accepts."""
        from_zero = weights.values.to(torch.int32).add_(8)
        self._packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(from_zero, 1)
        shift = torch.zeros_like(weights.scale) if weights.shift is None else weights.shift
        self._scale_and_shift = torch.stack((weights.scale, shift), -1).transpose(0, 1).contiguous().bfloat16()
        self._group = weights.group
        self._bias = None if bias is None else bias.detach().float()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            rows.bfloat16(), self._packed, self._group, self._scale_and_shift
        )
        if self._bias is None:
            return product.to(rows.dtype)
        return product.float().add_(self._bias).to(rows.dtype)


def packs_int4(outputs: int, inputs: int, group: int) -> bool:
    """Return whether torch has a matmul of int4 weights of this shape on a CPU."""
    return group in INT4_GROUPS and inputs % group == 0 and outputs % INT4_OUTPUTS_MULTIPLE == 0


def int4_bytes(outputs: int, inputs: int, group: int) -> int:
    """Return the bytes of packed weights, scales and shifts."""
    return outputs * inputs // 2 + outputs * (inputs // group) * 2 * torch.bfloat16.itemsize
