"""Linear layers of a generating model with int8 weights; see frameworks.pytorch.quantize."""

import torch

from frameworks.pytorch.generation.linear import Linear, ProductFirst, make_linear
from frameworks.pytorch.quantize import MULTIPLE, Int8Linear, largest_weight


class Int8Product(ProductFirst):
    """As Linear: each row is rounded to int8 by its own largest number, so that it depends on no other."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`weight`: [outputs, inputs]."""
        outputs, inputs = weight.shape
        linear = torch.nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
        linear.weight = torch.nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            linear.bias = torch.nn.Parameter(bias, requires_grad=False)
        self._product = Int8Linear(linear, largest_weight(weight.device.type))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self._product(rows)
        return product


def make_int8_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """As MakeLinear; what cuBLAS does not multiply in int8 stays as it is."""
    if weight.device.type == "cuda" and any(size % MULTIPLE for size in weight.shape):
        return make_linear(weight, bias)
    return Int8Product(weight, bias)
