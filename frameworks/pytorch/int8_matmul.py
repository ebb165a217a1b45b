"""Products of rounded rows and int8 weights, by every library that torch has for them."""

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from frameworks.quantization.ranges import LARGEST_INT8, WHOLE, WeightRange

_TINY = 1e-12
_ROW_SHIFT = 128
# cuBLAS multiplies int8 only with more than 16 rows.
_MIN_ROWS_ON_CUDA = 32
# FBGEMM packs the inputs in blocks of this number, the last one filled up with zeros.
_FBGEMM_BLOCK = 512
# Weights that are widened to float32 at once; they stay in the CPU's cache.
_WIDENED_ELEMENTS = 1 << 18
_engine_lock = threading.Lock()


class Int8Product(ABC):
    """int8 weights in the order of one library. Sums have 32 bits; all libraries give the same bits."""

    name = ""

    @abstractmethod
    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        """`weight`: int8 [outputs, inputs]. `scale`: float32 [outputs]. Raises RuntimeError or AttributeError where
        torch has no such product on this CPU.
        """

    @abstractmethod
    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product times the scale, float32 [rows, outputs].

        `rows`: float32 [rows, inputs], whole numbers from -127 to 127; overwritten.
        """

    def of_floats(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product of rows that are rounded here, each by its own largest number: float32 [rows, outputs].

        `rows`: float32 [rows, inputs].
        """
        whole, scale = round_rows(rows)
        return self(whole).mul_(scale)

    @classmethod
    def held_bytes(cls, outputs: int, inputs: int) -> int:
        """Return the bytes of packed weights and scales."""
        return outputs * (inputs + torch.float32.itemsize)


class TorchProduct(Int8Product):
    """torch's product of int8 matrices, on a CPU with VNNI, on other architectures and on CUDA."""

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


class OneDnnProduct(Int8Product):
    """oneDNN's product of unsigned rows and packed weights."""

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


class FbgemmProduct(Int8Product):
    """FBGEMM's product of unsigned rows and packed weights: on x86, the fastest without VNNI."""

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

    def of_floats(self, rows: torch.Tensor) -> torch.Tensor:
        """As Int8Product.of_floats. FBGEMM rounds a row that is alone by the same arithmetic as `round_rows`: a third
        of the time of a small product is saved.
        """
        if len(rows) != 1:
            return super().of_floats(rows)
        scale = max(float(rows.abs().amax()) / LARGEST_INT8, _TINY)
        product: torch.Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            rows, scale, _ROW_SHIFT, self._packed
        )
        return product

    @classmethod
    def held_bytes(cls, outputs: int, inputs: int) -> int:
        """As Int8Product.held_bytes. There are a scale, a zero point and the sum of the weights for each output."""
        blocks = -(-inputs // _FBGEMM_BLOCK)
        return outputs * (blocks * _FBGEMM_BLOCK + 3 * torch.int32.itemsize)


class WidenedProduct(Int8Product):
    """Weights that are widened to float32 for each product, a piece at a time: about as fast as float32."""

    name = "float32"

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        self._weight = weight
        self._scale = scale

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        pieces = torch.split(self._weight, max(1, _WIDENED_ELEMENTS // self._weight.shape[1]))
        products = [torch.nn.functional.linear(rows, piece.float()) for piece in pieces]
        product = products[0] if len(products) == 1 else torch.cat(products, 1)
        return product.mul_(self._scale)


CPU_PRODUCTS: tuple[type[Int8Product], ...] = (TorchProduct, OneDnnProduct, FbgemmProduct, WidenedProduct)


@dataclass(frozen=True, slots=True)
class Int8Kernel:
    """A library's product, and the range of weights in which it is exact on this device."""

    product: type[Int8Product]
    weight_range: WeightRange = WHOLE

    @property
    def name(self) -> str:
        """The library's name."""
        return self.product.name

    def pack(self, weight: torch.Tensor) -> Int8Product:
        """Round weights [outputs, inputs] of any float type, and put them in the library's order."""
        return self.product(*round_weight(weight, self.weight_range))


def round_weight(weight: torch.Tensor, weight_range: WeightRange) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 weights [outputs, inputs] and the scale of each output, as small as the range allows."""
    wide = weight.detach().float()
    scale = wide.abs().amax(dim=1) / weight_range.largest
    if weight_range.largest_unrounded_pair is not None:
        pairs = torch.nn.functional.pad(wide, (0, wide.shape[1] % 2)).reshape(len(wide), -1, 2)
        for part in (pairs.clamp(min=0), pairs.clamp(max=0).neg_()):
            scale = torch.maximum(scale, part.sum(2).amax(dim=1) / weight_range.largest_unrounded_pair)
    scale = scale.clamp(min=_TINY)
    return torch.round(wide / scale[:, None]).to(torch.int8).contiguous(), scale


def round_rows(rows: torch.Tensor, *, limits_pairs: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whole numbers from -127 to 127, float32 [rows, inputs], and the scale of each row, [rows, 1]. A row is
    rounded by its own largest number. `limits_pairs`: the sums of inputs 0 and 1, 2 and 3, … count as numbers, too.
    """
    # torch's norm of infinity and aminmax take eight times as long.
    largest = rows.abs().amax(dim=1, keepdim=True)
    if limits_pairs:
        largest = torch.maximum(largest, (rows[:, ::2] + rows[:, 1::2]).abs().amax(dim=1, keepdim=True))
    scale = largest.div_(LARGEST_INT8).clamp_(min=_TINY)
    return (rows * scale.reciprocal()).round_(), scale


@contextmanager
def fbgemm_engine() -> Iterator[None]:
    """Select FBGEMM within the block, and silence torch's advice to leave its quantised dtypes, in which alone FBGEMM
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
