"""Linear layers of int8 or int4 weights with a scale for each group of inputs: of files, or quantized by the load."""

from collections.abc import Callable
from functools import partial

import torch

from frameworks.pytorch.compiled.cpu_features import has_vnni
from frameworks.pytorch.compiled.matmul.float_linears import compiles
from frameworks.pytorch.generation.weights.compiled_linears import GROUP, make_groups, packs_groups
from frameworks.pytorch.generation.weights.cpu_kernels import (
    GROUPED,
    INT4_WEIGHT_ONLY,
    CpuKernel,
    has_whole_groups,
    int4_kernels,
    int8_kernels,
)
from frameworks.pytorch.generation.weights.group_weights import GroupWeights, NibbleWeights, held_bytes, quantize_groups
from frameworks.pytorch.generation.weights.kernel_choice import KernelChooser
from frameworks.pytorch.generation.weights.linear import Linear, UnfusedLinear
from frameworks.pytorch.generation.weights.weight_only import Int4WeightLinear, packs_int4
from frameworks.pytorch.int8_choice import MAX_BYTES_PER_WEIGHT, Measure, largest_error
from frameworks.pytorch.int8_matmul import quantize_activations
from frameworks.quantization.ranges import WHOLE

ReadGroups = Callable[[], GroupWeights]
"""Reads the weights of a layer from their file."""
WIDENED = "widened"
"""Name of the kernel that dequantizes weights for each matmul."""
_INT4_OFFSET = 8
_LARGEST_EXPONENT, _LEAST_EXPONENT = 10, -126
# A piece of the dequantized weights stays in the cache of a CPU's core.
_PIECE_ELEMENTS = 1 << 18


class DequantizingLinear(UnfusedLinear):
    """Weights that are dequantized for each matmul: slow, for every device and every group."""

    def __init__(self, weights: GroupWeights | NibbleWeights, bias: torch.Tensor | None = None) -> None:
        self.weights = weights
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        weights = self.weights
        if rows.device.type != "cpu":
            return torch.nn.functional.linear(rows, weights.dense(rows.dtype), self._bias)
        made = rows.new_empty(len(rows), weights.outputs)
        at_once = max(1, _PIECE_ELEMENTS // weights.inputs)
        for start in range(0, weights.outputs, at_once):
            piece = slice(start, start + at_once)
            bias = None if self._bias is None else self._bias[piece]
            made[:, piece] = torch.nn.functional.linear(rows, weights.part(piece).dense(rows.dtype), bias)
        return made


class DeferredGroupLinear(UnfusedLinear):
    """A layer with torch's kernels, until the compiled layer of the same weights replaces it. Only for a CPU.

    int4 weights have torch's own matmul where there is one. Others are dequantized for each matmul: a step takes as
    long as dequantizing all weights, and no memory.
    """

    def __init__(self, read: ReadGroups, bias: torch.Tensor | None) -> None:
        """`read`: called now, and again by `groups` where the layer holds packed weights."""
        weights = read()
        self.bias = bias
        self._linear: Linear
        if _has_torch_int4(weights):
            self._linear, self._read = Int4WeightLinear(weights, bias), read
        else:
            self._linear, self._read = DequantizingLinear(weights, bias), lambda: weights
        is_packed = isinstance(self._linear, Int4WeightLinear)
        self.held_bytes = held_bytes(weights.values.numel(), 4 if is_packed else 8, weights.group)

    def groups(self) -> GroupWeights:
        """Return the weights."""
        return self._read()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._linear(rows)


class QuantizedGroupLinear(UnfusedLinear):
    """A layer of weights that the load has quantized, until the compiled layer replaces it. Only for a CPU.

    It computes what the compiled one does: the same weights, and activations quantized in the same groups. So the
    accuracy of both is the same, but for the order of sums. Weights are dequantized for each matmul.
    """

    def __init__(self, weights: GroupWeights, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        """`bias`: [outputs]. `dtype`: of the original weights, and of the activations."""
        self.bias = bias
        self.bits, self.dtype = weights.bits, dtype
        self.shape = (weights.outputs, weights.inputs)
        self._group = weights.group
        # As compiled/matmul/dot_products.py does it.
        self._limits_pairs = weights.bits == 8 and weights.group == GROUP and not has_vnni()
        held = NibbleWeights.of(weights) if weights.bits == 4 else weights
        self._linear = DequantizingLinear(held, None if bias is None else bias.detach().float())

    def groups(self) -> GroupWeights:
        """Return the weights."""
        held = self._linear.weights
        return held.whole() if isinstance(held, NibbleWeights) else held

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        groups = rows.float().reshape(-1, self._group)
        quantized, scale = quantize_activations(groups, limits_pairs=self._limits_pairs)
        return self._linear(quantized.mul_(scale).view(rows.shape)).to(rows.dtype)


def quantizing_kernels(bits: int) -> tuple[CpuKernel, ...]:
    """Return the kernels that make a QuantizedGroupLinear of float weights: for weights in whole groups, and in 8 bits
    for others, whose outputs and activations have one scale each.
    """

    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        group = GROUP if has_whole_groups(weight) else weight.shape[1]
        weights = quantize_groups(weight, bits, group)
        return QuantizedGroupLinear(_as_packed(weights) if group == GROUP else weights, bias, weight.dtype)

    size = partial(_quantized_bytes, bits)
    grouped = CpuKernel(WIDENED, make, size, has_whole_groups, GROUPED)
    whole = CpuKernel(WIDENED, make, size, lambda weight: not has_whole_groups(weight), WHOLE.name)
    return (grouped, whole) if bits == 8 else (grouped,)


def make_group_linear(weights: GroupWeights, bias: torch.Tensor | None, int8: KernelChooser | None = None) -> Linear:
    """Make a layer of these weights. `bias`: [outputs], in the dtype of the activations.

    The weights stay exact where their groups have a compiled GEMM, or 4 bits a matmul of torch on this CPU. Others are
    quantized again, to one scale for each output. `int8`: makes those layers, and counts their bytes; None for a
    chooser of this layer alone.
    """
    if weights.values.device.type != "cpu":
        return DequantizingLinear(weights, bias)
    if packs_groups(weights):
        return make_groups(weights, bias)
    if _has_torch_int4(weights):
        return Int4WeightLinear(weights, bias)
    chooser = int8 or int8_chooser()
    dense = weights.dense()
    return chooser(dense, bias) if chooser.fits(dense) else DequantizingLinear(weights, bias)


def code_of_groups(weights: GroupWeights) -> set[str]:
    """Return the parts of the compiled code that `make_group_linear` may use for these weights."""
    if packs_groups(weights):
        return {"int4" if weights.bits == 4 else "int8_groups"}
    if _has_torch_int4(weights) or not compiles("int8"):
        return set()
    return {"int8" if weights.inputs % GROUP else "int8_groups"}


def int8_chooser(measure: Measure | None = None) -> KernelChooser:
    """Return the chooser of int8 kernels for a model whose file has weights in groups. `measure`: as of
    KernelChooser.
    """
    return KernelChooser(int8_kernels(), max_bytes=MAX_BYTES_PER_WEIGHT, max_error=largest_error, measure=measure)


def _as_packed(weights: GroupWeights) -> GroupWeights:
    """Round scales and shifts to the values that compiled/matmul/group_formats.py packs: float16 times a power of two
    of each output, where a shift is less by the scale times the offset of values in memory.
    """
    scale, shift = weights.scale.float(), weights.shift
    packed = scale[None] if shift is None else torch.stack((scale, shift.float() - _INT4_OFFSET * scale))
    _, exponent = torch.frexp(packed.abs().amax((0, 2)))
    head = torch.ldexp(torch.ones(len(scale)), (exponent - _LARGEST_EXPONENT).clamp_(min=_LEAST_EXPONENT))[
        None, :, None
    ]
    scale, *shifts = (packed / head).half().float() * head
    shift = shifts[0] + _INT4_OFFSET * scale if shifts else None
    return GroupWeights(weights.values, scale, shift, weights.bits, weights.group)


def _quantized_bytes(bits: int, outputs: int, inputs: int) -> int:
    """Return the bytes of a QuantizedGroupLinear, or of the compiled layer that replaces it, in whole blocks."""
    return held_bytes(-(-outputs // GROUP) * GROUP * -(-inputs // GROUP) * GROUP, bits, GROUP)


def _has_torch_int4(weights: GroupWeights) -> bool:
    if weights.bits != 4 or not packs_int4(weights.outputs, weights.inputs, weights.group):
        return False
    return INT4_WEIGHT_ONLY in int4_kernels()
