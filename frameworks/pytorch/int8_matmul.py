"""Matmul of int8 activations and int8 weights, by every library that torch has for it."""

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from frameworks.quantization.ranges import LARGEST_INT8, WHOLE, WeightRange

INT8_SIZE_MULTIPLE = 8
"""cuBLAS multiplies int8 only where inputs and outputs are multiples of it."""
_TINY = 1e-12
_ROW_SHIFT = 128
# cuBLAS multiplies int8 only with more than 16 rows of activations.
_MIN_ROWS_ON_CUDA = 32
# FBGEMM packs the inputs in blocks of this size, the last one padded with zeros.
_FBGEMM_BLOCK = 512
# Weights that are dequantized to float32 at once; they stay in the CPU's cache.
_WIDENED_ELEMENTS = 1 << 18
_engine_lock = threading.Lock()


class Int8Matmul(ABC):
    """int8 weights packed for one library. Accumulators are int32; all libraries give the same bits."""

    name = ""

    @abstractmethod
    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        """`weight`: int8 [outputs, inputs]. `scale`: float32 [outputs]. Raises RuntimeError or AttributeError where
        torch has no such matmul on this CPU.
        """

    @abstractmethod
    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the matmul times the scale of the weights, float32 [rows, outputs].

        `rows`: float32 [rows, inputs], integers from -127 to 127; overwritten.
        """

    def multiply_floats(self, rows: torch.Tensor) -> torch.Tensor:
        """Quantize activations, each row by its absolute maximum, and multiply: float32 [rows, outputs].

        `rows`: float32 [rows, inputs].
        """
        quantized, scale = quantize_activations(rows)
        return self(quantized).mul_(scale)

    @classmethod
    def held_bytes(cls, outputs: int, inputs: int) -> int:
        """Return the bytes of packed weights and scales."""
        return outputs * (inputs + torch.float32.itemsize)


class TorchMatmul(Int8Matmul):
    """torch's matmul of int8 matrices, on a CPU with VNNI, on other architectures and on CUDA."""

    name = "torch"

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        self._weight = weight.t().contiguous()
        self._scale = scale

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        rounded = rows.to(torch.int8)
        count = len(rounded)
        if rounded.is_cuda and count < _MIN_ROWS_ON_CUDA:
            rounded = torch.nn.functional.pad(rounded, (0, 0, 0, _MIN_ROWS_ON_CUDA - count))
        return torch._int_mm(rounded, self._weight)[:count].float().mul_(self._scale)


class OneDnnMatmul(Int8Matmul):
    """oneDNN's matmul of uint8 activations and packed weights."""

    name = "onednn"

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        self._weight: torch.Tensor = torch.ops.onednn.qlinear_prepack(weight, None)
        self._scale = scale

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        unsigned = rows.add_(_ROW_SHIFT).to(torch.uint8)
        zero_points = _zero_points(len(self._scale))
        product: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            unsigned, 1.0, _ROW_SHIFT, self._weight, self._scale, zero_points, None, 1.0, 0, torch.float32, "none",
            [], "",
        )  # fmt: skip
        return product


class FbgemmMatmul(Int8Matmul):
    """FBGEMM's matmul of uint8 activations and packed weights: on x86, the fastest without VNNI."""

    name = "fbgemm"

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        with fbgemm_engine():
            quantized = torch._make_per_channel_quantized_tensor(weight, scale.double(), _zero_points(len(scale)), 0)
            self._packed = torch.ops.quantized.linear_prepack(quantized, None)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            rows, 1.0, _ROW_SHIFT, self._packed
        )
        return product

    def multiply_floats(self, rows: torch.Tensor) -> torch.Tensor:
        """As Int8Matmul.multiply_floats, [rows, outputs]. FBGEMM itself quantizes a single row, in the same way: this
        saves a third of the time of a small matmul.
        """
        if len(rows) != 1:
            return super().multiply_floats(rows)
        scale = max(float(rows.abs().amax()) / LARGEST_INT8, _TINY)
        product: torch.Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            rows, scale, _ROW_SHIFT, self._packed
        )
        return product

    @classmethod
    def held_bytes(cls, outputs: int, inputs: int) -> int:
        """As Int8Matmul.held_bytes. There are a scale, a zero point and the sum of the weights for each output."""
        blocks = -(-inputs // _FBGEMM_BLOCK)
        return outputs * (blocks * _FBGEMM_BLOCK + 3 * torch.int32.itemsize)


class WidenedMatmul(Int8Matmul):
    """Weights that are dequantized to float32 for each matmul, a piece at a time: about as fast as float32."""

    name = "float32"

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        self._weight = weight
        self._scale = scale

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        pieces = torch.split(self._weight, max(1, _WIDENED_ELEMENTS // self._weight.shape[1]))
        products = [torch.nn.functional.linear(rows, piece.float()) for piece in pieces]
        product = products[0] if len(products) == 1 else torch.cat(products, 1)
        return product.mul_(self._scale)


CPU_MATMULS: tuple[type[Int8Matmul], ...] = (TorchMatmul, OneDnnMatmul, FbgemmMatmul, WidenedMatmul)


@dataclass(frozen=True, slots=True)
class Int8Kernel:
    """A library's matmul, and the range of weights in which it is exact on this device."""

    product: type[Int8Matmul]
    weight_range: WeightRange = WHOLE

    @property
    def name(self) -> str:
        """The library's name."""
        return self.product.name

    def pack(self, weight: torch.Tensor) -> Int8Matmul:
        """Quantize weights [outputs, inputs] of any float dtype, and pack them for the library."""
        return self.product(*quantize_weight(weight, self.weight_range))


def quantize_weight(weight: torch.Tensor, weight_range: WeightRange) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 weights [outputs, inputs] and the scale of each output, float32, as small as the range allows."""
    wide = weight.detach().float()
    scale = wide.abs().amax(dim=1) / weight_range.largest
    if weight_range.largest_unrounded_pair is not None:
        pairs = torch.nn.functional.pad(wide, (0, wide.shape[1] % 2)).reshape(len(wide), -1, 2)
        for part in (pairs.clamp(min=0), pairs.clamp(max=0).neg_()):
            scale = torch.maximum(scale, part.sum(2).amax(dim=1) / weight_range.largest_unrounded_pair)
    scale = scale.clamp(min=_TINY)
    return torch.round(wide / scale[:, None]).to(torch.int8).contiguous(), scale


def quantize_activations(rows: torch.Tensor, *, limits_pairs: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return integers from -127 to 127 as float32 [rows, inputs], and the scale of each row, float32 [rows, 1].

    A row of activations is quantized by its absolute maximum. `rows`: float32 [rows, inputs]. `limits_pairs`: the sums
    of inputs 0 and 1, 2 and 3, … count for the maximum, too.
    """
    # torch's norm of infinity and aminmax take eight times as long.
    largest = rows.abs().amax(dim=1, keepdim=True)
    if limits_pairs:
        largest = torch.maximum(largest, (rows[:, ::2] + rows[:, 1::2]).abs().amax(dim=1, keepdim=True))
    scale = largest.div_(LARGEST_INT8).clamp_(min=_TINY)
    return (rows * scale.reciprocal()).round_(), scale


@contextmanager
def fbgemm_engine() -> Iterator[None]:
    """Select FBGEMM within the block, and silence torch's advice to leave its quantized dtypes, in which alone FBGEMM
    takes weights.
    """
    with _engine_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"
        try:
            yield
        finally:
            torch.backends.quantized.engine = before


@cache
def _zero_points(outputs: int) -> torch.Tensor:
    return torch.zeros(outputs, dtype=torch.int64)
