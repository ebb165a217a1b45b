"""Test failures, closing and death of a step worker: exactly the affected readers get an error."""

import asyncio
import weakref
from collections.abc import Collection
from copy import copy
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import Draining, InvalidInput, ModelFailed, ModelLost, OutOfMemory
from frameworks.generation.sequences import SequenceRequest, StepResult, StepStats
from frameworks.scheduling.steps.counts import StepCounts
from frameworks.scheduling.steps.worker import StepWorker
from tests.frameworks.scheduling.steps.harness import WorkerHarness, read_all, running_worker, text_of, wait_for_arrival
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task, worker_threads_end
from tests.support.step_models import EchoModel, echo


@in_loop
async def test_failed_sequence_ends_only_its_feed() -> None:
    async with running_worker(EchoModel()) as harness:
        failing, beside = harness.open("ab\1"), harness.open("xyz")
        harness.open("klm", 1000, feed=failing)
        with pytest.raises(InvalidInput, match="came to nothing"):
            await read_all(failing)
        assert text_of(await read_all(beside)) == b"xyzxy"
        await soon(lambda: harness.model.aborted == [3])


@in_loop
async def test_refused_sequence_fails_alone() -> None:
    class Choosy(EchoModel):
        def add(self, request: SequenceRequest) -> None:
            if request.prompt_ids == (99,):
                raise ValueError("not c")
            super().add(request)

    async with running_worker(Choosy()) as harness:
        with capture_logs() as logs:
            fine, refused = harness.open("a"), harness.open("c")
            with pytest.raises(RuntimeError, match="ValueError"):
                await read_all(refused)
            assert text_of(await read_all(fine)) == b"aaaaa"
        assert [(entry["event"], entry["sequences"]) for entry in logs] == [("sequences failed", 1)]


@in_loop
@pytest.mark.parametrize(
    ("error", "reaches"),
    [
        (OutOfMemory("of the device"), OutOfMemory),
        (MemoryError("of numpy"), OutOfMemory),
        (ModelFailed("gave up"), ModelFailed),
        (ValueError("v"), RuntimeError),
        (StopIteration(), RuntimeError),
    ],
)
async def test_failed_step_fails_its_sequences_not_the_worker(error: Exception, reaches: type[Exception]) -> None:
    held: list[weakref.ref[Any]] = []
    gate = Gate()

    def behaviour(prompts: list[str]) -> None:
        gate()
        if "bad" in prompts:
            tensor = np.zeros(8)
            held.append(weakref.ref(tensor))
            raise copy(error)

    async with running_worker(EchoModel(behaviour, slots=2)) as harness:
        feeds = [harness.open("abc"), harness.open("bad"), harness.open("abc")]
        await soon(lambda: len(harness.model.given) == 3 or gate.arrived.is_set())
        with capture_logs() as logs:
            gate.open()
            for feed in feeds[:2]:
                with pytest.raises(reaches):
                    await read_all(feed)
            events = [entry["event"] for entry in logs]
            logs.clear()
            await soon(lambda: held[0]() is None)  # no frame keeps the tensors of the step
            assert text_of(await read_all(harness.open("xyz"))) == b"xyzxy"
        assert not harness.worker.is_dead
        assert {1, 2} <= set(harness.model.aborted)
        assert events == ["sequences failed"]
        if feeds[2].is_over:
            with pytest.raises(reaches):
                await read_all(feeds[2])


@in_loop
async def test_worker_runs_until_stats_after_failure() -> None:
    gate = Gate()

    def behaviour(prompts: list[str]) -> None:
        if prompts:
            raise OutOfMemory("too much")
        gate()

    async with running_worker(EchoModel(behaviour)) as harness:
        with pytest.raises(OutOfMemory):
            await read_all(harness.open())
        await wait_for_arrival(gate)
        assert harness.worker.is_running
        gate.open()


@in_loop
async def test_lost_model_ends_its_thread() -> None:
    """Readers get the reason; the end of the thread ends the engine, which is then started again."""

    def behaviour(prompts: list[str]) -> None:
        if prompts:
            raise ModelLost("rank 1 ended")

    with capture_logs() as logs:
        harness = WorkerHarness(EchoModel(behaviour))
        with pytest.raises(ModelLost, match="rank 1 ended"):
            await read_all(harness.open())
        await soon(lambda: harness.worker.is_dead)
    assert harness.model.is_closed
    assert [entry["event"] for entry in logs] == ["sequences failed", "device thread ended"]


@in_loop
async def test_lost_sequences_fail_their_readers() -> None:
    class Forgetful(EchoModel):
        def step(self, held: Collection[str] = ()) -> StepResult:
            result = super().step(held)
            self.running.clear()
            return result

    async with running_worker(Forgetful()) as harness:
        with capture_logs() as logs, pytest.raises(RuntimeError):
            await read_all(harness.open())
        assert "lost its sequences" in str(logs[0]["exc_info"])


@in_loop
async def test_failed_abort_is_logged_and_tokens_dropped() -> None:
    class Clinging(EchoModel):
        def abort(self, sequence_id: int) -> None:
            raise ValueError("no")

    gate = Gate()
    model = Clinging(gate)
    harness = WorkerHarness(model)
    gone, stays = harness.open("abc", 8), harness.open("xyz", 8)
    await wait_for_arrival(gate)
    with capture_logs() as logs:
        gone.close()
        gate.open()
        assert text_of(await read_all(stays)) == echo("xyz", 8)
        assert await read_all(gone) == []
        await asyncio.wait_for(harness.worker.close(), 60)
    assert [entry["event"] for entry in logs] == ["sequence was not aborted"]


@pytest.mark.parametrize("death", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_dead_thread_fails_readers_and_later_callers(death: type[BaseException]) -> None:
    gate = Gate()

    def behaviour(_: list[str]) -> None:
        gate()
        raise death

    async def whole() -> None:
        model = EchoModel(behaviour)
        harness = WorkerHarness(model)
        feeds = [harness.open() for _ in range(6)]
        readers = [task(read_all(feed)) for feed in feeds]
        await wait_for_arrival(gate)
        unsent = harness.open()
        gate.open()
        errors = await asyncio.wait_for(asyncio.gather(*readers, return_exceptions=True), 60)
        assert [type(error) for error in errors] == [ModelFailed] * 6
        with pytest.raises(ModelFailed):
            await read_all(unsent)
        assert (harness.worker.is_dead, harness.worker.is_running, harness.worker.num_sequences) == (True, False, 0)
        assert harness.worker.stats == StepStats()
        harness.worker.check_integrity()
        with pytest.raises(ModelFailed, match="load the model again"):
            harness.open()
        feeds[0].close()
        await asyncio.wait_for(harness.worker.close(), 60)
        assert model.is_closed

    with capture_logs() as logs:
        asyncio.run(whole())
    assert worker_threads_end()
    [entry] = logs
    assert (entry["event"], entry["log_level"], entry["model"]) == ("device thread ended", "error", "m")


@in_loop
async def test_close_waits_for_running_sequences() -> None:
    gate = Gate()
    harness = WorkerHarness(EchoModel(gate))
    reader = task(read_all(harness.open()))
    await wait_for_arrival(gate)
    closing = harness.worker.close()
    with pytest.raises(ModelFailed):
        harness.open()
    await asyncio.sleep(0.01)
    assert not closing.done()
    gate.open()
    assert text_of(await reader) == b"abcab"
    await asyncio.wait_for(closing, 60)
    assert (harness.model.is_closed, harness.worker.is_dead) == (True, True)
    await asyncio.wait_for(harness.worker.close(), 60)  # has no effect


@in_loop
async def test_abort_fails_all_readers_at_once() -> None:
    gate = Gate()
    harness = WorkerHarness(EchoModel(gate))
    readers = [task(read_all(harness.open(max_tokens=1000))) for _ in range(6)]
    await wait_for_arrival(gate)
    harness.worker.abort("too late")
    errors = await asyncio.wait_for(asyncio.gather(*readers, return_exceptions=True), 60)
    assert [(type(error), str(error)) for error in errors] == [(Draining, "too late")] * 6
    gate.open()
    await asyncio.wait_for(harness.worker.close(), 60)
    assert len(harness.model.steps) == 1
    assert harness.model.is_closed


@in_loop
@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit()])
async def test_failed_model_close_is_logged_and_worker_ends(error: BaseException) -> None:
    class Stubborn(EchoModel):
        def close(self) -> None:
            raise error

    with capture_logs() as logs:
        worker = StepWorker("m", Stubborn(), StepCounts())
        await asyncio.wait_for(worker.close(), 60)
    assert [entry["event"] for entry in logs] == ["model did not close cleanly"]


def test_thread_ends_after_its_loop_has_ended() -> None:
    gate = Gate()
    model = EchoModel(gate)

    async def whole() -> None:
        harness = WorkerHarness(model)
        harness.open()
        await wait_for_arrival(gate)
        harness.worker.abort("the loop ends")

    asyncio.run(whole())
    gate.open()
    assert worker_threads_end()
    assert model.is_closed
