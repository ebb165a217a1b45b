"""The formats of compiled GEMMs by name, and linear layers of float weights. Importing this compiles nothing.

Making the first layer of a dtype compiles its GEMM, in a few seconds, unless the code is in the cache.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Literal

import torch

from frameworks.pytorch.compiled.cpu_features import has_amx, has_integers, lanes

if TYPE_CHECKING:
    from frameworks.pytorch.compiled.matmul.formats import PackedFormat
    from frameworks.pytorch.compiled.matmul.linear import CompiledLinear

FormatName = Literal[
    "float32", "float32_bfloat16x3", "float16", "bfloat16", "int8", "int4", "int8_groups", "int8_weight_only"
]


def packed_format(name: FormatName) -> "PackedFormat":
    """Return the format of this name, compiled."""
    # Each module compiles when it is imported.
    found: PackedFormat = import_module(f"frameworks.pytorch.compiled.dtypes.{name}").PACKED
    return found


def compiles(name: FormatName) -> bool:
    """Return whether a GEMM of this format can be compiled for this CPU."""
    if name in ("int8_weight_only", "float32_bfloat16x3"):
        return has_amx()
    return has_integers() if name in ("int8", "int4", "int8_groups") else lanes() > 0


def compiled_bytes(name: FormatName, outputs: int, inputs: int) -> int:
    """Return the bytes of packed weights."""
    return packed_format(name).format.held_bytes(outputs, inputs)


def make_float(name: FormatName, weight: torch.Tensor, bias: torch.Tensor | None) -> "CompiledLinear":
    """Make a layer of float weights [outputs, inputs], which are rounded to the dtype of the format."""
    from frameworks.pytorch.compiled.matmul.linear import CompiledLinear

    packed = packed_format(name)
    return CompiledLinear(
        packed.pack(weight.detach().float().numpy()), (weight.shape[0], weight.shape[1]), bias, packed
    )
