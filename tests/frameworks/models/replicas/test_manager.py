"""The state that a supervisor publishes, as the requests of a worker meet it. Small models run in the worker."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.errors import (
    Draining,
    ModelFailed,
    ModelLoading,
    ModelNotFound,
    ModelUnloaded,
    OutOfMemory,
    RoundhouseError,
    VersionNotFound,
)
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.engine.process.wire.messages import ErrorState
from frameworks.models.replicas.manager import SharedLoads
from frameworks.models.replicas.messages import (
    LocalCounts,
    ShareState,
    StateSent,
    Uses,
    VersionState,
)
from frameworks.models.replicas.serving import ReplicaVersion
from frameworks.models.versions.identity import ModelIdentity, batch_limits
from frameworks.models.versions.states import ModelState as State
from tests.support.batch_models import FakeRegistry, Gate
from tests.support.fake_supervisor import supervised, version_state
from tests.support.loops import in_loop, settle, soon, task
from tests.support.managing import ask, entry


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
        version.failures.follow(ModelFailed("noted"), retry_in_s=0.0)
        assert await ask(replica, 1) == [2]
        assert len(registry.made) == 2


STEPS = st.lists(st.tuples(st.sampled_from(["join", "join", "cancel", "end", "fail", "wait"]), st.integers(0, 5)))


def make_version() -> ReplicaVersion:
    settings = entry()
    return ReplicaVersion(
        ModelIdentity("fake", settings, batch_limits(settings, PerformanceSettings()), 1.0), version_state()
    )


class Loads:
    """Loads that the test completes. `cancelled`: number of those that were cancelled."""

    def __init__(self) -> None:
        self.running: list[asyncio.Future[None]] = []
        self.cancelled = 0

    async def __call__(self, _: ReplicaVersion) -> None:
        load: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.running.append(load)
        try:
            await load
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running.remove(load)

    def end(self, error: Exception | None = None) -> None:
        """Complete the load that runs, if there is one."""
        for load in self.running:
            if load.done():
                continue
            if error is None:
                load.set_result(None)
            else:
                load.set_exception(error)


async def do_steps(steps: list[tuple[str, int]], made: Loads, loads: SharedLoads) -> list[asyncio.Task[None]]:
    """Return the requests that have joined a load."""
    version, waiting = make_version(), list[asyncio.Task[None]]()
    for step, number in steps:
        match step:
            case "join":
                waiting.append(task(loads.join(version)))
            case "cancel" if waiting:
                waiting[number % len(waiting)].cancel()
            case "end":
                made.end()
            case "fail":
                made.end(OutOfMemory("too large"))
            case "wait":
                await settle()
                is_awaited = any(not each.done() for each in waiting)
                assert len(made.running) == len(loads) == is_awaited
    return waiting


@given(STEPS)
def test_requests_share_each_load(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        made = Loads()
        loads = SharedLoads(made)
        waiting = await do_steps(steps, made, loads)
        while any(not each.done() for each in waiting):
            await settle()
            made.end()
        for each in waiting:
            assert each.cancelled() or isinstance(each.exception(), OutOfMemory | None)
        assert not loads
        assert not made.running

    asyncio.run(run())


@in_loop
async def test_closed_loads_fail_their_requests() -> None:
    made, version = Loads(), make_version()
    loads = SharedLoads(made)
    waiting = [task(loads.join(version)) for _ in range(2)]
    await settle()
    loads.close()
    for each in waiting:
        with pytest.raises(Draining):
            await each
    assert made.cancelled == 1
    assert version.path == Path("files/1")


@in_loop
async def test_request_never_joins_a_load_that_is_done() -> None:
    made, version = Loads(), make_version()
    loads = SharedLoads(made)
    first = task(loads.join(version))
    await settle()

    async def join_in_the_round_of_its_end(load: asyncio.Future[None]) -> None:
        await load
        await loads.join(version)

    late = task(join_in_the_round_of_its_end(made.running[0]))
    await asyncio.sleep(0)
    made.end()
    await settle()
    assert (first.done(), late.done(), len(made.running)) == (True, False, 1)
    made.end()
    await late
