"""Linear layers of weights that files already hold in 8 or 4 bits, with a scale for each group of inputs."""

import torch

from frameworks.pytorch.generation.compiled_linears import make_groups, packs_groups
from frameworks.pytorch.generation.cpu_kernels import int4_kernels, int8_kernels
from frameworks.pytorch.generation.group_weights import GroupWeights
from frameworks.pytorch.generation.kernel_choice import KernelChooser
from frameworks.pytorch.generation.linear import Linear, UnfusedLinear
from frameworks.pytorch.generation.weight_only import Int4WeightLinear, packs_int4
from frameworks.pytorch.int8_choice import MAX_BYTES_PER_WEIGHT, largest_error


class WidenedGroupLinear(UnfusedLinear):
    """Weights that are widened for each product: slow, for every device and every group."""

    def __init__(self, weights: GroupWeights, bias: torch.Tensor | None = None) -> None:
        self._weights = weights
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rows, self._weights.dense(rows.dtype), self._bias)


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
    if weights.bits == 4 and packs_int4(weights.outputs, weights.inputs, weights.group) and int4_kernels():
        return Int4WeightLinear(weights, bias)
    chooser = int8 or int8_chooser()
    dense = weights.dense()
    return chooser(dense, bias) if chooser.fits(dense) else WidenedGroupLinear(weights, bias)


def int8_chooser() -> KernelChooser:
    """Return what chooses the int8 products of a model whose file has weights in groups."""
    return KernelChooser(int8_kernels(), max_bytes=MAX_BYTES_PER_WEIGHT, max_error=largest_error)
