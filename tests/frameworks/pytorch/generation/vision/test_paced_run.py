"""Slices of a function of torch: it never runs beside its caller, and ends when it is cancelled."""

import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.pytorch.generation.vision.paced_run import PacedThread

LAYERS = 12


class Recorder(torch.nn.Module):
    """Note the thread that runs it; fail where the caller runs too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(LAYERS)])
        self.callers_turn = False
        self.overlaps = self.runs = 0

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            states = layer(states)
            self.runs += 1
            self.overlaps += self.callers_turn
        return states


@pytest.fixture
def recorder() -> Recorder:
    torch.manual_seed(0)
    return Recorder().eval()


@pytest.fixture
def paced(recorder: Recorder) -> Iterator[PacedThread[torch.Tensor]]:
    thread: PacedThread[torch.Tensor] = PacedThread("paced", recorder.layers, 1)
    yield thread
    thread.close()
    assert not thread._thread.is_alive()


def test_slices_give_whole_result(recorder: Recorder, paced: PacedThread[torch.Tensor]) -> None:
    states = torch.randn(3, 4)
    with torch.inference_mode():
        expected = recorder(states)
    recorder.runs = 0
    paced.begin(lambda: recorder(states))
    slices, result = 0, None
    while result is None:
        recorder.callers_turn = False
        before = recorder.runs
        result = paced.advance(0.0)
        recorder.callers_turn = True
        assert recorder.runs - before <= 1, "a slice without time is one layer"
        slices += 1
    assert slices == LAYERS + 1
    assert torch.equal(result, expected)
    assert not recorder.overlaps
    assert not paced.is_busy


def test_long_slice_is_whole_run(recorder: Recorder, paced: PacedThread[torch.Tensor]) -> None:
    paced.begin(lambda: recorder(torch.ones(1, 4)))
    assert paced.advance(60.0) is not None


def test_error_is_raised_by_its_slice(recorder: Recorder, paced: PacedThread[torch.Tensor]) -> None:
    paced.begin(lambda: recorder(torch.ones(1, 5)))
    assert paced.advance(0.0) is None
    with pytest.raises(RuntimeError, match="shapes"):
        paced.advance(0.0)
    paced.begin(lambda: recorder(torch.ones(1, 4)))
    assert paced.advance(60.0) is not None


def test_cancelled_run_is_dropped(recorder: Recorder, paced: PacedThread[torch.Tensor]) -> None:
    paced.cancel()
    paced.begin(lambda: recorder(torch.ones(1, 4)))
    assert paced.advance(0.0) is None
    runs = recorder.runs
    paced.cancel()
    assert not paced.is_busy
    assert recorder.runs == runs
    paced.begin(lambda: recorder(torch.zeros(2, 4)))
    result = paced.advance(60.0)
    assert result is not None
    assert result.shape == (2, 4)


def test_begun_run_ends_with_thread(recorder: Recorder) -> None:
    thread: PacedThread[torch.Tensor] = PacedThread("paced", recorder.layers, 1)
    thread.begin(lambda: recorder(torch.ones(1, 4)))
    thread.advance(0.0)
    thread.close()
    assert "paced" not in {each.name for each in threading.enumerate()}
    # Other threads run the modules without pauses, as before.
    assert recorder(torch.ones(1, 4)).shape == (1, 4)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, LAYERS + 2), st.booleans()), min_size=1, max_size=6))
def test_any_order_of_slices_and_cancels(runs: list[tuple[int, bool]]) -> None:
    recorder = Recorder().eval()
    thread: PacedThread[torch.Tensor] = PacedThread("paced", recorder.layers, 1)
    try:
        for slices, is_completed in runs:
            thread.begin(lambda: recorder(torch.ones(1, 4)))
            result = None
            for _ in range(slices):
                if result is None:
                    result = thread.advance(0.0)
            assert (result is not None) == (slices > LAYERS)
            if result is None and is_completed:
                assert thread.advance(60.0) is not None
            thread.cancel()
            assert not thread.is_busy
    finally:
        thread.close()
