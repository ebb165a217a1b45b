"""The int8 matmul of a model is the fastest that keeps the accuracy, by times that the tests give."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from frameworks.pytorch import int8_choice
from frameworks.pytorch.int8_choice import ORIGINAL, Int8Choice, Matmul, Measure, choose_int8, log_choice
from frameworks.pytorch.int8_matmul import Int8Kernel, Int8Matmul
from frameworks.quantization.ranges import HALVED, WHOLE
from tests.frameworks.pytorch.test_int8_matmul import ExactMatmul

pytestmark = pytest.mark.isa

ROWS = (1, 16)


class First(ExactMatmul):
    name = "first"


class Second(ExactMatmul):
    name = "second"


class Inexact(ExactMatmul):
    """Loses every other input."""

    name = "inexact"

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        weight = weight.clone()
        weight[:, ::2] = 0
        super().__init__(weight, scale)


class Padded(ExactMatmul):
    """Pads the inputs."""

    name = "padded"

    @classmethod
    def held_bytes(cls, outputs: int, inputs: int) -> int:
        return 3 * outputs * inputs


def original(weight: torch.Tensor) -> Matmul:
    return lambda rows: torch.nn.functional.linear(rows, weight)


def measure_as(times: Mapping[str, tuple[float, ...]], timed: list[set[str]] | None = None) -> Measure:
    """Return a clock that gives each product these seconds, for one number of rows after the other."""
    turns = iter(range(len(ROWS)))

    def measure(runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        turn = next(turns)
        for run in runs.values():
            run()
        if timed is not None:
            timed.append(set(runs))
        return {name: times[name][turn] for name in runs}

    return measure


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`kernels(First, …)`: the products of this CPU."""

    def put(*products: type[Int8Matmul]) -> None:
        monkeypatch.setattr(int8_choice, "exact_kernels", lambda: tuple(Int8Kernel(each) for each in products))

    yield put
    int8_choice._times.cache_clear()


def chosen(measure: Measure) -> Int8Choice:
    weight = torch.randn(24, 32, generator=torch.Generator().manual_seed(4))
    return choose_int8(weight, ROWS, original, measure)


class TestChoice:
    @pytest.mark.parametrize(
        ("first", "second", "name", "speedup"),
        [
            ((1.0, 2.0), (2.0, 4.0), "first", 4.0),
            ((4.0, 8.0), (2.0, 4.0), "second", 2.0),
            # Half as fast with one row and four times as fast with 16.
            ((2.0, 2.0), (1.0, 8.0), "first", 2 * 2**0.5),
        ],
    )
    def test_fastest_over_all_rows_chosen(
        self,
        kernels: Callable[..., None],
        first: tuple[float, float],
        second: tuple[float, float],
        name: str,
        speedup: float,
    ) -> None:
        kernels(First, Second)
        choice = chosen(measure_as({ORIGINAL: (4.0, 8.0), "first": first, "second": second}))
        assert choice.kernel.name == name
        assert choice.speedup == pytest.approx(speedup)
        assert [trial.kernel for trial in choice.trials] == [ORIGINAL, "first", "second"]
        assert choice.trials[0].milliseconds == {"1": 4000.0, "16": 8000.0}
        assert choice.trials[0].error == 0 < choice.trials[1].error < 0.05

    def test_fast_inexact_matmul_avoided(self, kernels: Callable[..., None]) -> None:
        kernels(Inexact, Second)
        choice = chosen(measure_as({ORIGINAL: (4.0, 8.0), "inexact": (1.0, 1.0), "second": (2.0, 2.0)}))
        assert choice.kernel.name == "second"
        assert choice.trials[1].error > 0.3

    def test_matmul_as_large_as_the_original_avoided(self, kernels: Callable[..., None]) -> None:
        kernels(Padded, Second)
        choice = chosen(measure_as({ORIGINAL: (4.0, 8.0), "second": (2.0, 2.0)}))
        assert [trial.kernel for trial in choice.trials] == [ORIGINAL, "second"]

    def test_hopeless_matmul_not_timed_again(self, kernels: Callable[..., None]) -> None:
        kernels(First, Second)
        timed: list[set[str]] = []
        times = {ORIGINAL: (90.0, 8.0), "first": (50.0, 0.1), "second": (1.0, 2.0)}
        choice = chosen(measure_as(times, timed))
        assert timed == [{ORIGINAL, "first", "second"}, {ORIGINAL, "second"}]
        assert choice.kernel.name == "second"
        assert choice.trials[1].milliseconds == {"1": 50000.0}

    def test_same_shape_timed_once(self, kernels: Callable[..., None]) -> None:
        kernels(First)
        timed: list[set[str]] = []
        measure = measure_as({ORIGINAL: (1.0, 1.0), "first": (1.0, 1.0)}, timed)
        assert chosen(measure) == chosen(measure)
        assert len(timed) == len(ROWS)

    def test_large_layer_is_cut(self, kernels: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
        kernels(First)
        monkeypatch.setattr(int8_choice, "_MAX_ELEMENTS", 40)
        shapes: list[tuple[int, ...]] = []

        def noted(weight: torch.Tensor) -> Matmul:
            shapes.append(tuple(weight.shape))
            return original(weight)

        choose_int8(torch.randn(100, 32), ROWS, noted, measure_as({ORIGINAL: (1.0, 1.0), "first": (1.0, 1.0)}))
        assert shapes == [(1, 32)]

    def test_accelerator_has_no_choice(self) -> None:
        choice = choose_int8(torch.zeros(8, 8, device="meta"), ROWS, original)
        assert (choice.kernel.name, choice.kernel.weight_range, choice.trials) == ("torch", WHOLE, ())
        assert choice.speedup == 1

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_clock_and_own_kernels_choose(self, dtype: torch.dtype) -> None:
        weight = torch.randn(48, 36, generator=torch.Generator().manual_seed(5)).to(dtype)
        choice = choose_int8(weight.t(), ROWS, original)
        assert {trial.kernel for trial in choice.trials} >= {ORIGINAL, "float32", choice.kernel.name}
        assert choice.speedup > 0


class TestLog:
    def logged(self, kernels: Callable[..., None], int8_s: float) -> list[Any]:
        kernels(First)
        choice = chosen(measure_as({ORIGINAL: (2.0, 2.0), "first": (int8_s, int8_s)}))
        with capture_logs() as logs:
            log_choice(choice, "m")
        return list(logs)

    def test_choice_is_logged_with_figures(self, kernels: Callable[..., None]) -> None:
        [log] = self.logged(kernels, 1.0)
        assert (log["log_level"], log["model"], log["kernel"], log["weights"]) == ("info", "m", "first", "whole")
        assert log["speedup"] == 2
        assert log["original_ms"] == {"1": 2000.0, "16": 2000.0}
        assert log["int8_ms"] == {"1": 1000.0, "16": 1000.0}

    def test_slower_matmul_is_served_with_warning(self, kernels: Callable[..., None]) -> None:
        _, warning = self.logged(kernels, 4.0)
        assert warning["log_level"] == "warning"
        assert "slower than the original" in warning["event"]
        assert (warning["original_ms"]["16"], warning["int8_ms"]["16"]) == (2000.0, 4000.0)

    def test_accelerator_logs_nothing(self) -> None:
        with capture_logs() as logs:
            log_choice(Int8Choice(Int8Kernel(First, HALVED)), "m")
        assert logs == []
