"""Test unloads with a drain timeout: the requests that are left fail with Draining, and the memory is released."""

import asyncio
import threading

import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import Draining, ModelUnloaded
from frameworks.generation.sequences import GeneratedToken
from frameworks.manager import MLFrameworkManager
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.version import ModelVersion
from tests.frameworks.models.test_generating_versions import generate, request
from tests.support.batch_models import FakeRegistry, Gate, numbers
from tests.support.loops import HANGS_AFTER_S, in_loop, pass_time, queued, settle, soon, task
from tests.support.managing import ask, opened, permit, serving, step_dispatcher
from tests.support.step_models import EchoRegistry, StepGate


async def stream_of(manager: MLFrameworkManager) -> list[GeneratedToken]:
    """Generate a text as the pipeline does, with the reference released at the end of the generation."""
    with permit() as held:
        version = await opened(manager, held)
        held.queue(version.model.requests)
        dispatcher = step_dispatcher(version)
        feed = dispatcher.open([request("abc", 4000)], held.begin_text, held.release_version)
        tokens: list[GeneratedToken] = []
        while arrived := await feed.read():
            tokens += [each.token for each in arrived]
        return tokens


def is_running(manager: MLFrameworkManager) -> bool:
    return any(stats.running for stats in manager.slot("m").active.step_stats)


@in_loop
async def test_timeout_ends_running_text() -> None:
    steps = StepGate(1)
    registry = EchoRegistry(steps)
    async with serving(registry) as manager:
        reader = task(stream_of(manager))
        await soon(lambda: is_running(manager))
        with capture_logs() as logs:
            order = task(manager.unload("m", drain_timeout_s=HANGS_AFTER_S))
            await soon(lambda: manager.slot("m").state is ModelState.DRAINING)
            await settle()
            assert not reader.done()
            pass_time(HANGS_AFTER_S)
            with pytest.raises(Draining, match='model "m" was unloaded before the request was answered'):
                await reader
            steps.open()
            await order
        assert [entry["requests"] for entry in logs if entry["event"] == "unload ends requests"] == [1]
        assert manager.slot("m").state is ModelState.UNLOADED
        assert registry.made[0].is_closed
        await manager.load("m")
        assert len(await generate(manager, max_tokens=5)) == 5


@in_loop
async def test_requests_in_time_are_answered() -> None:
    gate = Gate()
    async with serving(EchoRegistry(gate)) as manager:
        reader = task(generate(manager))
        await soon(gate.arrived.is_set)
        order = task(manager.unload("m", drain_timeout_s=HANGS_AFTER_S))
        await soon(lambda: manager.slot("m").state is ModelState.DRAINING)
        gate.open()
        assert len(await reader) == 5
        await order
        pass_time(HANGS_AFTER_S)


@in_loop
async def test_timeout_ends_queued_batches_and_awaits_running_one() -> None:
    gate = Gate()
    registry = FakeRegistry(gate)
    async with serving(registry) as manager:
        running = task(ask(manager, 1))
        await soon(gate.arrived.is_set)
        # The worker holds one more batch; the others are queued.
        queued = [task(ask(manager, x)) for x in range(2, 20)]
        await settle()
        order = task(manager.unload("m", drain_timeout_s=0))
        await asyncio.wait(queued, return_when=asyncio.FIRST_EXCEPTION)
        await settle()
        assert not order.done()
        gate.open()
        assert await running == [2]
        await order
        outcomes = await asyncio.gather(*queued, return_exceptions=True)
        ended = [outcome for outcome in outcomes if isinstance(outcome, Draining)]
        assert len(ended) >= len(queued) - 4, "at most the batch that the worker holds is answered"
        assert all(isinstance(outcome, Draining | list) for outcome in outcomes)
        assert registry.made[0].is_closed
        with pytest.raises(ModelUnloaded):
            await ask(manager)


async def begin(version: ModelVersion) -> None:
    """Start the work of a request that holds a reference."""
    assert version.spec is not None
    if version.spec.task == "generate":
        step_dispatcher(version).open([request("abc", 5)])
    else:
        await version.engine().submit(numbers(1))


@in_loop
async def test_request_still_decoded_fails_at_queue() -> None:
    """It holds a reference, and has not reached the dispatcher when the requests are ended."""
    for registry in (FakeRegistry(), EchoRegistry()):
        async with serving(registry) as manager:
            with permit() as held:
                version = await opened(manager, held)
                order = task(manager.unload("m", drain_timeout_s=0))
                await soon(lambda: manager.slot("m").state is ModelState.DRAINING)
                await settle()
                assert not order.done()
                held.queue(version.model.requests)
                with pytest.raises(Draining):
                    await begin(version)
            await order


@in_loop
async def test_timeout_ends_requests_that_another_command_awaits() -> None:
    steps = StepGate(1)
    async with serving(EchoRegistry(steps)) as manager:
        reader = task(stream_of(manager))
        await soon(lambda: is_running(manager))
        patient = task(manager.unload("m"))
        await soon(lambda: manager.slot("m").state is ModelState.DRAINING)
        removal = task(manager.remove("m"))
        await queued(manager.slot("m").lock)
        forced = task(manager.unload("m", drain_timeout_s=0))
        with pytest.raises(Draining):
            await reader
        steps.open()
        await patient
        await removal
        await asyncio.wait([forced])


@in_loop
async def test_unload_with_timeout_survives_its_caller() -> None:
    gate = Gate()
    registry = FakeRegistry(gate)
    async with serving(registry) as manager:
        running = task(ask(manager, 1))
        await soon(gate.arrived.is_set)
        order = task(manager.unload("m", drain_timeout_s=0))
        await soon(lambda: manager.slot("m").state is ModelState.DRAINING)
        order.cancel()
        await asyncio.wait([order])
        gate.open()
        assert await running == [2]
        await soon(lambda: manager.slot("m").state is ModelState.UNLOADED)
        assert registry.made[0].is_closed


@in_loop
async def test_light_runs_of_the_round_are_ended() -> None:
    """Requests of a light model are collected until the end of a round of the loop."""
    threads: set[str] = set()
    async with serving(FakeRegistry(lambda _: threads.add(threading.current_thread().name))) as manager:
        for _ in range(3):
            await ask(manager)
        engine = manager.slot("m").active.engine()
        waiting = [engine.submit(numbers(x)) for x in range(3)]
        engine.end_requests()
        late = engine.submit(numbers(3))
        outcomes = await asyncio.gather(*waiting, late, return_exceptions=True)
        assert isinstance(outcomes[-1], Draining)
        assert all(isinstance(outcome, Draining | dict) for outcome in outcomes)
