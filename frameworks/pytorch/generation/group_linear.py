"""Linear layers of weights with 8 or 4 bits and a scale for each group of inputs."""

import torch

from frameworks.pytorch.generation.group_weights import GroupWeights
from frameworks.pytorch.generation.linear import Linear, UnfusedLinear


class WidenedGroupLinear(UnfusedLinear):
    """Weights that are widened for each product: slow, for every device and every group."""

    def __init__(self, weights: GroupWeights, bias: torch.Tensor | None = None) -> None:
        self._weights = weights
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rows, self._weights.dense(rows.dtype), self._bias)


def make_group_linear(weights: GroupWeights, bias: torch.Tensor | None) -> Linear:
    """Make a layer of these weights. `bias`: [outputs], in the dtype of the rows."""
    return WidenedGroupLinear(weights, bias)
