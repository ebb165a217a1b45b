"""Linear layers of a language model: plain, packed, float16 or int8 weights; cpu_kernels lists them.

On a CPU linear layers take most of a decode step, and oneDNN's matmul of packed weights is two to three times as fast
as of plain ones (2,048 x 768, 16 rows, two cores with AVX-512: 4.5 ms against 1.4 for eight of them in float32).
torch.compile packs weights by the same operators when it freezes a model.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch

from frameworks.pytorch import kernels
from frameworks.pytorch.int8_matmul import INT8_SIZE_MULTIPLE, Int8Kernel, fbgemm_engine

# Decode batches up to this size are not padded; they have one row for each sequence.
_MAX_EXACT_ROWS = 32
_ROUNDING_BITS = 4
_MKL_ROWS_HINT = 16


def padded_rows(rows: int, device: torch.device) -> int:
    """Return the number of rows with padding: 1 in 25 more on average, 1 in 8 more at most.

    On a CPU oneDNN compiles machine code for each number of rows and each shape of weights, in 0.3 ms, and keeps it,
    in 0.6 MB. Padding leaves 64 of the first 512 numbers.
    """
    if device.type != "cpu" or rows <= _MAX_EXACT_ROWS:
        return rows
    step = 1 << (rows.bit_length() - _ROUNDING_BITS)
    return -(-rows // step) * step


def whole_rows(rows: int, device: torch.device) -> int:
    """Return the largest number up to `rows` that `padded_rows` does not pad."""
    if device.type != "cpu" or rows <= _MAX_EXACT_ROWS:
        return rows
    step = 1 << (rows.bit_length() - _ROUNDING_BITS)
    return rows // step * step


class Linear(Protocol):
    """Activations [rows, inputs] → [rows, outputs], in the dtype of the activations; also with a fused epilogue."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor: ...

    def fused_silu(self, rows: torch.Tensor) -> torch.Tensor:
        """Return SiLU of the matmul, [rows, outputs]."""
        ...

    def fused_mul(self, rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """Return the matmul times `factor`, element-wise; both [rows, outputs]."""
        ...

    def fused_add(self, rows: torch.Tensor, summand: torch.Tensor) -> torch.Tensor:
        """Return the matmul plus `summand`; both [rows, outputs]."""
        ...


@runtime_checkable
class RestorableLinear(Linear, Protocol):
    """A Linear that can return the weights that it was made of, so that another one can replace it."""

    bias: torch.Tensor | None

    def dense(self) -> torch.Tensor:
        """Return the weights [outputs, inputs], in the dtype that they were given in."""
        ...


class UnfusedLinear(ABC):
    """A matmul whose epilogue is a second pass over its result."""

    @abstractmethod
    def __call__(self, rows: torch.Tensor) -> torch.Tensor: ...

    def fused_silu(self, rows: torch.Tensor) -> torch.Tensor:
        """As Linear.fused_silu, [rows, outputs]."""
        return torch.nn.functional.silu(self(rows), inplace=True)

    def fused_mul(self, rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """As Linear.fused_mul, [rows, outputs]."""
        return self(rows).mul_(factor)

    def fused_add(self, rows: torch.Tensor, summand: torch.Tensor) -> torch.Tensor:
        """As Linear.fused_add, [rows, outputs]."""
        return self(rows).add_(summand)


class PlainLinear(UnfusedLinear):
    """Weights [outputs, inputs] in torch's own order."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rows, self.weight, self.bias)

    def dense(self) -> torch.Tensor:
        """As RestorableLinear.dense, [outputs, inputs]."""
        return self.weight


class PackedLinear:
    """Weights packed by oneDNN; the epilogue is applied while the result is written."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """`weight`: [outputs, inputs], float32 or bfloat16 on a CPU."""
        self.weight = kernels.pack(weight)
        self.bias = bias

    def dense(self) -> torch.Tensor:
        """As RestorableLinear.dense, [outputs, inputs]."""
        return self.weight.to_dense()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "")
        return product

    def fused_silu(self, rows: torch.Tensor) -> torch.Tensor:
        """As Linear.fused_silu, [rows, outputs]."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "swish", [], "")
        return product

    def fused_mul(self, rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """As Linear.fused_mul, [rows, outputs]."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, factor, self.weight, self.bias, "mul")
        return product

    def fused_add(self, rows: torch.Tensor, summand: torch.Tensor) -> torch.Tensor:
        """As Linear.fused_add, [rows, outputs]."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, summand, self.weight, self.bias, "add")
        return product


class MklLinear(UnfusedLinear):
    """float32 weights packed by MKL."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """`weight`: [outputs, inputs]. Raises RuntimeError where torch has no MKL."""
        self.weight: torch.Tensor = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), _MKL_ROWS_HINT)
        self.bias = bias
        # The operator reads only the shape of the weights that are not packed.
        self._shape = weight.new_zeros(1).expand(weight.shape)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        # With another number of rows than that of the packing, the operator would read weights that are not packed.
        product: torch.Tensor = torch.ops.mkl._mkl_linear(rows, self.weight, self._shape, self.bias, len(rows))
        return product


class Float16Linear(UnfusedLinear):
    """float16 weights that FBGEMM multiplies in float32: half of the bytes to read, without float16 instructions."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """`weight`: [outputs, inputs]. Raises RuntimeError where torch has no FBGEMM."""
        self.bias = bias
        self._dtype = weight.dtype
        with fbgemm_engine():
            self._packed = torch.ops.quantized.linear_prepack_fp16(
                weight.float().contiguous(), None if bias is None else bias.float()
            )

    def dense(self) -> torch.Tensor:
        """As RestorableLinear.dense, [outputs, inputs]."""
        with fbgemm_engine():
            weight: torch.Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed)[0]
        return weight.to(self._dtype)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(rows.float(), self._packed)
        return product.to(rows.dtype)


class QuantizedLinear(UnfusedLinear):
    """int8 weights. Activations are quantized by the absolute maximum of each row, so no row depends on another."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernel: Int8Kernel) -> None:
        """`weight`: [outputs, inputs]."""
        self._product = kernel.pack(weight)
        self._bias = None if bias is None else bias.detach().float()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product = self._product.multiply_floats(rows.float())
        if self._bias is not None:
            product.add_(self._bias)
        return product.to(rows.dtype)


MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]
"""Weights [outputs, inputs] and bias → the layer."""


def can_quantize(weight: torch.Tensor) -> bool:
    """Return whether the device has an int8 matmul for weights [outputs, inputs] of this shape."""
    return weight.device.type != "cuda" or not any(size % INT8_SIZE_MULTIPLE for size in weight.shape)
