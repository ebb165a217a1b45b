"""The matmul kernels of a CPU for the linear layers of a language model, by the dtype of the weights.

kernel_choice.py measures which is fastest. Each name is a value of the setting `kernels`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from frameworks.pytorch import kernels
from frameworks.pytorch.compiled.matmul.float_linears import (
    FormatName,
    compiled_bytes,
    compiles,
    make_float,
    packed_format,
)
from frameworks.pytorch.generation.weights.compiled_linears import (
    GROUP,
    make_groups,
    make_int4,
    make_int8,
    make_int8_groups,
)
from frameworks.pytorch.generation.weights.group_weights import GroupWeights, quantize_groups
from frameworks.pytorch.generation.weights.linear import (
    Float16Linear,
    Linear,
    MakeLinear,
    MklLinear,
    PackedLinear,
    PlainLinear,
    QuantizedLinear,
)
from frameworks.pytorch.generation.weights.weight_only import (
    INT8_INPUTS_MULTIPLE,
    Int4WeightLinear,
    Int8WeightLinear,
    int4_bytes,
    packs_int4,
)
from frameworks.pytorch.int8_choice import exact_kernels
from frameworks.pytorch.int8_matmul import Int8Kernel

GROUPED = "grouped"
"""Weights that are quantized in groups of inputs, for `CpuKernel.weights`."""
_FBGEMM_BLOCK = 512
# Layers that are all compiled save the calls between them, which take as long as the matmuls of a small model.
_MAX_TIME_OF_CALLS = 0.7
# Relative to the largest weight: float32 dot products of a few hundred elements are no more exact.
_MAX_FLOAT16_ERROR = 1e-6
# Pieces of the weights stay in the CPU's cache.
_ELEMENTS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class CpuKernel:
    """A matmul kernel. `held_bytes`: by outputs and inputs. `fits`: whether it computes these weights, [outputs,
    inputs], as exactly as their dtype. `weights`: name of the range that int8 weights are quantized to. `copies`: the
    layer holds a copy of the given weights. `max_rival_time`: another kernel is chosen only if it takes less than this
    part of the time. `prepare`: does the one-time work of the first layer. `code`: the part of compiling/parts.py that
    it needs; None for a kernel of torch. `restores`: its layers are RestorableLinear. `of_groups`: makes a layer of
    weights that are already quantized; None: `make` does.
    """

    name: str
    make: MakeLinear
    held_bytes: Callable[[int, int], int]
    fits: Callable[[torch.Tensor], bool] = lambda _: True
    weights: str = ""
    copies: bool = True
    max_rival_time: float = 0.9
    prepare: Callable[[], object] = lambda: None
    code: FormatName | None = None
    restores: bool = False
    of_groups: Callable[[GroupWeights, torch.Tensor | None], Linear] | None = None


def float_kernels(dtype: torch.dtype) -> tuple[CpuKernel, ...]:
    """Return the kernels of float weights of this dtype, the usual one first."""
    size = dtype.itemsize
    plain = CpuKernel("plain", PlainLinear, partial(_dense_bytes, size), copies=False, restores=True)
    found = [plain]
    if kernels.packs(dtype):
        found.insert(0, CpuKernel("onednn", PackedLinear, partial(_dense_bytes, size), restores=True))
    if dtype == torch.float32:
        found.append(CpuKernel("mkl", MklLinear, partial(_dense_bytes, size)))
    if dtype in (torch.float32, torch.float16):
        found.append(FLOAT16)
    found = [each for each in found if _works(dtype, each.make)]
    name = _FLOAT_FORMATS.get(dtype)
    if name is not None and compiles(name):
        found.insert(0, _compiled("compiled", name, partial(make_float, name)))
    if dtype == torch.float32 and compiles("float16"):
        # For large batches nearly as fast as float32 weights, for one row more than twice as fast.
        found.insert(0, COMPILED_FLOAT16)
    return tuple(found)


def float_format(dtype: torch.dtype) -> FormatName:
    """Return the format of compiled GEMMs for float weights of this dtype."""
    return _FLOAT_FORMATS[dtype]


def int8_kernels() -> tuple[CpuKernel, ...]:
    """Return the int8 kernels of this CPU: the compiled ones first, then the one with float activations."""
    found = [_int8_kernel(each) for each in exact_kernels()]
    if _works(torch.float32, INT8_WEIGHT_ONLY.make):
        found.insert(0, INT8_WEIGHT_ONLY)
    return (COMPILED_INT8, COMPILED_INT8_ROWS, *found) if compiles("int8") else tuple(found)


def int4_kernels() -> tuple[CpuKernel, ...]:
    """Return the int4 kernels of this CPU."""
    found = [COMPILED_INT4] if compiles("int4") else []
    return (*found, INT4_WEIGHT_ONLY) if _works(torch.float32, INT4_WEIGHT_ONLY.make) else tuple(found)


def float16_is_exact(weight: torch.Tensor) -> bool:
    """Return whether float16 represents these weights, float [outputs, inputs], to the accuracy of float32 sums."""
    error = largest = 0.0
    for part in torch.split(weight.detach(), max(1, _ELEMENTS_AT_ONCE // weight.shape[1])):
        largest = max(largest, float(part.abs().max()))
        error = max(error, float(part.half().float().sub_(part).abs_().max()))
    return error <= _MAX_FLOAT16_ERROR * largest  # infinite where a weight is too large for float16


def _compiled(
    name: str,
    format_name: FormatName,
    make: MakeLinear,
    fits: Callable[[torch.Tensor], bool] = lambda _: True,
    weights: str = "",
) -> CpuKernel:
    held_bytes, prepare = partial(compiled_bytes, format_name), partial(packed_format, format_name)
    return CpuKernel(
        name,
        make,
        held_bytes,
        fits,
        weights,
        max_rival_time=_MAX_TIME_OF_CALLS,
        prepare=prepare,
        code=format_name,
        of_groups=make_groups if weights == GROUPED else None,
    )


def has_whole_groups(weight: torch.Tensor) -> bool:
    """Return whether GROUP divides the inputs of weights [outputs, inputs]."""
    return weight.shape[1] % GROUP == 0


def _int8_kernel(kernel: Int8Kernel) -> CpuKernel:
    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> QuantizedLinear:
        return QuantizedLinear(weight, bias, kernel)

    return CpuKernel(kernel.name, make, kernel.product.held_bytes, weights=kernel.weight_range.name)


def _make_int4(weight: torch.Tensor, bias: torch.Tensor | None) -> Int4WeightLinear:
    return Int4WeightLinear(quantize_groups(weight, 4, GROUP), bias)


def _works(dtype: torch.dtype, make: MakeLinear) -> bool:
    """Return whether this build of torch has the kernel on this CPU."""
    try:
        return make(torch.ones(64, 64, dtype=dtype), None)(torch.ones(1, 64, dtype=dtype)).shape == (1, 64)
    except (RuntimeError, AttributeError):
        return False


def _dense_bytes(itemsize: int, outputs: int, inputs: int) -> int:
    return outputs * inputs * itemsize


def _float16_bytes(outputs: int, inputs: int) -> int:
    return outputs * -(-inputs // _FBGEMM_BLOCK) * _FBGEMM_BLOCK * torch.float16.itemsize


def _int8_bytes(outputs: int, inputs: int) -> int:
    return outputs * (inputs + torch.float32.itemsize + torch.bfloat16.itemsize)


FLOAT16 = CpuKernel("fbgemm", Float16Linear, _float16_bytes, float16_is_exact, restores=True)
INT8_WEIGHT_ONLY = CpuKernel(
    "weight-only", Int8WeightLinear, _int8_bytes, lambda weight: weight.shape[1] % INT8_INPUTS_MULTIPLE == 0, "whole"
)
INT4_WEIGHT_ONLY = CpuKernel(
    "weight-only",
    _make_int4,
    lambda outputs, inputs: int4_bytes(outputs, inputs, GROUP),
    lambda weight: packs_int4(weight.shape[0], weight.shape[1], GROUP),
    GROUPED,
)
COMPILED_FLOAT16 = _compiled("compiled-f16", "float16", partial(make_float, "float16"), float16_is_exact)
# Activations that are quantized by row have four times the loss of perplexity, and take 0.8 to 0.9 of the time.
COMPILED_INT8 = _compiled("compiled", "int8_groups", make_int8_groups, has_whole_groups, GROUPED)
COMPILED_INT8_ROWS = _compiled("compiled", "int8", make_int8, lambda weight: not has_whole_groups(weight), "whole")
COMPILED_INT4 = _compiled("compiled", "int4", make_int4, has_whole_groups, GROUPED)
_FLOAT_FORMATS: dict[torch.dtype, FormatName] = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
