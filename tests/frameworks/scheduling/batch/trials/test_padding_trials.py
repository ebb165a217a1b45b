"""Requests of different lengths are compared before they are padded to share a run."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from frameworks.core.errors import InvalidInput
from frameworks.scheduling.batch.trials import padding_trials
from frameworks.scheduling.batch.trials.batching_trials import AGREEMENTS, SPACING
from frameworks.scheduling.batch.trials.padding_trials import PaddingLearner
from frameworks.types import Array, Batch, ModelSpec, SequenceSpec, TensorBatch, TensorType, Value, ValueSpec
from tests.frameworks.scheduling.batch.dispatching import RowModel, running_dispatcher
from tests.support.loops import in_loop, soon

Graph = Callable[[Array, Array], Array]
KIND = TensorType("float32", (-1, -1))
MASK = ValueSpec("mask", KIND, required=False)
INPUTS = (ValueSpec("x", KIND), MASK)
MASKED = SequenceSpec(1, {"x": 0, "mask": 0}, MASK)
SPEC = ModelSpec(
    "fake", "tensor", INPUTS, (ValueSpec("y", TensorType("float32", (-1, -1))),), "cpu", "float32", 0,
    batched_inputs=frozenset({"x", "mask"}), sequence=MASKED,
)  # fmt: skip


def request(length: int, rows: int = 1) -> TensorBatch:
    """Return rows of positive numbers; the server adds the mask."""
    return TensorBatch({"x": 1 + np.random.default_rng(length).random((rows, length)).astype(np.float32)})


def run(graph: Graph) -> Callable[[Batch], dict[str, Value]]:
    def infer(batch: Batch) -> dict[str, Value]:
        assert isinstance(batch, TensorBatch)
        x, mask = batch.inputs["x"], batch.inputs["mask"]
        assert isinstance(x, np.ndarray)
        assert isinstance(mask, np.ndarray)
        return {"y": graph(x, mask)}

    return infer


def learn(graph: Graph, lengths: Callable[[int], int] = lambda number: 2 + number % 5) -> SequenceSpec:
    learner = PaddingLearner("m", SPEC, 32)
    number = 0
    while not learner.is_done:
        number += 1
        pair = learner.observe(request(lengths(number), rows=1 + number % 2))
        if pair is not None:
            assert pair.run(run(graph)) == {}
            learner.conclude(pair)
    assert learner.spec.sequence is not None
    return learner.spec.sequence


@pytest.mark.parametrize(
    ("graph", "axes"),
    [
        (lambda x, mask: (x * mask).sum(1, keepdims=True), {}),
        (lambda x, mask: (x * mask).sum(1, keepdims=True) / mask.sum(1, keepdims=True), {}),
        (lambda x, mask: np.where(mask > 0, x, -1e9).max(1, keepdims=True), {}),
        (lambda x, mask: x * 2 * mask, {"y": (1,)}),
    ],
)
def test_lengths_that_agree_switch_padding_on(graph: Graph, axes: dict[str, tuple[int, ...]]) -> None:
    learned = learn(graph)
    assert learned.unpadded_because is None
    assert learned.output_axes == axes


@pytest.mark.parametrize(
    "graph",
    [
        lambda x, mask: x.mean(1, keepdims=True),
        # Requests with positive numbers do not show that these read the padding.
        lambda x, mask: x.max(1, keepdims=True),
        lambda x, mask: np.abs(x).max(1, keepdims=True) * np.sign(x.max(1, keepdims=True)),
        lambda x, mask: x[:, ::-1],
    ],
)
def test_lengths_that_differ_keep_padding_off(graph: Graph) -> None:
    because = learn(graph).unpadded_because
    assert because == 'output "y" of a padded row differs from its single run'


def test_refused_numbers_beside_padding_show_nothing() -> None:
    def positive(x: Array, mask: Array) -> Array:
        if (x < 0).any():
            raise InvalidInput("inputs", "a negative number")
        y: Array = x.max(1, keepdims=True)
        return y

    assert learn(positive).unpadded_because is None


def test_refused_padding_keeps_it_off() -> None:
    def unpadded(x: Array, mask: Array) -> Array:
        if (x == 0).any():
            raise InvalidInput("inputs", "a zero")
        y: Array = x.sum(1, keepdims=True)
        return y

    assert learn(unpadded).unpadded_because == "a trial with a padded row failed: inputs: a zero"


def test_equal_lengths_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding_trials, "MAX_REQUESTS", 50)
    because = learn(lambda x, mask: x, lengths=lambda _: 3).unpadded_because
    assert because is not None
    assert "too much alike" in because


class UntriedModel(RowModel):
    """Sum up each row; there was no trial at warm-up."""

    def __init__(self) -> None:
        super().__init__()
        kinds = (ValueSpec("x", TensorType("int64", (-1, -1))),)
        outputs = (ValueSpec("y", TensorType("int64", (-1, 1))),)
        self.spec = replace(
            SPEC, inputs=kinds, outputs=outputs, sequence=SequenceSpec(1, {"x": 0}), learns_batching=True
        )

    def answer(self, batch: Batch) -> dict[str, Value]:
        assert isinstance(batch, TensorBatch)
        x = batch.inputs["x"]
        assert isinstance(x, np.ndarray)
        return {"y": x.sum(1, keepdims=True)}


@in_loop
async def test_padding_is_learned_after_batching() -> None:
    model = UntriedModel()
    async with running_dispatcher(model, inputs=()) as harness:
        for number in range(2 * (SPACING * AGREEMENTS + SPACING)):
            x = np.full((1, 2 + number // SPACING % 2), number + 1, np.int64)
            outputs = await harness.run(TensorBatch({"x": x}))
            assert np.array_equal(outputs["y"], x.sum(1, keepdims=True))  # type: ignore[arg-type]
        await soon(lambda: harness.dispatcher._learner is None)
    assert model.spec.batched_inputs == {"x"}
    assert model.spec.sequence is not None
    assert model.spec.sequence.unpadded_because is None
    assert set(harness.batch_sizes) == {1}
