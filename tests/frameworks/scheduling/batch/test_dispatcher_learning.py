"""A dispatcher whose model refused synthetic rows: callers share no batch until their requests have been compared."""

from dataclasses import replace

import numpy as np
import pytest

from frameworks.core.errors import Draining
from frameworks.scheduling.batch.trials.batching_trials import AGREEMENTS, SPACING
from frameworks.types import Batch, ModelSpec, SequenceType, TensorBatch, TensorType, Value, ValueSpec
from tests.frameworks.scheduling.batch.dispatching import (
    LOOP_THREAD,
    Harness,
    RowModel,
    answers_of,
    first_run,
    running_dispatcher,
)
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, settle, soon

NUMBERS = TensorType("int64", (-1, -1))
SPEC = ModelSpec(
    "fake", "tensor", (ValueSpec("x", NUMBERS),), (ValueSpec("y", NUMBERS), ValueSpec("items", SequenceType(NUMBERS))),
    "cpu", "int64", 0, unbatched_because="it was not warmed up", learns_batching=True,
)  # fmt: skip


class UntriedModel(RowModel):
    """A RowModel without a trial at warm-up. `is_mixed`: each row has the sum of its batch."""

    def __init__(self, is_mixed: bool = False) -> None:
        super().__init__()
        self.spec = SPEC
        self.is_mixed = is_mixed

    def answer(self, batch: Batch) -> dict[str, Value]:
        outputs = super().answer(batch)
        assert isinstance(batch, TensorBatch)
        x = batch.inputs["x"]
        assert isinstance(x, np.ndarray)
        if self.is_mixed:
            outputs["y"] = np.broadcast_to(x.sum(0), x.shape) * 2
        return outputs


async def send_one_by_one(harness: Harness, first: int, number: int) -> None:
    for x in range(first, first + number):
        assert await harness.send(x) == [x]


async def learned(harness: Harness) -> None:
    """Send requests until their pairs have decided."""
    await send_one_by_one(harness, 0, SPACING * AGREEMENTS)
    await soon(lambda: harness.dispatcher._learner is None)


@in_loop
async def test_agreeing_requests_switch_batching_on() -> None:
    gate = Gate()
    model = UntriedModel()
    async with running_dispatcher(model, inputs=()) as harness:
        assert await answers_of(*(harness.send(x) for x in (1, 2, 3))) == [[1], [2], [3]]
        await learned(harness)
        assert set(harness.batch_sizes) == {1}, "no caller shared a batch before"
        assert (model.spec.batched_inputs, model.spec.unbatched_because) == (frozenset("x"), None)
        model.behaviour = gate
        first = harness.send(1000)
        await first_run(gate)
        others = [harness.send(x) for x in (1001, 1002, 1003)]
        await settle()
        gate.open()
        assert await answers_of(first, *others) == [[1000], [1001], [1002], [1003]]
        assert harness.batch_sizes[3] == 1


@in_loop
async def test_differing_requests_keep_batching_off() -> None:
    model = UntriedModel(is_mixed=True)
    async with running_dispatcher(model, inputs=()) as harness:
        await send_one_by_one(harness, 1, SPACING)
        await soon(lambda: harness.dispatcher._learner is None)
        assert model.spec.unbatched_because == 'output "y" of rows of two requests differs from its single runs'
        assert await answers_of(*(harness.send(x) for x in range(100, 120))) == [[x] for x in range(100, 120)]
        assert set(harness.batch_sizes) == {1}


@in_loop
async def test_short_runs_wait_for_the_decision() -> None:
    model = UntriedModel()
    async with running_dispatcher(model, inputs=(), runs_by_shape=True) as harness:
        harness.allow_inline()
        await learned(harness)
        assert LOOP_THREAD not in model.threads
        harness.allow_inline()
        await send_one_by_one(harness, 1000, 1)
        assert model.threads[-1] == LOOP_THREAD


@in_loop
async def test_failed_pair_fails_no_request() -> None:
    def refuse_pairs(x: list[int]) -> None:
        if len(x) > 1:
            raise RuntimeError("a bug")

    model = UntriedModel()
    model.behaviour = refuse_pairs
    async with running_dispatcher(model, inputs=()) as harness:
        await learned(harness)
        await send_one_by_one(harness, 1000, 3)
        assert model.spec.batched_inputs == frozenset()


@in_loop
async def test_pair_in_progress_ends_with_the_dispatcher() -> None:
    gate = Gate()
    model = UntriedModel()
    async with running_dispatcher(model, inputs=()) as harness:
        await send_one_by_one(harness, 0, SPACING - 1)
        model.behaviour = lambda x: gate(x) if len(x) > 1 else None
        await send_one_by_one(harness, 100, 1)
        await first_run(gate)
        waiting = harness.send(7)
        await settle()
        harness.dispatcher.abort("stopping")
        with pytest.raises(Draining):
            await waiting
        gate.open()
        await soon(lambda: not harness.dispatcher.is_running)


@in_loop
async def test_warmed_model_learns_nothing() -> None:
    model = UntriedModel()
    model.spec = replace(SPEC, learns_batching=False)
    async with running_dispatcher(model, inputs=()) as harness:
        await send_one_by_one(harness, 0, SPACING * AGREEMENTS)
        assert len(model.executed) == SPACING * AGREEMENTS
