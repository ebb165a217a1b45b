"""A worker prepares the loads that the supervisor publishes, and waits for those that it asks for."""

import asyncio

import pytest

from frameworks.core.errors import (
    Draining,
    InvalidModel,
    ModelFailed,
    ModelUnloaded,
    OutOfMemory,
    RoundhouseError,
)
from frameworks.models.replicas.messages import (
    Abandon,
    LoadForRequest,
    PrepareFailed,
)
from frameworks.models.versions.states import ModelState as State
from tests.support.batch_models import FakeRegistry, Gate
from tests.support.fake_supervisor import supervised, version_state
from tests.support.loops import in_loop, settle, soon, task
from tests.support.managing import ask


@in_loop
async def test_abandoned_load_is_closed() -> None:
    registry = FakeRegistry()
    async with supervised(registry) as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))
        await supervisor.applied(supervisor.prepare(1))
        supervisor.link.send(Abandon(1))
        await soon(lambda: registry.made[0].is_closed)
        await soon(lambda: replica.is_idle)
        assert supervisor.drained == []
        await supervisor.make_ready(serving=2)
        assert await ask(replica, 1) == [2]


@in_loop
async def test_load_is_abandoned_while_it_is_prepared() -> None:
    gate = Gate()
    registry = FakeRegistry(on_load=gate)
    async with supervised(registry) as (supervisor, _):
        await supervisor.applied(supervisor.publish(version_state()))
        number = supervisor.prepare(1)
        await soon(gate.arrived.is_set)
        supervisor.link.send(Abandon(1))
        await soon(lambda: supervisor.has_answer(number))
        assert supervisor.of(PrepareFailed)
        gate.open()
        await soon(lambda: all(model.is_closed for model in registry.made))
        assert supervisor.drained == []


@in_loop
async def test_failed_preparation_is_reported() -> None:
    async with supervised() as (supervisor, replica):
        broken = version_state()
        state = type(broken)("1", b"files/broken", State.REGISTERED, State.UNLOADED, True)
        await supervisor.applied(supervisor.publish(state))
        for name, error in (("m", "InvalidModel"), ("absent", "ModelNotFound")):
            number = supervisor.prepare(1, name=name, path=b"files/broken")
            await soon(lambda number=number: supervisor.has_answer(number))  # type: ignore[misc]
            assert supervisor.of(PrepareFailed)[-1].error.name == error
        assert replica.is_idle


@in_loop
async def test_engine_may_follow_the_ready_state() -> None:
    async with supervised() as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state(state=State.READY, serving=5)))
        answer = task(ask(replica, 3))
        await settle()
        await supervisor.applied(supervisor.prepare(5))
        assert await answer == [6]


@in_loop
async def test_request_waits_for_a_load() -> None:
    async with supervised() as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))

        async def load(_: LoadForRequest) -> None:
            supervisor.publish(version_state(state=State.LOADING))
            await supervisor.make_ready()

        supervisor.load = load
        answers = [task(ask(replica, x)) for x in range(5)]
        assert await asyncio.gather(*answers) == [[0], [2], [4], [6], [8]]
        assert [(each.name, each.version) for each in supervisor.asked] == [("m", "1")]


@in_loop
async def test_load_is_withdrawn_with_its_last_request() -> None:
    async with supervised() as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))
        withdrawn = asyncio.Event()

        async def load(_: LoadForRequest) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                withdrawn.set()

        supervisor.load = load
        waiting = [task(ask(replica)) for _ in range(3)]
        await soon(lambda: len(supervisor.asked) == 1)
        for each in waiting[:2]:
            each.cancel()
        await settle()
        assert not withdrawn.is_set()
        waiting[2].cancel()
        await withdrawn.wait()
        assert not replica.slot("m").active.is_in_use


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (InvalidModel("no graph"), ModelFailed),
        (OutOfMemory("too large"), OutOfMemory),
        (ModelUnloaded("an order came first"), ModelUnloaded),
        (Draining(Draining.REFUSED), Draining),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)
@in_loop
async def test_failed_load_fails_its_requests(raised: RoundhouseError, expected: type[RoundhouseError]) -> None:
    async with supervised() as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))

        async def load(_: LoadForRequest) -> None:
            raise raised

        supervisor.load = load
        with pytest.raises(expected, match=raised.message):
            await ask(replica)
        assert not replica.slot("m").active.is_in_use


@in_loop
async def test_lost_supervisor_fails_waiting_requests() -> None:
    async with supervised() as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))
        supervisor.load = lambda _: asyncio.Event().wait()  # type: ignore[assignment, return-value]
        waiting = task(ask(replica))
        await soon(lambda: len(supervisor.asked) == 1)
        supervisor.link.close()
        with pytest.raises(Draining):
            await waiting
