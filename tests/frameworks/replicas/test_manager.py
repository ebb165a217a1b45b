"""The state that a supervisor publishes, as the requests of a worker meet it. Small models run in the worker."""

import asyncio

import pytest

from frameworks.engine.process.messages import ErrorState
from frameworks.errors import (
    Draining,
    InvalidModel,
    ModelFailed,
    ModelLoading,
    ModelNotFound,
    ModelUnloaded,
    OutOfMemory,
    RoundhouseError,
    VersionNotFound,
)
from frameworks.models.version import ModelState as State
from frameworks.replicas.messages import (
    Abandon,
    EndModelRequests,
    LoadForRequest,
    LocalCounts,
    PrepareFailed,
    ShareState,
    StateSent,
    Uses,
    VersionState,
)
from tests.support.batch_models import FakeRegistry, Gate
from tests.support.fake_supervisor import supervised, version_state
from tests.support.loops import in_loop, settle, soon, task
from tests.support.managing import ask


@in_loop
async def test_ready_version_answers() -> None:
    async with supervised() as (supervisor, replica):
        with pytest.raises(ModelNotFound):
            replica.slot("m")
        await supervisor.applied(supervisor.publish(version_state()))
        await supervisor.make_ready(serving=7)
        assert await ask(replica, 3) == [6]
        slot = replica.slot("m")
        assert (slot.state, slot.active.serving_id) == (State.READY, 7)
        assert [each.name for each in replica.slots] == ["m"]
        supervisor.link.send(StateSent())
        await replica.has_state


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (version_state(state=State.REGISTERED, waits_for_load=False), ModelLoading),
        (version_state(state=State.LOADING, waits_for_load=False), ModelLoading),
        (version_state(state=State.UNLOADED), ModelUnloaded),
        (version_state(state=State.DRAINING), ModelUnloaded),
        (
            version_state(state=State.FAILED, failure=ErrorState("InvalidModel", "no graph"), retry_in_s=60.0),
            ModelFailed,
        ),
        (
            version_state(state=State.FAILED, failure=ErrorState("OutOfMemory", "too large"), retry_in_s=60.0),
            OutOfMemory,
        ),
    ],
    ids=str,
)
@in_loop
async def test_unready_version_refuses_requests(state: VersionState, error: type[RoundhouseError]) -> None:
    async with supervised() as (supervisor, replica):
        await supervisor.applied(supervisor.publish(state))
        with pytest.raises(error):
            await ask(replica)
        assert not supervisor.asked


@in_loop
async def test_removed_model_is_not_found() -> None:
    async with supervised() as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))
        await supervisor.make_ready()
        await supervisor.applied(supervisor.remove())
        with pytest.raises(ModelNotFound):
            await ask(replica)
        await soon(lambda: supervisor.drained == [1])


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
            number = supervisor.prepare(1, name=name)
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


@in_loop
async def test_traffic_is_split_as_published() -> None:
    async with supervised() as (supervisor, replica):
        versions = [version_state("1"), version_state("2")]
        await supervisor.applied(supervisor.publish(*versions, active="1"))
        slot = replica.slot("m")
        share = ShareState("2", 40.0)
        ready = [version_state("1", State.READY, 1), version_state("2", State.READY, 2)]
        for serving, version in ((1, "1"), (2, "2")):
            await supervisor.applied(supervisor.prepare(serving, version))
        await supervisor.applied(supervisor.publish(*ready, active="1", canary=share))
        routed = [slot.route().version for _ in range(2)]
        # The progress of the share goes on.
        await supervisor.applied(supervisor.publish(*ready, active="1", canary=share, shadow=ShareState("2", 1.0)))
        routed += [slot.route().version for _ in range(3)]
        assert routed == ["1", "1", "2", "1", "2"]
        assert [await ask(replica, x) for x in range(5)] == [[0], [2], [4], [6], [8]]
        assert slot.shadow is not None
        await supervisor.applied(supervisor.publish(*ready, active="2", previous="1"))
        assert (slot.version, slot.previous and slot.previous.version) == ("2", "1")
        assert [slot.canary, slot.shadow] == [None, None]
        with pytest.raises(VersionNotFound):
            slot.version_named("1")


@in_loop
async def test_uses_and_counts_are_reported() -> None:
    gate = Gate()
    async with supervised(FakeRegistry(gate)) as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))
        await supervisor.make_ready(serving=3)
        answer = task(ask(replica))
        await soon(lambda: bool(supervisor.of(Uses)) and supervisor.of(Uses)[-1].versions[0].references == 1)
        gate.open()
        await answer
        await soon(lambda: supervisor.of(Uses)[-1].versions[0].references == 0)
        use = supervisor.of(Uses)[-1].versions[0]
        assert (use.serving, use.last_used_s) == (3, replica.slot("m").active.last_used_s)
        await soon(lambda: bool(supervisor.of(LocalCounts)))
        # The counts of the last requests are sent before the end of the load.
        await ask(replica)
        supervisor.publish(version_state(state=State.DRAINING, serving=3))
        await soon(lambda: supervisor.drained == [3])
        sizes = [counts.batches.sizes for counts in supervisor.of(LocalCounts)]
        assert sum(sum(each.values()) for each in sizes) == 2
        assert (supervisor.of(LocalCounts)[0].name, supervisor.of(LocalCounts)[0].version) == ("m", "1")


@in_loop
async def test_close_fails_requests_after_the_timeout() -> None:
    gate = Gate()
    async with supervised(FakeRegistry(gate), drain_timeout_s=0.05) as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))
        await supervisor.make_ready()
        answer = task(ask(replica))
        await soon(gate.arrived.is_set)
    with pytest.raises(Draining):
        await answer
    gate.open()


@in_loop
async def test_close_waits_for_the_requests() -> None:
    gate = Gate()
    async with supervised(FakeRegistry(gate)) as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))
        await supervisor.make_ready()
        answer = task(ask(replica, 2))
        await soon(gate.arrived.is_set)
        closing = task(replica.close(60.0))
        await settle()
        assert not closing.done()
        number = supervisor.prepare(2)
        await soon(lambda: supervisor.has_answer(number))
        gate.open()
        assert await answer == [4]
        await closing
        assert supervisor.drained == []


@in_loop
async def test_worker_reloads_a_dead_model() -> None:
    def end(x: list[object]) -> None:
        if x == [0]:
            raise SystemExit

    registry = FakeRegistry(end)
    async with supervised(registry) as (supervisor, replica):
        await supervisor.applied(supervisor.publish(version_state()))
        await supervisor.make_ready()
        with pytest.raises(ModelFailed):
            await ask(replica, 0)
        version = replica.slot("m").active
        await soon(lambda: version.has_died)
        version._retry_at_s = 0.0
        version._failure = ModelFailed("noted")
        assert await ask(replica, 1) == [2]
        assert len(registry.made) == 2
