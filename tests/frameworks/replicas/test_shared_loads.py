"""Requests that wait for the same load, in any order of arrivals, cancellations and outcomes."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.errors import Draining, OutOfMemory
from frameworks.core.settings.entries import PerformanceSettings
from frameworks.models.versions.identity import ModelIdentity, batch_limits
from frameworks.replicas.shared_loads import SharedLoads
from frameworks.replicas.version import ReplicaVersion
from tests.support.fake_supervisor import version_state
from tests.support.loops import in_loop, settle, task
from tests.support.managing import entry

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
