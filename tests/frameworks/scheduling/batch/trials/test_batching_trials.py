"""Rows of requests are compared before they share a run, where synthetic rows could not be."""

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest

from frameworks.core.errors import InvalidInput
from frameworks.scheduling.batch.trials import batching_trials
from frameworks.scheduling.batch.trials.batching_trials import AGREEMENTS, SPACING, BatchLearner
from frameworks.types import (
    Array,
    Batch,
    ModelSpec,
    SequenceSpec,
    TensorBatch,
    TensorType,
    TokenBatch,
    Value,
    ValueSpec,
)

Graph = Callable[[dict[str, Array]], Array]
FREE = TensorType("float32", (-1, 3))


def spec_of(*inputs: str, shape: tuple[int, ...] = (-1, 3), sequence: SequenceSpec | None = None) -> ModelSpec:
    kind = TensorType("float32", shape)
    specs = tuple(ValueSpec(name, kind) for name in inputs)
    reason = "it was not warmed up"
    return ModelSpec(
        "fake", "tensor", specs, (ValueSpec("y", kind),), "cpu", "float32", 0,
        unbatched_because=reason, learns_batching=True, sequence=sequence,
    )  # fmt: skip


def request(number: float, *names: str, rows: int = 1, **same: float) -> TensorBatch:
    """Return a request whose rows are numbers from `number` on; those of `same` are the same in all requests."""
    values: dict[str, Value] = {
        name: (number + np.arange(3 * rows, dtype=np.float32)).reshape(rows, 3) for name in names or ("x",)
    }
    return TensorBatch(values | {name: np.full((rows, 3), value, np.float32) for name, value in same.items()})


class Runs:
    """Run a function as a graph, and keep the numbers of rows."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rows: list[int] = []

    def __call__(self, batch: Batch) -> dict[str, Value]:
        assert isinstance(batch, TensorBatch)
        self.rows.append(batch.rows)
        return {"y": self.graph({name: value for name, value in batch.inputs.items() if isinstance(value, np.ndarray)})}


def learn(learner: BatchLearner, runs: Runs, requests: Iterator[TensorBatch], most: int = 1000) -> int:
    """Let the learner see requests until it is done, and run its pairs; return the number of requests."""
    for number, each in zip(range(1, most + 1), requests, strict=False):
        pair = learner.observe(each)
        if pair is not None:
            assert pair.run(runs) == {}
            learner.conclude(pair)
        if learner.is_done:
            return number
    raise AssertionError("the learner has not finished")


def doubled(inputs: dict[str, Array]) -> Array:
    return inputs["x"] * 2


def test_rows_that_agree_switch_batching_on() -> None:
    learner, runs = BatchLearner("m", spec_of("x"), 32), Runs(doubled)
    assert learn(learner, runs, (request(n) for n in count())) == SPACING * AGREEMENTS
    assert learner.spec.batched_inputs == {"x"}
    assert learner.spec.unbatched_because is None
    assert not learner.spec.learns_batching
    assert runs.rows == [1, 1, 2] * AGREEMENTS


@pytest.mark.parametrize(
    "graph",
    [
        lambda inputs: inputs["x"] - inputs["x"].mean(0),
        lambda inputs: inputs["x"][:1].repeat(len(inputs["x"]), 0),
        lambda inputs: inputs["x"][-1:].repeat(len(inputs["x"]), 0),
        lambda inputs: inputs["x"][:1],
        lambda inputs: inputs["x"][::-1],
    ],
)
def test_rows_that_differ_switch_batching_off(graph: Graph) -> None:
    learner, runs = BatchLearner("m", spec_of("x"), 32), Runs(graph)
    learn(learner, runs, (request(n) for n in count()))
    assert learner.spec.batched_inputs == frozenset()
    assert learner.spec.unbatched_because is not None
    assert "two requests" in learner.spec.unbatched_because
    assert runs.rows == [1, 1, 2]


def test_refused_pair_switches_batching_off() -> None:
    def refuse(inputs: dict[str, Array]) -> Array:
        if len(inputs["x"]) > 1:
            raise InvalidInput("inputs", "one row only")
        return inputs["x"]

    learner = BatchLearner("m", spec_of("x"), 32)
    learn(learner, Runs(refuse), (request(n) for n in count()))
    because = learner.spec.unbatched_because
    assert because == "a trial with rows of two requests failed: inputs: one row only"


def test_equal_requests_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch's mean of equal rows is the mean of each."""
    monkeypatch.setattr(batching_trials, "MAX_REQUESTS", 100)
    learner, runs = BatchLearner("m", spec_of("x"), 32), Runs(lambda inputs: inputs["x"] - inputs["x"].mean(0))
    assert learn(learner, runs, (request(1) for _ in count())) == 101
    assert learner.spec.unbatched_because is not None
    assert learner.spec.unbatched_because.endswith("too much alike, to compare their rows of x")
    assert runs.rows == []


def test_input_that_never_differs_keeps_batching_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph uses the first threshold for all rows, which equal thresholds do not show."""
    monkeypatch.setattr(batching_trials, "MAX_REQUESTS", 200)
    learner, runs = BatchLearner("m", spec_of("x", "t"), 32), Runs(lambda inputs: inputs["x"] * inputs["t"][:1])
    learn(learner, runs, (request(n, "x", t=0.5) for n in count()))
    assert learner.spec.batched_inputs == frozenset()
    assert learner.spec.unbatched_because is not None
    assert learner.spec.unbatched_because.endswith("their rows of t")
    assert runs.rows == [1, 1, 2] * AGREEMENTS
    learner = BatchLearner("m", spec_of("x", "t"), 32)
    learn(learner, runs, (request(n, "x", t=n) for n in count()))
    assert learner.spec.unbatched_because is not None
    assert "differs from its single runs" in learner.spec.unbatched_because


def test_shapes_and_rows_are_compared_as_batched() -> None:
    """Requests of several rows pair with others of their shape, up to the rows of a batch."""
    learner, runs = BatchLearner("m", spec_of("x"), 4), Runs(doubled)
    learn(learner, runs, (request(n, rows=1 + n % 3) for n in count()))
    assert learner.spec.batched_inputs == {"x"}
    assert max(runs.rows) <= 4


def test_large_and_unsuitable_requests_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching_trials, "MAX_REQUESTS", 100)
    monkeypatch.setattr(batching_trials, "_MAX_REQUEST_BYTES", 11)
    learner, runs = BatchLearner("m", spec_of("x"), 32), Runs(doubled)
    learn(learner, runs, (request(n) for n in count()))
    monkeypatch.setattr(batching_trials, "_MAX_REQUEST_BYTES", 12)
    for unsuitable in (request(1, "x", "other"), request(1, rows=17), TokenBatch([[1]])):
        assert BatchLearner("m", spec_of("x"), 32).observe(unsuitable) is None
    assert runs.rows == []


def test_kept_requests_are_bounded() -> None:
    learner = BatchLearner("m", spec_of("x", shape=(-1, -1)), 32)
    for width in range(1, 50):
        learner.observe(TensorBatch({"x": np.zeros((1, width), np.float32)}))
    assert len(learner._recent) <= 8


def test_one_pair_runs_at_a_time() -> None:
    learner = BatchLearner("m", spec_of("x"), 32)
    pairs = [pair for n in range(100) if (pair := learner.observe(request(n))) is not None]
    assert len(pairs) == 1


def test_unbatchable_graph_only_counts_requests() -> None:
    """Short runs are allowed after as many requests as pairs are needed."""
    learner, runs = BatchLearner("m", spec_of("x", shape=(1, 3)), 32), Runs(doubled)
    assert learn(learner, runs, (request(n) for n in count())) == AGREEMENTS
    assert learner.spec.unbatched_because == "it was not warmed up"
    assert (learner.spec.learns_batching, runs.rows) == (False, [])


def test_absent_mask_is_added() -> None:
    mask = ValueSpec("mask", TensorType("float32", (-1, -1)), required=False)
    sequence = SequenceSpec(1, {"x": 0, "mask": 0}, mask)
    spec = spec_of("x", shape=(-1, -1), sequence=sequence)
    spec = ModelSpec(
        "fake", "tensor", (*spec.inputs, mask), spec.outputs, "cpu", "float32", 0,
        unbatched_because="it was not warmed up", learns_batching=True, sequence=sequence,
    )  # fmt: skip
    learner, runs = BatchLearner("m", spec, 32), Runs(lambda inputs: inputs["x"] * inputs["mask"])
    learn(learner, runs, (request(n) for n in count()))
    assert learner.spec.batched_inputs == {"x", "mask"}
