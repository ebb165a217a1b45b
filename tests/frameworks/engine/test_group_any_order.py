"""Test random requests, cancellations and crashes at several processes: each request ends once, none is lost."""

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from frameworks.core.errors import ModelFailed
from frameworks.core.tenants import Tenant
from tests.frameworks.engine.groups import FakeGroup
from tests.frameworks.engine.process.client.test_client_any_order import NoDelay
from tests.support.clocks import Clock
from tests.support.loops import in_loop, settle

TENANTS = [Tenant("a"), Tenant("b", 3.0), Tenant("c", 0.5)]
SIZE = 3

# The next action, the process and the request that it is applied to, and whether tasks run after it.
actions = st.sampled_from(["submit", "submit", "submit", "begin", "answer", "answer", "cancel", "lose"])
steps = st.lists(st.tuples(actions, st.integers(0, SIZE - 1), st.integers(0, 1000), st.booleans()), max_size=120)


class Simulation:
    """A group, its callers, and what ran where."""

    def __init__(self) -> None:
        self.group = FakeGroup(SIZE)
        for each in self.group.members:
            each.engine._policy = NoDelay(Clock())
        self.futures: dict[float, asyncio.Future[Any]] = {}
        self.begun: list[set[float]] = [set() for _ in range(SIZE)]
        self.runs: Counter[float] = Counter()

    def submit(self, member: int, choice: int) -> None:
        value = float(len(self.futures))
        try:
            self.futures[value] = self.group.submit(
                value, 1 + choice % 9, TENANTS[choice % len(TENANTS)], rows=1 + choice % 4
            )
        except ModelFailed:  # all processes have crashed twice in a row
            self.futures[value] = asyncio.get_running_loop().create_future()
            self.futures[value].cancel()

    def waiting(self, member: int) -> list[float]:
        """Return the requests that a live process has and has not begun."""
        if self.group.members[member].link.is_lost:
            return []
        return [value for value in self.group.has(member) if value not in self.begun[member]]

    def begin(self, member: int, choice: int) -> None:
        waiting = self.waiting(member)
        if waiting:
            value = waiting[choice % len(waiting)]
            self.begun[member].add(value)
            self.runs[value] += 1
            self.group.begin(member, value)

    def answer(self, member: int, choice: int) -> None:
        running = [value for value in self.group.has(member) if value in self.begun[member]]
        if running and not self.group.members[member].link.is_lost:
            self.group.answer(member, running[choice % len(running)])

    def cancel(self, _: int, choice: int) -> None:
        open_ones = [future for future in self.futures.values() if not future.done()]
        if open_ones:
            open_ones[choice % len(open_ones)].cancel()

    def lose(self, member: int, _: int) -> None:
        self.begun[member].clear()
        self.group.members[member].link.lose()

    def check(self) -> None:
        """No two processes have a request, and none waits without need."""
        has = [value for member in range(SIZE) if not self.is_down(member) for value in self.group.has(member)]
        assert len(has) == len(set(has)), "two processes have one request"
        self.group.engine._queue.check_integrity()

    def is_down(self, member: int) -> bool:
        return self.group.members[member].engine.outage is not None

    async def drain(self) -> None:
        """Run what is left."""
        for _ in range(4 * len(self.futures) + 4):
            await settle()
            for member in range(SIZE):
                self.begin(member, 0)
                self.answer(member, 0)
        await settle()


@in_loop
async def simulate(chosen: list[tuple[str, int, int, bool]]) -> None:
    simulation = Simulation()
    await simulation.group.open()
    with capture_logs():
        for action, member, choice, may_tasks_run in chosen:
            getattr(simulation, action)(member, choice)
            if may_tasks_run:
                await settle()
            simulation.check()
        await simulation.drain()
    losses = sum(action == "lose" for action, *_ in chosen)
    for value, future in simulation.futures.items():
        assert future.done(), value
        if future.cancelled():
            continue
        error = future.exception()
        if error is None:
            assert float(future.result()["y"][0]) == value
            assert simulation.runs[value] <= 1 + losses
        else:
            assert isinstance(error, ModelFailed), error
            assert losses
    assert all(runs <= 2 for runs in simulation.runs.values())
    assert not simulation.group.engine.is_running
    simulation.group.engine.check_integrity()
    assert not any(each.engine._calls.holds_any for each in simulation.group.members)


@given(steps)
def test_every_request_of_group_ends_once(chosen: list[tuple[str, int, int, bool]]) -> None:
    simulate(chosen)
