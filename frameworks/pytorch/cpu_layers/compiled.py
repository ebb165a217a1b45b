"""Linear layers of encoders with compiled GEMMs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from frameworks.pytorch.compiled.matmul.linear import CompiledLinear


class CompiledLayer(torch.nn.Module):
    """As torch.nn.Linear."""

    def __init__(self, linears: "Sequence[CompiledLinear]") -> None:
        """`linears`: of adjacent outputs."""
        super().__init__()
        self._linears = linears
        self.weight_bytes: int = sum(each.weights.nbytes for each in linears)
        self.in_features, self.out_features = linears[0].inputs, sum(each.outputs for each in linears)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[…, inputs] → […, outputs]."""
        rows = values.reshape(-1, self.in_features)
        return torch.cat([each(rows) for each in self._linears], dim=1).view(*values.shape[:-1], self.out_features)
