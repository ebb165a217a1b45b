"""Choose the matmul kernel for each shape of a model's linear layers by measurements, when the first layer is made.

Measured with FBGEMM, oneDNN and MKL on one core, with AVX-512 and with the instructions masked to AVX2: no second
kernel for other batch sizes is worth its memory. float16 weights take a third of oneDNN's time for one row, and as
long for 16 and more; int8 matmuls of quantized activations are fastest at every batch size.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog
import torch

from frameworks.pytorch.generation.weights.cpu_kernels import CpuKernel
from frameworks.pytorch.generation.weights.group_weights import GroupWeights
from frameworks.pytorch.generation.weights.linear import Linear
from frameworks.pytorch.int8_choice import ORIGINAL, Matmul, Measure, Times, geometric_mean, result_error, time_matmuls
from frameworks.pytorch.kernels import shortest_seconds
from frameworks.types import KernelTrial, ProductTrial

log = structlog.get_logger(__name__)

TRIAL_ROWS = (1, 4, 16, 32)
"""Batch sizes of decodes, one row for each sequence."""
MIN_LIMIT_S = 0.5
LOAD_SHARE = 0.02
"""The trials take this part of the time of the load, and at least MIN_LIMIT_S."""
# Only the first outputs of a larger layer are timed.
_MAX_ELEMENTS = 1 << 19
_OUTPUT_STEP = 64
# The call takes longer than the matmul: all kernels are equally fast, so noise would choose.
_MIN_ELEMENTS = 1 << 15
# Packed weights are whole blocks of this number of outputs.
_BLOCK = 32
# Copies of a layer that are computed in turn, so that none stays in the cache of a core, as in a model.
_COPIES = 2
# Shortest times of one kernel differ by a few percent.
_SLOWER = 1.03

_measured: dict[tuple[object, ...], Times] = {}


@dataclass(frozen=True, slots=True)
class _Choice:
    """`times` and `errors` are empty where nothing was measured."""

    kernel: CpuKernel
    weights: Mapping[str, str]
    times: Times = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)


class KernelChooser:
    """Makes the linear layers of one model, each with the fastest kernel for its shape. Used by one thread.

    Loads of the same model in one process choose alike: times are kept for each shape.
    """

    def __init__(
        self,
        kernels: Sequence[CpuKernel],
        original: Sequence[CpuKernel] = (),
        *,
        max_bytes: float,
        shared: frozenset[int] = frozenset(),
        max_error: Callable[[torch.Tensor], float] | None = None,
        measure: Measure | None = None,
    ) -> None:
        """`kernels`: in the order of preference; one alone is not measured. `original`: for quantized weights, the
        kernels of the original, the best last. `max_bytes`: of a weight, in whole blocks,
        unless no kernel takes fewer. `shared`: addresses of weights that are in memory anyway. `max_error`: returns
        for weights the largest error of a kernel that may be chosen. `measure`: None for the clock.
        """
        self._kernels = kernels
        self._original = original
        self._max_bytes = max_bytes
        self._shared = shared
        self._max_error = max_error
        self._measure = measure
        self._started_s = time.perf_counter()
        self._spent_s = 0.0
        self._choices: dict[tuple[object, ...], _Choice] = {}
        self._counts: dict[tuple[object, ...], int] = {}
        self.held_bytes = 0
        """Of the layers made so far, without weights that are in memory anyway."""

    def fits(self, weight: torch.Tensor) -> bool:
        """Return whether a kernel computes with these weights, [outputs, inputs]."""
        return any(each.fits(weight) for each in self._kernels)

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Make a layer of weights that `fits` accepts, [outputs, inputs]."""
        return self._counted(weight).make(weight, bias)

    def of_groups(self, weights: GroupWeights, bias: torch.Tensor | None, dtype: torch.dtype) -> Linear:
        """Make a layer of weights that are already quantized. `dtype`: of the original weights, and of the rows."""
        kernel = self._counted(weights.dense(dtype))
        return kernel.make(weights.dense(), bias) if kernel.of_groups is None else kernel.of_groups(weights, bias)

    def _counted(self, weight: torch.Tensor) -> CpuKernel:
        """Return the kernel for one more layer of these weights."""
        usable = [each for each in self._kernels if each.fits(weight)]
        most = packed_bytes(weight, self._max_bytes)
        usable = [each for each in usable if each.held_bytes(*weight.shape) <= most] or usable[:1]
        key = (*weight.shape, weight.dtype, *(each.name for each in usable))
        if key not in self._choices:
            self._choices[key] = self._choose(weight, usable)
        self._counts[key] = self._counts.get(key, 0) + 1
        kernel = self._choices[key].kernel
        if kernel.copies or weight.data_ptr() not in self._shared:
            self.held_bytes += kernel.held_bytes(*weight.shape)
        return kernel

    @property
    def products(self) -> tuple[ProductTrial, ...]:
        """The chosen kernel of each shape, and the times of all."""
        return tuple(_product(key, self._counts[key], choice) for key, choice in self._choices.items())

    def _choose(self, weight: torch.Tensor, usable: Sequence[CpuKernel]) -> _Choice:
        weights = {each.name: each.weights for each in usable}
        timed = [*self._original_of(weight), *usable]
        # A part of the load so far; the rest of the load takes longer still.
        limit_s = max(MIN_LIMIT_S, LOAD_SHARE * (time.perf_counter() - self._started_s))
        if len(timed) == 1 or weight.numel() < _MIN_ELEMENTS or self._spent_s >= limit_s:
            return _Choice(self._likely(usable), weights)
        for each in timed:
            each.prepare()
        started_s = time.perf_counter()
        cut = weight.detach()[: _cut_outputs(weight.shape[1])]
        layers = {each.name: [each.make(cut.clone(), None) for _ in range(_COPIES)] for each in timed}
        times, errors, exact = self._times(cut, timed, layers), dict[str, float](), usable
        if self._max_error is not None:
            limit = self._max_error(cut)
            errors = {each.name: result_error(layers[each.name][0], cut) for each in usable}
            exact = [each for each in usable if errors[each.name] <= limit] or usable
        self._spent_s += time.perf_counter() - started_s
        return _Choice(fastest(exact, times), weights, times, errors)

    def _original_of(self, weight: torch.Tensor) -> list[CpuKernel]:
        most = weight.nbytes
        found = [each for each in self._original if each.held_bytes(*weight.shape) <= most and each.fits(weight)]
        return [replace(each, name=ORIGINAL) for each in found[-1:]]

    def _likely(self, usable: Sequence[CpuKernel]) -> CpuKernel:
        """Return the kernel that was fastest for most other shapes; the first without measurements."""
        names = [choice.kernel.name for choice in self._choices.values() if choice.times]
        return max(usable, key=lambda each: names.count(each.name))

    def _times(self, weight: torch.Tensor, timed: Sequence[CpuKernel], layers: Mapping[str, Sequence[Linear]]) -> Times:
        inputs, dtype = weight.shape[1], weight.dtype
        matmuls = {name: _in_turn(copies) for name, copies in layers.items()}
        if self._measure is not None:
            return time_matmuls(matmuls, TRIAL_ROWS, inputs, dtype, self._measure)
        key = (*weight.shape, weight.dtype, *((each.name, each.weights) for each in timed))
        if key not in _measured:
            _measured[key] = time_matmuls(matmuls, TRIAL_ROWS, inputs, dtype, shortest_seconds)
        return _measured[key]


def packed_bytes(weight: torch.Tensor, bytes_per_weight: float) -> int:
    """Return the most bytes that a layer of the weights, [outputs, inputs], takes in whole blocks."""
    return int(bytes_per_weight * -(-weight.shape[0] // _BLOCK) * _BLOCK * weight.shape[1])


def fastest(usable: Sequence[CpuKernel], times: Times) -> CpuKernel:
    """Return the first kernel that no other one is clearly faster than, in the geometric mean over the rows."""
    complete = [each for each in usable if len(times.get(each.name, {})) == len(TRIAL_ROWS)]
    best = complete[0] if complete else usable[0]
    for each in complete[1:]:
        if geometric_mean([*times[each.name].values()]) < best.max_rival_time * geometric_mean(
            [*times[best.name].values()]
        ):
            best = each
    return best


def sum_milliseconds(trials: Sequence[ProductTrial]) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the milliseconds of all measured layers by the number of rows: with the original's kernel, and with the
    chosen ones. Empty where no original was measured.
    """
    original: dict[str, float] = {}
    chosen: dict[str, float] = {}
    for each in trials:
        of = {trial.kernel: trial.milliseconds for trial in each.trials}
        for rows, milliseconds in of.get(ORIGINAL, {}).items():
            original[rows] = round(original.get(rows, 0.0) + each.layers * milliseconds, 3)
            chosen[rows] = round(chosen.get(rows, 0.0) + each.layers * of[each.kernel][rows], 3)
    return original, chosen


def log_trials(trials: Sequence[ProductTrial], model: str, dtype: str) -> None:
    """Log the chosen kernels, and warn of quantized ones that are slower than the original's. Does nothing without
    measurements.
    """
    if not any(each.trials for each in trials):
        return
    chosen = {f"{each.outputs}x{each.inputs}": each.kernel for each in trials}
    original_ms, quantized_ms = sum_milliseconds(trials)
    figures = {"original_ms": original_ms, "quantized_ms": quantized_ms} if original_ms else {}
    log.info("kernels chosen by measurement, milliseconds by rows", model=model, dtype=dtype, kernels=chosen, **figures)
    slower = [rows for rows, spent_ms in quantized_ms.items() if spent_ms > _SLOWER * original_ms[rows]]
    if slower:
        log.warning(
            "the quantized kernels are slower than the original's on this CPU, and are served as the entry asks",
            model=model,
            rows=slower,
            remedy="remove dtype",
            **figures,
        )


def _in_turn(layers: Sequence[Linear]) -> Matmul:
    """Return a matmul that calls the layers one after the other."""
    turns = itertools.cycle(layers)

    def run(rows: torch.Tensor) -> torch.Tensor:
        return next(turns)(rows)

    return run


def _cut_outputs(inputs: int) -> int:
    """Return the outputs of a layer that is timed, a multiple that every kernel computes."""
    return max(1, _MAX_ELEMENTS // inputs // _OUTPUT_STEP) * _OUTPUT_STEP


def _product(key: tuple[object, ...], layers: int, choice: _Choice) -> ProductTrial:
    outputs, inputs = key[:2]
    assert isinstance(outputs, int)
    assert isinstance(inputs, int)
    # A part of the layer was timed; the time of the layer is in proportion to its size.
    times = max(1.0, outputs / _cut_outputs(inputs))
    trials = tuple(
        KernelTrial(
            name,
            choice.weights.get(name, ""),
            round(choice.errors.get(name, 0.0), 5),
            {str(rows): max(1e-4, round(1e3 * times * each, 4)) for rows, each in seconds.items()},
        )
        for name, seconds in choice.times.items()
    )
    return ProductTrial(outputs, inputs, layers, choice.kernel.name, choice.kernel.weights, trials)
