"""Linear layers that are compiled GEMMs, of weights of every dtype.

Making the first one of a dtype compiles its GEMM, in a few seconds, unless the code is in the cache.
"""

from typing import TYPE_CHECKING

import torch

from frameworks.pytorch.compiled.cpu_features import has_integers
from frameworks.pytorch.compiled.matmul.float_linears import FormatName, packed_format
from frameworks.pytorch.generation.weights.group_weights import GroupWeights, quantize_groups
from frameworks.pytorch.int8_matmul import quantize_weight
from frameworks.quantization.ranges import WHOLE

if TYPE_CHECKING:
    from frameworks.pytorch.compiled.matmul.linear import CompiledLinear

GROUP = 32
"""Inputs of a quantization group, or a divisor of them."""


def make_int8(weight: torch.Tensor, bias: torch.Tensor | None) -> "CompiledLinear":
    """Make a layer of weights [outputs, inputs] of any float dtype, quantized to int8 by the absolute maximum of each
    output. Activations are quantized by row.
    """
    from frameworks.pytorch.compiled.matmul.linear import CompiledLinear

    packed = packed_format("int8")
    values, scale = quantize_weight(weight, WHOLE)
    return CompiledLinear(packed.pack(values.numpy(), scale.numpy()), _shape(weight), bias, packed)


def make_int8_groups(
    weight: torch.Tensor, bias: torch.Tensor | None, name: FormatName = "int8_groups"
) -> "CompiledLinear":
    """Make a layer of weights [outputs, inputs] of any float dtype, quantized to int8 in groups of GROUP inputs.

    `name`: a format of such weights; that of "int8_weight_only" leaves activations unquantized.
    """
    return make_groups(quantize_groups(weight, 8, GROUP), bias, name)


def make_int4(weight: torch.Tensor, bias: torch.Tensor | None) -> "CompiledLinear":
    """Make a layer of weights [outputs, inputs] of any float dtype, quantized to int4 in groups of GROUP inputs."""
    return make_groups(quantize_groups(weight, 4, GROUP), bias)


def packs_groups(weights: GroupWeights) -> bool:
    """Return whether `make_groups` packs these weights: exactly, but for scales and shifts in float16."""
    has_all = weights.bits == 4 or weights.shift is None
    return has_integers() and weights.group % GROUP == 0 and has_all


def make_groups(
    weights: GroupWeights, bias: torch.Tensor | None, int8_name: FormatName = "int8_groups"
) -> "CompiledLinear":
    """Make a layer of weights that `packs_groups` accepts. `bias`: [outputs]. `int8_name`: the format of 8 bits."""
    from frameworks.pytorch.compiled.matmul.linear import CompiledLinear

    values, scale = weights.values.numpy(), weights.scale.float().numpy()
    if weights.bits == 4:
        packed = packed_format("int4")
        shift = None if weights.shift is None else weights.shift.float().numpy()
        buffer = packed.pack(values, scale, shift, weights.group)
    else:
        packed = packed_format(int8_name)
        buffer = packed.pack(values, scale, weights.group)
    return CompiledLinear(buffer, (weights.outputs, weights.inputs), bias, packed)


def _shape(weight: torch.Tensor) -> tuple[int, int]:
    return weight.shape[0], weight.shape[1]
