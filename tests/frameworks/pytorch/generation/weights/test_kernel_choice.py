"""The kernel of a shape is the fastest by the times that the tests give."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from frameworks.pytorch.generation.weights import kernel_choice
from frameworks.pytorch.generation.weights.cpu_kernels import CpuKernel
from frameworks.pytorch.generation.weights.kernel_choice import TRIAL_ROWS, KernelChooser, log_trials, sum_milliseconds
from frameworks.pytorch.generation.weights.linear import PlainLinear
from frameworks.pytorch.int8_choice import ORIGINAL, Measure
from frameworks.types import KernelTrial, ProductTrial

LARGE = (256, 256)


class Inexact(PlainLinear):
    """Is off by a tenth."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return 1.1 * super().__call__(rows)


def kernel(name: str, make: Any = PlainLinear, bytes_per_weight: int = 4, **more: Any) -> CpuKernel:
    return CpuKernel(name, make, lambda outputs, inputs: bytes_per_weight * outputs * inputs, **more)


def measure_as(times: Mapping[str, float | tuple[float, ...]], measured: list[set[str]] | None = None) -> Measure:
    """Return a clock that gives each kernel these seconds, in turn for each number of rows."""
    turns = dict.fromkeys(times, 0)

    def measure(runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        found = {}
        for name, run in runs.items():
            assert isinstance(run(), torch.Tensor)
            of = times[name]
            found[name] = of[turns[name] % len(TRIAL_ROWS)] if isinstance(of, tuple) else of
            turns[name] += 1
        if measured is not None:
            measured.append(set(runs))
        return found

    return measure


def chosen(kernels: list[CpuKernel], times: Mapping[str, float | tuple[float, ...]], **more: Any) -> str:
    chooser = KernelChooser(kernels, measure=measure_as(times), **{"max_bytes": 4, **more})
    chooser(torch.ones(LARGE), None)
    return chooser.products[0].kernel


FIRST, SECOND = kernel("first"), kernel("second")


@pytest.mark.parametrize(("second_s", "name"), [(0.95, "first"), (0.85, "second"), (2.0, "first")])
def test_clearly_faster_kernel_replaces_usual(second_s: float, name: str) -> None:
    assert chosen([FIRST, SECOND], {"first": 1.0, "second": second_s}) == name


def test_choice_is_by_geometric_mean() -> None:
    times = {"first": (1.0, 1.0, 1.0, 1.0), "second": (0.25, 0.5, 1.2, 1.5)}
    assert chosen([FIRST, SECOND], times) == "second"


def test_hopeless_kernel_is_timed_once() -> None:
    measured: list[set[str]] = []
    clock = measure_as({"first": 1.0, "second": 9.0}, measured)
    KernelChooser([FIRST, SECOND], max_bytes=4, measure=clock)(torch.ones(LARGE), None)
    assert measured == [{"first", "second"}, {"first"}, {"first"}, {"first"}]


def test_kernel_beyond_memory_is_not_used() -> None:
    assert chosen([FIRST, kernel("second", bytes_per_weight=5)], {"first": 1.0, "second": 0.1}) == "first"


def test_kernel_that_fits_no_weights_is_skipped() -> None:
    unfit = kernel("second", fits=lambda weight: bool((weight == 0).all()))
    chooser = KernelChooser([FIRST, unfit], max_bytes=4, measure=measure_as({"first": 1.0, "second": 0.1}))
    for weight in (torch.ones(LARGE), torch.zeros(LARGE), torch.ones(LARGE)):
        chooser(weight, None)
    assert [(each.kernel, each.layers) for each in chooser.products] == [("first", 2), ("second", 1)]


def test_inexact_kernel_is_not_used() -> None:
    inexact = kernel("second", Inexact)
    times = {"first": 1.0, "second": 0.1}
    assert chosen([FIRST, inexact], times, max_error=lambda _: 0.01) == "first"
    assert chosen([FIRST, inexact], times, max_error=lambda _: 0.2) == "second"


def test_layers_of_a_shape_share_one_trial() -> None:
    measured: list[set[str]] = []
    chooser = KernelChooser([FIRST, SECOND], max_bytes=4, measure=measure_as({"first": 1.0, "second": 2.0}, measured))
    for outputs in (256, 256, 320):
        chooser(torch.ones(outputs, 256), None)
    assert len(measured) == 2 * len(TRIAL_ROWS)
    assert [(each.outputs, each.layers) for each in chooser.products] == [(256, 2), (320, 1)]
    assert chooser.held_bytes == 4 * 256 * (2 * 256 + 320)


def test_small_shape_keeps_usual_kernel_unmeasured() -> None:
    chooser = KernelChooser([FIRST, SECOND], max_bytes=4, measure=measure_as({}))
    chooser(torch.ones(16, 16), None)
    assert (chooser.products[0].kernel, chooser.products[0].trials) == ("first", ())


def test_trials_end_with_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further shapes get what was fastest for others."""
    monkeypatch.setattr(kernel_choice, "MIN_LIMIT_S", 0.0)
    monkeypatch.setattr(kernel_choice, "LOAD_SHARE", 0.0)
    chooser = KernelChooser([FIRST, SECOND], max_bytes=4, measure=measure_as({"first": 1.0, "second": 0.5}))
    chooser(torch.ones(LARGE), None)
    assert chooser.products[0].kernel == "first"
    monkeypatch.setattr(kernel_choice, "MIN_LIMIT_S", 3600.0)
    chooser(torch.ones(320, 256), None)
    monkeypatch.setattr(kernel_choice, "MIN_LIMIT_S", 0.0)
    chooser(torch.ones(384, 256), None)
    assert [(each.kernel, bool(each.trials)) for each in chooser.products[1:]] == [("second", True), ("second", False)]


def test_shared_weights_are_not_counted_twice() -> None:
    table, own = torch.ones(16, 16), torch.ones(16, 16)
    chooser = KernelChooser([kernel("plain", copies=False)], max_bytes=4, shared=frozenset({table.data_ptr()}))
    chooser(table, None)
    assert chooser.held_bytes == 0
    chooser(own, None)
    assert chooser.held_bytes == own.nbytes


def test_times_of_cut_layer_are_those_of_whole() -> None:
    outputs, inputs = 4096, 512
    chooser = KernelChooser([FIRST, SECOND], max_bytes=4, measure=measure_as({"first": 0.001, "second": 0.002}))
    chooser(torch.ones(outputs, inputs), None)
    [product] = chooser.products
    assert product.trials[0].milliseconds["1"] == 1.0 * outputs / (kernel_choice._MAX_ELEMENTS // inputs)


class TestSlower:
    def trials(self, quantized_ms: float) -> tuple[ProductTrial, ...]:
        times = {"original": {"1": 1.0, "16": 2.0}, "int8": {"1": quantized_ms, "16": 1.0}}
        trials = tuple(KernelTrial(name, "", 0.0, of) for name, of in times.items())
        return ProductTrial(8, 8, 3, "int8", "whole", trials), ProductTrial(4, 4, 2, "int8")

    def test_layers_are_added_up(self) -> None:
        assert sum_milliseconds(self.trials(0.5)) == ({"1": 3.0, "16": 6.0}, {"1": 1.5, "16": 3.0})

    @pytest.mark.parametrize(("quantized_ms", "warned"), [(0.5, []), (1.5, [["1"]])])
    def test_slower_kernels_warn_with_both_figures(self, quantized_ms: float, warned: list[list[str]]) -> None:
        with capture_logs() as logs:
            log_trials(self.trials(quantized_ms), "m", "int8")
        warnings = [each for each in logs if each["log_level"] == "warning"]
        assert [each["rows"] for each in warnings] == warned
        assert all(each["original_ms"]["1"] == 3.0 and each["quantized_ms"]["1"] == 4.5 for each in warnings)

    def test_unmeasured_kernels_log_nothing(self) -> None:
        with capture_logs() as logs:
            log_trials((ProductTrial(4, 4, 2, "plain"),), "m", "f32")
        assert logs == []


def test_original_is_timed_and_never_chosen() -> None:
    clock = measure_as({ORIGINAL: 0.1, "first": 1.0})
    chooser = KernelChooser([FIRST], [SECOND], max_bytes=4, measure=clock)
    chooser(torch.ones(LARGE), None)
    [product] = chooser.products
    assert product.kernel == "first"
    assert [each.kernel for each in product.trials] == [ORIGINAL, "first"]
