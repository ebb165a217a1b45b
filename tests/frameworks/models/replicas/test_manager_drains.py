"""A worker drains its requests when the supervisor publishes it."""

import asyncio

import pytest

from frameworks.core.errors import (
    Draining,
    ModelNotFound,
    ModelUnloaded,
)
from frameworks.models.replicas.messages import (
    EndModelRequests,
)
from frameworks.models.versions.states import ModelState as State
from tests.support.batch_models import FakeRegistry, Gate
from tests.support.fake_supervisor import supervised, version_state
from tests.support.loops import in_loop, settle, soon, task
from tests.support.managing import ask


@in_loop
async def test_removal_ends_the_wait_for_a_drain() -> None:
    async with supervised() as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))
        await supervisor.make_ready()
        supervisor.publish(version_state(state=State.DRAINING, serving=1, next_state=State.REGISTERED))
        await soon(lambda: supervisor.drained == [1])
        waiting = task(ask(replica))
        await settle()
        await supervisor.applied(supervisor.remove())
        with pytest.raises(ModelNotFound):
            await waiting


@in_loop
async def test_drain_waits_for_the_requests() -> None:
    gate = Gate()
    registry = FakeRegistry(gate)
    async with supervised(registry) as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))
        await supervisor.make_ready()
        answer = task(ask(replica, 3))
        await soon(gate.arrived.is_set)
        await supervisor.applied(supervisor.publish(version_state(state=State.DRAINING, serving=1)))
        with pytest.raises(ModelUnloaded):
            await ask(replica)
        await settle()
        assert not supervisor.drained
        gate.open()
        assert await answer == [6]
        await soon(lambda: supervisor.drained == [1])
        assert registry.made[0].is_closed
        await supervisor.applied(supervisor.publish(version_state(state=State.UNLOADED)))
        assert replica.is_idle


@in_loop
async def test_ended_drain_keeps_the_engine() -> None:
    gate = Gate()
    registry = FakeRegistry(gate)
    async with supervised(registry) as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))
        await supervisor.make_ready()
        answer = task(ask(replica, 3))
        await soon(gate.arrived.is_set)
        supervisor.publish(version_state(state=State.DRAINING, serving=1, next_state=State.REGISTERED))
        waiting = task(ask(replica, 4))
        await settle()
        await supervisor.make_ready()
        gate.open()
        assert [await answer, await waiting] == [[6], [8]]
        await settle()
        assert await ask(replica, 5) == [10]
        assert supervisor.drained == []
        assert len(registry.made) == 1


@in_loop
async def test_drained_load_is_prepared_again() -> None:
    registry = FakeRegistry()
    async with supervised(registry) as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))
        await supervisor.make_ready()
        supervisor.publish(version_state(state=State.DRAINING, serving=1, next_state=State.REGISTERED))
        waiting = task(ask(replica, 4))
        await soon(lambda: supervisor.drained == [1])
        await supervisor.make_ready()
        assert await waiting == [8]
        assert replica.slot("m").active.serving_id == 1
        assert [model.is_closed for model in registry.made] == [True, False]


@in_loop
async def test_replaced_load_is_drained() -> None:
    gate = Gate()
    async with supervised(FakeRegistry(gate)) as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))
        await supervisor.make_ready(serving=1)
        first = task(ask(replica, 3))
        await soon(gate.arrived.is_set)
        before = replica.slot("m").active
        await supervisor.make_ready(serving=2)
        assert replica.slot("m").active is not before
        assert replica.slot("m").active.serving_id == 2
        assert supervisor.drained == []
        second = task(ask(replica, 4))
        gate.open()
        assert [await first, await second] == [[6], [8]]
        await soon(lambda: supervisor.drained == [1])


@in_loop
async def test_order_ends_the_requests_of_a_drain() -> None:
    gate = Gate()
    async with supervised(FakeRegistry(gate)) as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))
        await supervisor.make_ready()
        running = task(ask(replica, 1))
        await soon(gate.arrived.is_set)
        begun, queued = [task(ask(replica, x)) for x in (2, 3)], task(ask(replica, 4))
        await soon(lambda: replica.slot("m").active.references == 4)
        supervisor.publish(version_state(state=State.DRAINING, serving=1))
        supervisor.link.send(EndModelRequests(1))
        with pytest.raises(Draining):
            await queued
        gate.open()
        assert await running == [2]
        await asyncio.gather(*begun, return_exceptions=True)
        await soon(lambda: supervisor.drained == [1])
