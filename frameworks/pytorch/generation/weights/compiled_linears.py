"""Linear layers that are compiled GEMMs, of weights of every dtype.

Making the first one of a dtype compiles its GEMM, in a few seconds, unless the code is in the cache.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Literal

import torch

from frameworks.pytorch.compiled.cpu_features import has_integers, lanes
from frameworks.pytorch.generation.weights.group_weights import GroupWeights, quantize_groups
from frameworks.pytorch.int8_matmul import quantize_weight
from frameworks.quantization.ranges import WHOLE

if TYPE_CHECKING:
    from frameworks.pytorch.compiled.matmul.formats import PackedFormat
    from frameworks.pytorch.compiled.matmul.linear import CompiledLinear

FormatName = Literal["float32", "float16", "bfloat16", "int8", "int4", "int8_groups"]
GROUP = 32
"""Inputs of a quantization group, or a divisor of them."""


def packed_format(name: FormatName) -> "PackedFormat":
    """Return the format of this name, compiled."""
    # Each module compiles when it is imported.
    found: PackedFormat = import_module(f"frameworks.pytorch.compiled.dtypes.{name}").PACKED
    return found


def compiles(name: FormatName) -> bool:
    """Return whether a GEMM of this format can be compiled for this CPU."""
    return has_integers() if name in ("int8", "int4", "int8_groups") else lanes() > 0


def compiled_bytes(name: FormatName, outputs: int, inputs: int) -> int:
    """Return the bytes of packed weights."""
    return packed_format(name).format.held_bytes(outputs, inputs)


def make_float(name: FormatName, weight: torch.Tensor, bias: torch.Tensor | None) -> "CompiledLinear":
    """Make a layer of float weights [outputs, inputs], which are rounded to the dtype of the format."""
    from frameworks.pytorch.compiled.matmul.linear import CompiledLinear

    packed = packed_format(name)
    return CompiledLinear(packed.pack(weight.detach().float().numpy()), _shape(weight), bias, packed)


def make_int8(weight: torch.Tensor, bias: torch.Tensor | None) -> "CompiledLinear":
    """Make a layer of weights [outputs, inputs] of any float dtype, quantized to int8 by the absolute maximum of each
    output. Activations are quantized by row.
    """
    from frameworks.pytorch.compiled.matmul.linear import CompiledLinear

    packed = packed_format("int8")
    values, scale = quantize_weight(weight, WHOLE)
    return CompiledLinear(packed.pack(values.numpy(), scale.numpy()), _shape(weight), bias, packed)


def make_int8_groups(weight: torch.Tensor, bias: torch.Tensor | None) -> "CompiledLinear":
    """Make a layer of weights [outputs, inputs] of any float dtype, quantized to int8 in groups of GROUP inputs."""
    return make_groups(quantize_groups(weight, 8, GROUP), bias)


def make_int4(weight: torch.Tensor, bias: torch.Tensor | None) -> "CompiledLinear":
    """Make a layer of weights [outputs, inputs] of any float dtype, quantized to int4 in groups of GROUP inputs."""
    return make_groups(quantize_groups(weight, 4, GROUP), bias)


def packs_groups(weights: GroupWeights) -> bool:
    """Return whether `make_groups` packs these weights: exactly, but for scales and shifts in float16."""
    has_all = weights.bits == 4 or weights.shift is None
    return has_integers() and weights.group % GROUP == 0 and has_all


def make_groups(weights: GroupWeights, bias: torch.Tensor | None) -> "CompiledLinear":
    """Make a layer of weights that `packs_groups` accepts. `bias`: [outputs]."""
    from frameworks.pytorch.compiled.matmul.linear import CompiledLinear

    values, scale = weights.values.numpy(), weights.scale.float().numpy()
    if weights.bits == 4:
        packed = packed_format("int4")
        shift = None if weights.shift is None else weights.shift.float().numpy()
        buffer = packed.pack(values, scale, shift, weights.group)
    else:
        packed = packed_format("int8_groups")
        buffer = packed.pack(values, scale, weights.group)
    return CompiledLinear(buffer, (weights.outputs, weights.inputs), bias, packed)


def _shape(weight: torch.Tensor) -> tuple[int, int]:
    return weight.shape[0], weight.shape[1]
