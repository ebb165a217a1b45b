"""What fails within a step worker, and how it ends: every reader hears of it, and nobody else."""

import asyncio
import weakref
from copy import copy
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from frameworks.errors import Draining, InvalidInput, ModelFailed, OutOfMemory
from frameworks.generation.types import SequenceRequest, StepResult, StepStats
from frameworks.scheduling.steps.worker import StepCounts, StepWorker
from tests.frameworks.scheduling.steps.stepping import House, arrival, house_of, read_all, text_of
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, lanes_end, soon, task
from tests.support.step_models import EchoModel, echo


@in_loop
async def test_one_sequence_that_fails_ends_its_own_feed_only() -> None:
    async with house_of(EchoModel()) as house:
        failing, beside = house.open("ab\1"), house.open("xyz")
        house.open("klm", 1000, feed=failing)
        with pytest.raises(InvalidInput, match="came to nothing"):
            await read_all(failing)
        assert text_of(await read_all(beside)) == b"xyzxy"
        await soon(lambda: house.model.aborted == [3])


@in_loop
async def test_one_that_the_model_does_not_take_fails_alone() -> None:
    class Choosy(EchoModel):
        def add(self, request: SequenceRequest) -> None:
            if request.prompt_ids == (99,):
                raise ValueError("not c")
            super().add(request)

    async with house_of(Choosy()) as house:
        with capture_logs() as logs:
            fine, refused = house.open("a"), house.open("c")
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
async def test_a_step_that_raises_fails_all_that_the_model_holds_and_the_lane_goes_on(
    error: Exception, reaches: type[Exception]
) -> None:
    held: list[weakref.ref[Any]] = []
    gate = Gate()

    def behaviour(prompts: list[str]) -> None:
        gate()
        if "bad" in prompts:
            tensor = np.zeros(8)
            held.append(weakref.ref(tensor))
            raise copy(error)

    async with house_of(EchoModel(behaviour, slots=2)) as house:
        feeds = [house.open("abc"), house.open("bad"), house.open("abc")]
        await soon(lambda: len(house.model.given) == 3 or gate.arrived.is_set())
        with capture_logs() as logs:
            gate.open()
            for feed in feeds[:2]:
                with pytest.raises(reaches):
                    await read_all(feed)
            events = [entry["event"] for entry in logs]
            logs.clear()
            await soon(lambda: held[0]() is None)  # no frame keeps what the step held
            assert text_of(await read_all(house.open("xyz"))) == b"xyzxy"
        assert not house.worker.is_dead
        assert {1, 2} <= set(house.model.aborted)
        assert events == ["sequences failed"]
        if feeds[2].is_over:
            with pytest.raises(reaches):
                await read_all(feeds[2])


@in_loop
async def test_after_a_failure_the_lane_runs_until_the_model_has_said_how_it_stands() -> None:
    gate = Gate()

    def behaviour(prompts: list[str]) -> None:
        if prompts:
            raise OutOfMemory("too much")
        gate()

    async with house_of(EchoModel(behaviour)) as house:
        with pytest.raises(OutOfMemory):
            await read_all(house.open())
        await arrival(gate)
        assert house.worker.is_running
        gate.open()


@in_loop
async def test_a_model_that_loses_its_sequences_leaves_nobody_waiting() -> None:
    class Forgetful(EchoModel):
        def step(self) -> StepResult:
            result = super().step()
            self.running.clear()
            return result

    async with house_of(Forgetful()) as house:
        with capture_logs() as logs, pytest.raises(RuntimeError):
            await read_all(house.open())
        assert "lost its sequences" in str(logs[0]["exc_info"])


@in_loop
async def test_a_model_that_does_not_let_go_is_logged_and_its_late_tokens_are_dropped() -> None:
    class Clinging(EchoModel):
        def abort(self, sequence_id: int) -> None:
            raise ValueError("no")

    gate = Gate()
    model = Clinging(gate)
    house = House(model)
    gone, stays = house.open("abc", 8), house.open("xyz", 8)
    await arrival(gate)
    with capture_logs() as logs:
        gone.close()
        gate.open()
        assert text_of(await read_all(stays)) == echo("xyz", 8)
        assert await read_all(gone) == []
        await asyncio.wait_for(house.worker.close(), 5)
    assert [entry["event"] for entry in logs] == ["sequence was not aborted"]


@pytest.mark.parametrize("death", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_thread_that_dies_fails_all_readers_and_later_callers(death: type[BaseException]) -> None:
    gate = Gate()

    def behaviour(_: list[str]) -> None:
        gate()
        raise death

    async def whole() -> None:
        model = EchoModel(behaviour)
        house = House(model)
        feeds = [house.open() for _ in range(6)]
        readers = [task(read_all(feed)) for feed in feeds]
        await arrival(gate)
        unheard = house.open()
        gate.open()
        errors = await asyncio.wait_for(asyncio.gather(*readers, return_exceptions=True), 5)
        assert [type(error) for error in errors] == [ModelFailed] * 6
        with pytest.raises(ModelFailed):
            await read_all(unheard)
        assert (house.worker.is_dead, house.worker.is_running, house.worker.num_sequences) == (True, False, 0)
        assert house.worker.stats == StepStats()
        house.worker.check_integrity()
        with pytest.raises(ModelFailed, match="load the model again"):
            house.open()
        feeds[0].close()
        await asyncio.wait_for(house.worker.close(), 5)
        assert model.is_closed

    with capture_logs() as logs:
        asyncio.run(whole())
    assert lanes_end()
    [entry] = logs
    assert (entry["event"], entry["log_level"], entry["model"]) == ("device thread ended", "error", "m")


@in_loop
async def test_closing_ends_after_the_sequences_that_there_are() -> None:
    gate = Gate()
    house = House(EchoModel(gate))
    reader = task(read_all(house.open()))
    await arrival(gate)
    closing = house.worker.close()
    with pytest.raises(ModelFailed):
        house.open()
    await asyncio.sleep(0.01)
    assert not closing.done()
    gate.open()
    assert text_of(await reader) == b"abcab"
    await asyncio.wait_for(closing, 5)
    assert (house.model.is_closed, house.worker.is_dead) == (True, True)
    await asyncio.wait_for(house.worker.close(), 5)  # again, to no effect


@in_loop
async def test_giving_up_fails_all_readers_at_once() -> None:
    gate = Gate()
    house = House(EchoModel(gate))
    readers = [task(read_all(house.open(max_tokens=1000))) for _ in range(6)]
    await arrival(gate)
    house.worker.abort("too late")
    errors = await asyncio.wait_for(asyncio.gather(*readers, return_exceptions=True), 5)
    assert [(type(error), str(error)) for error in errors] == [(Draining, "too late")] * 6
    gate.open()
    await asyncio.wait_for(house.worker.close(), 5)
    assert len(house.model.steps) == 1
    assert house.model.is_closed


@in_loop
@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit()])
async def test_a_model_that_does_not_close_cleanly_is_logged_and_its_lane_still_ends(error: BaseException) -> None:
    class Stubborn(EchoModel):
        def close(self) -> None:
            raise error

    with capture_logs() as logs:
        worker = StepWorker("m", Stubborn(), StepCounts())
        await asyncio.wait_for(worker.close(), 5)
    assert [entry["event"] for entry in logs] == ["model did not close cleanly"]


def test_a_loop_that_ended_first_does_not_hold_the_thread() -> None:
    gate = Gate()
    model = EchoModel(gate)

    async def whole() -> None:
        house = House(model)
        house.open()
        await arrival(gate)
        house.worker.abort("the loop ends")

    asyncio.run(whole())
    gate.open()
    assert lanes_end()
    assert model.is_closed
