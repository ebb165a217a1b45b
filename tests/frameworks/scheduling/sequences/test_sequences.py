"""Steps of sequences: their order, their states, cancelled and failed steps, bounds, and lost sequences."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from frameworks.core.errors import (
    Draining,
    InvalidInput,
    Overloaded,
    SequenceLost,
    SequenceNotFound,
)
from frameworks.core.tenants import Tenant
from frameworks.scheduling.sequences.state_store import SEQUENCE_BYTES
from frameworks.types import Array, TensorBatch
from tests.frameworks.scheduling.sequences.stepping import load, number_of, stepping
from tests.support.loops import in_loop, settle
from tests.support.models import onnx_recurrent
from tests.support.models.onnx_recurrent import HIDDEN, INPUTS, Loop, running_sum

assert_close = partial(np.testing.assert_allclose, rtol=0, atol=1e-6)


def x(value: float) -> dict[str, Array]:
    return {"x": np.full((1, 1), value, np.float32)}


@in_loop
async def test_concurrent_steps_run_in_arrival_order(tmp_path: Path) -> None:
    async with stepping(load(tmp_path, running_sum())) as running:
        futures = [running.send(1, x(2.0**at), start=at == 0, end=at == 9) for at in range(10)]
        sums = [number_of(outputs, "sum") for outputs in await asyncio.gather(*futures)]
        assert sums == [2.0 ** (at + 1) - 1 for at in range(10)]
        assert running.counts.sizes == {1: 10}
        assert len(running.sequences.store) == 0


@in_loop
async def test_sequences_at_once_equal_one_by_one(tmp_path: Path) -> None:
    graph, random = onnx_recurrent.lstm(has_rate=True), np.random.default_rng(0)
    inputs = random.random((64, 12, 1, INPUTS), np.float32)
    async with stepping(load(tmp_path, graph)) as running:

        async def whole(number: int) -> list[float]:
            answers = []
            for at, values in enumerate(inputs[number]):
                step = {"x": values, "rate": np.array(1 + number % 2)}
                answers.append(number_of(await running.send(number + 1, step, at == 0, at == 11), "prob"))
            return answers

        together = await asyncio.gather(*map(whole, range(64)))
        assert max(running.counts.sizes) > 8
    for number, answers in enumerate(together):
        loop = Loop(graph)
        alone = [loop.step({"x": values, "rate": np.array(1 + number % 2)}).item() for values in inputs[number]]
        assert_close(answers, alone)


@pytest.mark.parametrize("rate", [np.array(1), np.array([1])])
def test_learned_batches_of_steps_equal_loops(tmp_path: Path, rate: Array) -> None:
    in_loop(check_learned_batches)(tmp_path, rate)


async def check_learned_batches(tmp_path: Path, rate: Array) -> None:
    graph, random = onnx_recurrent.lstm(has_rate=True), np.random.default_rng(1)
    model = load(tmp_path, graph)
    # As of a graph that refuses made-up values.
    model.spec = replace(
        model.spec,
        batched_inputs=frozenset(),
        equal_inputs=frozenset(),
        unbatched_because="it was not warmed up",
        learns_batching=True,
    )
    inputs = random.random((16, 40, 1, INPUTS), np.float32)
    async with stepping(model) as running:

        async def whole(number: int) -> list[float]:
            sent = [{"x": values, "rate": rate} for values in inputs[number]]
            return [
                number_of(await running.send(number + 1, step, at == 0, at == 39), "prob")
                for at, step in enumerate(sent)
            ]

        together = await asyncio.gather(*map(whole, range(16)))
    assert (model.spec.unbatched_because, model.spec.equal_inputs) == (None, frozenset({"rate"}))
    assert max(running.counts.sizes) > 4
    for number, answers in enumerate(together):
        loop = Loop(graph)
        alone = [loop.step({"x": values, "rate": np.array(1)}).item() for values in inputs[number]]
        assert_close(answers, alone)


@in_loop
async def test_rows_of_one_step_have_states_each(tmp_path: Path) -> None:
    graph = onnx_recurrent.lstm()
    steps = np.random.default_rng(2).random((4, 3, INPUTS), np.float32)
    async with stepping(load(tmp_path, graph)) as running:
        loop = Loop(graph, rows=3)
        for at, values in enumerate(steps):
            outputs = await running.send("rows", {"x": values}, start=at == 0)
            assert_close(outputs["prob"], loop.step({"x": values}))
        with pytest.raises(InvalidInput, match="inputs: expected 3 rows as in the first step of the sequence, got 1"):
            await running.send("rows", {"x": steps[0, :1]})


@in_loop
async def test_start_of_running_id_restarts_it(tmp_path: Path) -> None:
    async with stepping(load(tmp_path, running_sum())) as running:
        await running.send(1, x(5), start=True)
        assert number_of(await running.send(1, x(1), start=True), "sum") == 1
        assert number_of(await running.send(1, x(1)), "sum") == 2


@in_loop
async def test_unknown_sequence_is_not_found(tmp_path: Path) -> None:
    async with stepping(load(tmp_path, running_sum())) as running:
        await running.send(7, x(1), start=True)
        with pytest.raises(SequenceNotFound, match=r'sequence: expected start, .* got "7"; begin it with start'):
            await running.send("7", x(1))
        await running.send(7, x(1), end=True)
        with pytest.raises(SequenceNotFound):
            await running.send(7, x(1))


@in_loop
async def test_request_without_sequence_is_refused(tmp_path: Path) -> None:
    async with stepping(load(tmp_path, running_sum())) as running:
        with pytest.raises(InvalidInput, match="sequence: expected the sequence of the request"):
            running.sequences.submit(TensorBatch(dict(x(1))))


@in_loop
async def test_cancelled_step_leaves_state_as_it_was(tmp_path: Path) -> None:
    async with stepping(load(tmp_path, running_sum())) as running:
        await running.send(1, x(1), start=True)
        blocked, waiting, last = (running.send(1, x(value)) for value in (10, 100, 1000))
        for future in (blocked, waiting):
            future.cancel()
        assert number_of(await last, "sum") == 1001


@in_loop
async def test_cancelled_end_leaves_sequence_running(tmp_path: Path) -> None:
    async with stepping(load(tmp_path, running_sum())) as running:
        await running.send(1, x(1), start=True)
        running.send(1, x(1), end=True).cancel()
        await settle()
        assert number_of(await running.send(1, x(1)), "sum") == 2


@in_loop
async def test_failed_step_leaves_state_as_it_was(tmp_path: Path) -> None:
    async with stepping(load(tmp_path, onnx_recurrent.lstm())) as running:
        values, loop = np.ones((1, INPUTS), np.float32), Loop(onnx_recurrent.lstm())
        await running.send(1, {"x": values}, start=True)
        loop.step({"x": values})
        with pytest.raises(InvalidInput, match="the graph refuses"):
            await running.send(1, {"x": np.ones((1, INPUTS + 1), np.float32)})
        outputs = await running.send(1, {"x": values})
        assert_close(outputs["prob"], loop.step({"x": values}))


@in_loop
async def test_failed_start_begins_no_sequence(tmp_path: Path) -> None:
    async with stepping(load(tmp_path, onnx_recurrent.lstm())) as running:
        good = {"x": np.ones((1, INPUTS), np.float32)}
        await running.send(1, good, start=True)
        failing = running.send(1, {"x": np.ones((1, INPUTS + 1), np.float32)}, start=True)
        following = running.send(1, good)
        with pytest.raises(InvalidInput):
            await failing
        with pytest.raises(SequenceNotFound):
            await following
        assert running.sequences.store.total_bytes == 0


@in_loop
async def test_idle_sequence_ends_after_timeout(tmp_path: Path) -> None:
    async with stepping(load(tmp_path, running_sum(), max_sequence_idle_s=5.0)) as running:
        await running.send(1, x(1), start=True)
        await running.send(2, x(1), start=True)
        running.clock.now_s += 4.9
        await running.send(1, x(1))
        running.clock.now_s += 4.9
        assert number_of(await running.send(1, x(1)), "sum") == 3
        with pytest.raises(SequenceNotFound, match="5 s is ended"):
            await running.send(2, x(1))
        assert len(running.sequences.store) == 1


@in_loop
async def test_tenants_have_sequences_of_their_own(tmp_path: Path) -> None:
    red, blue = Tenant("red"), Tenant("blue")
    async with stepping(load(tmp_path, running_sum())) as running:
        await running.send(1, x(1), start=True, tenant=red)
        with pytest.raises(SequenceNotFound):
            await running.send(1, x(1), end=True, tenant=blue)
        await running.send(1, x(8), start=True, end=True, tenant=blue)
        assert number_of(await running.send(1, x(1), tenant=red), "sum") == 2
        assert running.sequences.store.use == {"red": (1, SEQUENCE_BYTES + 4)}


@in_loop
async def test_sequence_beyond_state_bytes_is_refused(tmp_path: Path) -> None:
    one = SEQUENCE_BYTES + 2 * HIDDEN * 4
    model = load(tmp_path, onnx_recurrent.lstm(), max_state_bytes=2 * one)
    values = {"x": np.ones((1, INPUTS), np.float32)}
    async with stepping(model) as running:
        for number in (1, 2):
            await running.send(number, values, start=True)
        assert running.sequences.store.total_bytes == 2 * one
        batches = running.counts.sizes.total()
        with pytest.raises(Overloaded, match="max_state_bytes"):
            await running.send(3, values, start=True)
        assert running.counts.sizes.total() == batches, "refused before it runs"
        await running.send(1, values, end=True)
        await running.send(3, values, start=True)


@in_loop
async def test_reloaded_model_reports_lost_sequences(tmp_path: Path) -> None:
    model = load(tmp_path, running_sum(), max_sequence_idle_s=5.0)
    async with stepping(model, is_reloaded=True) as running:
        with pytest.raises(SequenceLost, match='sequence: expected one that began since model "m" was loaded again'):
            await running.send(1, x(1))
        await running.send(1, x(1), start=True, end=True)
        with pytest.raises(SequenceNotFound):
            await running.send(1, x(1))
        # Any lost sequence would have been idle for too long.
        running.clock.now_s += 5.0
        with pytest.raises(SequenceNotFound):
            await running.send(2, x(1))


@in_loop
async def test_closed_sequences_fail_waiting_steps(tmp_path: Path) -> None:
    async with stepping(load(tmp_path, running_sum())) as running:
        futures = [running.send(1, x(1), start=at == 0) for at in range(3)]
        running.sequences.close(Draining.unloaded("m"))
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(result) for result in results[1:]] == [Draining, Draining]
        with pytest.raises(Draining):
            running.send(1, x(1), start=True)
        assert len(running.sequences.store) == 0
