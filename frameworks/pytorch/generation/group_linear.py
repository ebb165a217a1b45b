"""Linear layers of weights that files already hold in 8 or 4 bits, with a scale for each group of inputs."""

from collections.abc import Callable

import torch

from frameworks.pytorch.generation.compiled_linears import GROUP, compiles, make_groups, packs_groups
from frameworks.pytorch.generation.cpu_kernels import INT4_WEIGHT_ONLY, int4_kernels, int8_kernels
from frameworks.pytorch.generation.group_weights import GroupWeights, held_bytes
from frameworks.pytorch.generation.kernel_choice import KernelChooser
from frameworks.pytorch.generation.linear import Linear, UnfusedLinear
from frameworks.pytorch.generation.weight_only import Int4WeightLinear, packs_int4
from frameworks.pytorch.int8_choice import MAX_BYTES_PER_WEIGHT, Measure, largest_error

ReadGroups = Callable[[], GroupWeights]
"""Reads the weights of a layer from their file."""
# A piece of the widened weights stays in the cache of a CPU's core.
_PIECE_ELEMENTS = 1 << 18


class WidenedGroupLinear(UnfusedLinear):
    """Weights that are widened for each product: slow, for every device and every group."""

    def __init__(self, weights: GroupWeights, bias: torch.Tensor | None = None) -> None:
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
    """A product of torch that computes until the compiled one of the same weights takes its place. Only for a CPU.

    Of 4 bits it is torch's own where there is one. Others are widened for each product: a step takes as long as
    widening all weights, and no memory.
    """

    def __init__(self, read: ReadGroups, bias: torch.Tensor | None) -> None:
        """`read`: called now, and again by `groups` where the product holds the weights in an order of its own."""
        weights = read()
        self.bias = bias
        self._product: Linear
        if _has_torch_int4(weights):
            self._product, self._read = Int4WeightLinear(weights, bias), read
        else:
            self._product, self._read = WidenedGroupLinear(weights, bias), lambda: weights
        is_packed = isinstance(self._product, Int4WeightLinear)
        self.held_bytes = held_bytes(weights.values.numel(), 4 if is_packed else 8, weights.group)

    def groups(self) -> GroupWeights:
        """Return the weights."""
        return self._read()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._product(rows)


def make_group_linear(weights: GroupWeights, bias: torch.Tensor | None, int8: KernelChooser | None = None) -> Linear:
    """Make a layer of these weights. `bias`: [outputs], in the dtype of the rows.

    They keep their numbers where their groups have a compiled product, or 4 bits one of torch on this CPU. Others are
    rounded again, to one scale for each output. `int8`: makes those layers, and counts their bytes; None for a chooser
    of this layer alone.
    """
    if weights.values.device.type != "cpu":
        return WidenedGroupLinear(weights, bias)
    if packs_groups(weights):
        return make_groups(weights, bias)
    if _has_torch_int4(weights):
        return Int4WeightLinear(weights, bias)
    chooser = int8 or int8_chooser()
    dense = weights.dense()
    return chooser(dense, bias) if chooser.fits(dense) else WidenedGroupLinear(weights, bias)


def code_of_groups(weights: GroupWeights) -> set[str]:
    """Return the parts of the compiled code that `make_group_linear` may use for these weights."""
    if packs_groups(weights):
        return {"int4" if weights.bits == 4 else "int8_groups"}
    if _has_torch_int4(weights) or not compiles("int8"):
        return set()
    return {"int8" if weights.inputs % GROUP else "int8_groups"}


def int8_chooser(measure: Measure | None = None) -> KernelChooser:
    """Return what chooses the int8 products of a model whose file has weights in groups. `measure`: as of
    KernelChooser.
    """
    return KernelChooser(int8_kernels(), max_bytes=MAX_BYTES_PER_WEIGHT, max_error=largest_error, measure=measure)


def _has_torch_int4(weights: GroupWeights) -> bool:
    if weights.bits != 4 or not packs_int4(weights.outputs, weights.inputs, weights.group):
        return False
    return INT4_WEIGHT_ONLY in int4_kernels()
