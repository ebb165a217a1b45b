"""Choose the int8 matmul of a model by measurements on its own largest layer.

CPU flags alone do not decide. On one core with AVX2, where float32 takes 1, torch's own int8 matmul takes 6 to 90,
oneDNN's 0.5 to 1.2, and FBGEMM's 0.2 to 0.6; on a CPU with VNNI all three are fast.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod

import structlog
import torch

from frameworks.pytorch.int8_matmul import (
    CPU_MATMULS,
    Int8Kernel,
    Int8Matmul,
    TorchMatmul,
    WidenedMatmul,
    quantize_activations,
)
from frameworks.pytorch.kernels import shortest_seconds
from frameworks.quantization.ranges import LARGEST_INT8, RANGES, WHOLE, WeightRange
from frameworks.types import KernelTrial

log = structlog.get_logger(__name__)

ENCODER_ROWS = (16, 128)
ORIGINAL = "original"
# The outputs of a larger layer are cut: 128 rows of it take float32 a few milliseconds.
_MAX_ELEMENTS = 1 << 20
# A matmul this many times slower than the fastest is not timed with more rows: torch's takes a second on AVX2.
_HOPELESS = 4.0
# Relative to the error of weights and activations that are quantized to 127 steps. `HALVED` has 1.6.
_MAX_ERROR = 2.0
MAX_BYTES_PER_WEIGHT = 2
"""With its scale; a layer of float32 has four."""
_SAMPLE_ROWS = 8
_OUTLIER = 30.0
# Rows, inputs and outputs for which a matmul of the largest integers is checked: whole and broken vectors.
_CHECKED_SHAPES = ((1, 128, 128), (7, 45, 51), (16, 128, 128), (64, 128, 128))

Matmul = Callable[[torch.Tensor], torch.Tensor]
MakeMatmul = Callable[[torch.Tensor], Matmul]
Measure = Callable[[Mapping[str, Callable[[], object]]], Mapping[str, float]]
"""The seconds of each run."""
Times = Mapping[str, Mapping[int, float]]
"""Seconds of each kernel by the number of rows; fewer entries for a hopeless one."""


@dataclass(frozen=True, slots=True)
class Int8Choice:
    """`trials`: the original first; empty on an accelerator, where there is no choice."""

    kernel: Int8Kernel
    trials: tuple[KernelTrial, ...] = ()

    @property
    def milliseconds(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return those of the original and of the chosen matmul, by number of rows; empty on an accelerator."""
        found = {trial.kernel: trial.milliseconds for trial in self.trials}
        return found.get(ORIGINAL, {}), found.get(self.kernel.name, {})

    @property
    def speedup(self) -> float:
        """Return how many times as fast the matmul is as the original's, in the geometric mean over the rows."""
        original, chosen = self.milliseconds
        return geometric_mean([original[rows] / chosen[rows] for rows in original]) if original else 1.0


def choose_int8(
    weight: torch.Tensor, row_counts: Sequence[int], make_original: MakeMatmul, measure: Measure | None = None
) -> Int8Choice:
    """Return the fastest matmul that keeps the accuracy, for the device of `weight`.

    `weight`: [outputs, inputs] of the model's largest layer. `make_original`: makes the matmul that the model has
    without quantization. `measure`: None for the clock.
    """
    if weight.device.type != "cpu":
        return Int8Choice(Int8Kernel(TorchMatmul))
    weight = weight[: max(1, _MAX_ELEMENTS // weight.shape[1])]
    shape = (weight.shape[0], weight.shape[1])
    kernels = _small_kernels(shape)
    errors = {kernel.name: result_error(_with_quantization(kernel.pack(weight)), weight) for kernel in kernels}
    times = _times(shape, weight.dtype, tuple(row_counts), make_original, measure or shortest_seconds)
    limit = largest_error(weight)
    usable = [each for each in kernels if errors[each.name] <= limit and len(times[each.name]) == len(row_counts)]
    trials = [_trial(ORIGINAL, "", 0.0, times[ORIGINAL])]
    trials += [_trial(each.name, each.weight_range.name, errors[each.name], times[each.name]) for each in kernels]
    return Int8Choice(min(usable, key=lambda each: geometric_mean([*times[each.name].values()])), tuple(trials))


def log_choice(choice: Int8Choice, model: str) -> None:
    """Log the matmul, and warn of one that is slower than the original's."""
    if not choice.trials:
        return
    original, chosen = choice.milliseconds
    figures = {
        "kernel": choice.kernel.name,
        "weights": choice.kernel.weight_range.name,
        "speedup": round(choice.speedup, 2),
        "original_ms": original,
        "int8_ms": chosen,
    }
    log.info("int8 product chosen on the largest layer, milliseconds by rows", model=model, **figures)
    if choice.speedup < 1:
        log.warning(
            "the int8 product is slower than the original's on this CPU, and is served as the entry asks",
            model=model,
            remedy="remove dtype",
            **figures,
        )


def _small_kernels(shape: tuple[int, int]) -> list[Int8Kernel]:
    """Return the kernels that keep the memory of int8: FBGEMM pads the inputs of a small layer."""
    most = MAX_BYTES_PER_WEIGHT * prod(shape)
    return [each for each in exact_kernels() if each.product.held_bytes(*shape) <= most]


@cache
def exact_kernels() -> tuple[Int8Kernel, ...]:
    """Return the CPU's kernels, each with the most exact range of weights in which no sum saturates."""
    found = []
    for product in CPU_MATMULS:
        weight_range = exact_range(product)
        if weight_range is not None:
            found.append(Int8Kernel(product, weight_range))
    return tuple(found)


def exact_range(product: type[Int8Matmul]) -> WeightRange | None:
    """Return the most exact range of weights in which the matmul is exact on this CPU; None where torch lacks it."""
    try:
        return next((each for each in RANGES if _is_exact(product, each)), None)
    except (RuntimeError, AttributeError):  # a build of torch without this library, or without kernels for this CPU
        return None


def _is_exact(product: type[Int8Matmul], weight_range: WeightRange) -> bool:
    """Multiply the largest integers of both signs, which saturate first."""
    for probe in weight_range.probes:
        for num_rows, inputs, outputs in _CHECKED_SHAPES:
            weight = torch.tensor(probe).repeat(-(-inputs // len(probe)))[:inputs].repeat(outputs, 1)
            weight[::2] *= -1
            sums = weight.sum(1).float()
            packed = product(weight.to(torch.int8), torch.ones(outputs))
            for row in (LARGEST_INT8, -LARGEST_INT8):
                found = packed(torch.full((num_rows, inputs), float(row)))
                if not torch.equal(found, (sums * row).expand(num_rows, -1)):
                    return False
    return True


@cache
def _times(
    shape: tuple[int, int],
    dtype: torch.dtype,
    row_counts: tuple[int, ...],
    make_original: MakeMatmul,
    measure: Measure,
) -> Times:
    """Time the original and each int8 matmul, once for layers of one shape: loads of the same model choose alike."""
    weight = torch.rand(shape).sub_(0.5).to(dtype)
    matmuls = {ORIGINAL: make_original(weight)}
    for kernel in _small_kernels(shape):
        matmuls[kernel.name] = _with_quantization(kernel.pack(weight))
    return time_matmuls(matmuls, row_counts, shape[1], dtype, measure)


def time_matmuls(
    matmuls: Mapping[str, Matmul], row_counts: Sequence[int], inputs: int, dtype: torch.dtype, measure: Measure
) -> Times:
    """Return the seconds of each matmul by the number of rows. Activations are [rows, inputs] of this dtype."""
    times: dict[str, dict[int, float]] = {name: {} for name in matmuls}
    for count in row_counts:
        rows = torch.ones(count, inputs, dtype=dtype)
        found = measure({name: partial(matmul, rows) for name, matmul in matmuls.items()})
        for name, seconds in found.items():
            times[name][count] = seconds
        slowest = _HOPELESS * min(seconds for name, seconds in found.items() if name != ORIGINAL)
        matmuls = {name: each for name, each in matmuls.items() if name == ORIGINAL or found[name] <= slowest}
    return times


def _with_quantization(product: Int8Matmul) -> Matmul:
    def rounded(rows: torch.Tensor) -> torch.Tensor:
        quantized, scale = quantize_activations(rows.float())
        return product(quantized).mul_(scale)

    return rounded


def result_error(matmul: Matmul, weight: torch.Tensor) -> float:
    """Return the root mean square of the rows' errors, relative to the norm of each row's exact result.

    `weight`: [outputs, inputs] of any float dtype; `matmul` takes float32 activations.
    """
    rows = sample_rows(weight.shape[1])
    exact = torch.nn.functional.linear(rows, weight.float())
    errors = (matmul(rows) - exact).norm(dim=1) / exact.norm(dim=1).clamp_(min=1e-30)
    return float(errors.square().mean().sqrt())


def largest_error(weight: torch.Tensor) -> float:
    """Return the largest error that a matmul of these weights [outputs, inputs] may have to be chosen."""
    return _MAX_ERROR * result_error(_with_quantization(Int8Kernel(WidenedMatmul, WHOLE).pack(weight)), weight)


def sample_rows(inputs: int) -> torch.Tensor:
    """Return random activations, float32 [rows, inputs]. Half of the rows have one outlier, as in language
    models.
    """
    rows = torch.randn(_SAMPLE_ROWS, inputs, generator=torch.Generator().manual_seed(0))
    rows[::2, 0] *= _OUTLIER
    return rows


def _trial(name: str, weights: str, error: float, times: Mapping[int, float]) -> KernelTrial:
    milliseconds = {str(rows): max(round(1e3 * seconds, 4), 1e-4) for rows, seconds in times.items()}
    return KernelTrial(name, weights, round(error, 5), milliseconds)


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of ratios."""
    return prod(ratios) ** (1 / len(ratios))
