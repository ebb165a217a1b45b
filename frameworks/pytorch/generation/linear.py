"""Matrix products with weights that stay the same: packed once for the device that multiplies them.

On a CPU a decode step is its linear layers, and oneDNN multiplies weights in its own blocked order two to three times
as fast as plain ones (2,048 x 768, 16 rows, two cores with AVX-512: 4.5 ms against 1.4 for eight of them in float32).
torch.compile packs weights by the same operators when it freezes a model.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import torch

# oneDNN chooses the order of the weights by a number of rows; what is best for 64 is as good for 1 to 256, while what
# is chosen for 1 is half as fast at 16.
_ROWS_HINT = 64
# Up to here each number of rows is computed as it is: these are the batches of texts, one row each.
_MOST_EXACT_ROWS = 32
_ROUNDING_BITS = 4


def filled_rows(rows: int, device: torch.device) -> int:
    """With how many rows so many are computed, at least as many: one more in 25 on average, one in 8 at most.

    On a CPU oneDNN makes machine code for each number of rows and each shape of weights, which takes 0.3 ms, and keeps
    it, which takes 0.6 MB. Of 512 numbers 64 are left, and soon none is new.
    """
    if device.type != "cpu" or rows <= _MOST_EXACT_ROWS:
        return rows
    step = 1 << (rows.bit_length() - _ROUNDING_BITS)
    return -(-rows // step) * step


class Linear(Protocol):
    """Rows [rows, inputs] → [rows, outputs], in the dtype of the rows."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor: ...

    def silu(self, rows: torch.Tensor) -> torch.Tensor:
        """silu of the product."""
        ...

    def times(self, rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """The product, element by element times `factor` [rows, outputs]."""
        ...

    def plus(self, rows: torch.Tensor, summand: torch.Tensor) -> torch.Tensor:
        """The product plus `summand` [rows, outputs]."""
        ...


class ProductFirst(ABC):
    """Where the product is made by itself, and what follows it afterwards."""

    @abstractmethod
    def __call__(self, rows: torch.Tensor) -> torch.Tensor: ...

    def silu(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self(rows), inplace=True)

    def times(self, rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return self(rows).mul_(factor)

    def plus(self, rows: torch.Tensor, summand: torch.Tensor) -> torch.Tensor:
        return self(rows).add_(summand)


class PlainLinear(ProductFirst):
    """Weights [outputs, inputs] as they are."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rows, self.weight, self.bias)


class PackedLinear:
    """Weights in oneDNN's order; what follows the product is done while it is written."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """`weight`: [outputs, inputs], float32 or bfloat16 on a CPU."""
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
        self.bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "")
        return product

    def silu(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "swish", [], "")
        return product

    def times(self, rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, factor, self.weight, self.bias, "mul")
        return product

    def plus(self, rows: torch.Tensor, summand: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, summand, self.weight, self.bias, "add")
        return product


MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]
"""Weights [outputs, inputs] and bias → the layer."""


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """Packed, where that is known to be faster."""
    return PackedLinear(weight, bias) if can_pack(weight) else PlainLinear(weight, bias)


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN has an order of its own for these weights on this machine."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
