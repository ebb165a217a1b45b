"""Choose the CPU's matrix products by measurements in this process, each made once and kept.

CPU flags alone do not decide. The instruction sets that oneDNN and torch use can be masked by the environment, and the
same operator is fast on one CPU and slow on the next. On one core with AVX2 torch's own int8 product takes 60 times as
long as float32, oneDNN's takes half; on a CPU with VNNI both are fast.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache

import torch

from frameworks.pytorch.openmp import single_threaded

LARGEST_INT8 = 127
# oneDNN shifts rows to unsigned numbers of at most 255. Without VNNI the CPU adds two products in 16 bits, and
# 2 * 255 * 64 = 32,640 is the largest such sum that does not saturate.
LARGEST_INT8_WITHOUT_VNNI = 64
_ROW_SHIFT = 128
# oneDNN chooses the order of the weights by a number of rows; what is best for 64 is as good for 1 to 256, while what
# is chosen for 1 is half as fast at 16.
_ROWS_HINT = 64
# cuBLAS multiplies int8 only with more than 16 rows.
_MIN_ROWS_ON_CUDA = 32

_INPUTS, _OUTPUTS = 768, 1024
_DECODE_ROWS, _PREFILL_ROWS = 16, 64
_ROUNDS = 5
# Rows, inputs and outputs for which products of the largest numbers are checked: whole and broken vectors.
_CHECKED_SHAPES = ((1, 128, 128), (7, 45, 51), (16, 128, 128), (64, 128, 128))
# Packed products are 0.8 to 1.3 times as fast as plain ones with AVX2, 2 to 3 times with AVX-512, and half as fast with
# SSE 4.1. A choice between 0.8 and 0.5 depends on no chance.
_MAX_PACKED_TIME = 1.5
_MAX_BF16_TIME = 1.1


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Return weights [outputs, inputs], float32 or bfloat16 on a CPU, in oneDNN's blocked order.

    Raises RuntimeError where the CPU has no instructions for them.
    """
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
    return packed


@cache
def packs(dtype: torch.dtype) -> bool:
    """Return whether packed weights of this dtype are possible on this CPU and not slower than plain ones."""
    if dtype not in (torch.float32, torch.bfloat16) or not _has_onednn():
        return False
    rows, weight = torch.ones(_DECODE_ROWS, _INPUTS, dtype=dtype), torch.ones(_OUTPUTS, _INPUTS, dtype=dtype)
    try:
        packed = pack(weight)
        plain_s, packed_s = _seconds(lambda: _plain_product(rows, weight), lambda: _packed_product(rows, packed))
    except RuntimeError:
        return False
    return packed_s <= _MAX_PACKED_TIME * plain_s


@cache
def multiplies_bf16() -> bool:
    """Return whether this CPU has instructions for products of bfloat16 and they are not slower than float32."""
    if not _has_onednn() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    rows, weight = torch.ones(_PREFILL_ROWS, _INPUTS), torch.ones(_OUTPUTS, _INPUTS)
    narrow_rows, narrow_weight = rows.bfloat16(), weight.bfloat16()
    wide_s, narrow_s = _seconds(
        lambda: _plain_product(rows, weight), lambda: _plain_product(narrow_rows, narrow_weight)
    )
    return narrow_s <= _MAX_BF16_TIME * wide_s


class Int8Kernel(ABC):
    """Products of int8 rows and int8 weights, added up in int32. All kernels give the same bits.

    `largest_weight`: rounded weights may be as large as this without any sum that saturates.
    """

    name = ""

    def __init__(self, largest_weight: int = LARGEST_INT8) -> None:
        self.largest_weight = largest_weight

    @abstractmethod
    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """Return int8 weights [outputs, inputs] in the order that `multiply` takes."""

    @abstractmethod
    def multiply(self, rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Return the product times `scale` [outputs], float32 [rows, outputs].

        `rows`: float32 [rows, inputs], whole numbers from -127 to 127; overwritten.
        """


class TorchInt8Kernel(Int8Kernel):
    """torch's product of int8 matrices, on a CPU with VNNI, on other architectures and on CUDA."""

    name = "torch"

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.t().contiguous()

    def multiply(self, rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        rounded = rows.to(torch.int8)
        count = len(rounded)
        if rounded.is_cuda and count < _MIN_ROWS_ON_CUDA:
            rounded = torch.nn.functional.pad(rounded, (0, 0, 0, _MIN_ROWS_ON_CUDA - count))
        return torch._int_mm(rounded, weight)[:count].float().mul_(scale)


class OneDnnInt8Kernel(Int8Kernel):
    """oneDNN's product of unsigned rows and packed weights."""

    name = "onednn"

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        packed: torch.Tensor = torch.ops.onednn.qlinear_prepack(weight.contiguous(), None)
        return packed

    def multiply(self, rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        unsigned = rows.add_(_ROW_SHIFT).to(torch.uint8)
        product: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            unsigned, 1.0, _ROW_SHIFT, weight, scale, _zero_points(len(scale)), None, 1.0, 0, torch.float32, "none",
            [], "",
        )  # fmt: skip
        return product


@cache
def int8_kernel(device_type: str) -> Int8Kernel:
    """Return the fastest int8 product of a device (`cpu`, `cuda`), with the largest weight that is exact there."""
    plain = TorchInt8Kernel()
    if device_type != "cpu":
        return plain
    plain.largest_weight = largest_exact_weight(plain)
    packed = OneDnnInt8Kernel()
    try:
        packed.largest_weight = largest_exact_weight(packed)
        plain_s, packed_s = _seconds(_int8_product(plain), _int8_product(packed))
    except (RuntimeError, AttributeError):  # a build of torch without oneDNN, or without kernels for this CPU
        return plain
    return packed if packed_s < plain_s else plain


def largest_exact_weight(kernel: Int8Kernel) -> int:
    """Return up to which rounded weight the kernel's sums do not saturate on this CPU."""
    return LARGEST_INT8 if _is_exact(kernel, LARGEST_INT8) else LARGEST_INT8_WITHOUT_VNNI


def _is_exact(kernel: Int8Kernel, largest: int) -> bool:
    """Multiply the largest numbers of both signs, which saturate first."""
    for num_rows, inputs, outputs in _CHECKED_SHAPES:
        signs = torch.ones(outputs)
        signs[::2] = -1
        weight = kernel.pack((signs[:, None] * torch.full((outputs, inputs), largest)).to(torch.int8))
        for row in (LARGEST_INT8, -LARGEST_INT8):
            product = kernel.multiply(torch.full((num_rows, inputs), float(row)), weight, torch.ones(outputs))
            if not torch.equal(product, (signs * float(row * largest * inputs)).expand(num_rows, -1)):
                return False
    return True


def _int8_product(kernel: Int8Kernel) -> Callable[[], torch.Tensor]:
    weight, scale = kernel.pack(torch.ones(_OUTPUTS, _INPUTS, dtype=torch.int8)), torch.ones(_OUTPUTS)
    rows = torch.ones(_DECODE_ROWS, _INPUTS)
    return lambda: kernel.multiply(rows.clone(), weight, scale)


@cache
def _zero_points(outputs: int) -> torch.Tensor:
    return torch.zeros(outputs, dtype=torch.int64)


def _plain_product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(rows, weight)


def _packed_product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")
    return product


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _seconds(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Return the shortest time of each on one thread, measured by turns: another process delays both alike."""
    best = [float("inf"), float("inf")]
    with torch.inference_mode(), single_threaded():
        for turn in range(_ROUNDS + 1):
            for index, run in enumerate((first, second)):
                started_s = time.perf_counter()
                run()
                if turn:  # the first makes machine code
                    best[index] = min(best[index], time.perf_counter() - started_s)
    return best[0], best[1]
