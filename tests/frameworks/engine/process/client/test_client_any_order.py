"""Test random requests, cancellations and crashes: each request ends once, with its own answer or with ModelFailed."""

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from frameworks.core.backoff import RestartBackoff
from frameworks.core.errors import ModelFailed
from frameworks.engine.process.wire.messages import Cancel
from tests.frameworks.engine.process.fake_link import FakeLink, Harness
from tests.support.clocks import Clock
from tests.support.loops import in_loop, settle

POISON = -1.0
ACTIONS = ["submit", "submit", "submit poison", "begin", "begin", "answer", "answer", "cancel"]

# The next action, the request that it is applied to, and whether tasks run after it.
steps = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1000), st.booleans()), max_size=80)
steps_with_kills = st.lists(
    st.tuples(st.sampled_from([*ACTIONS, "kill"]), st.integers(0, 1000), st.booleans()), max_size=80
)


class NoDelay(RestartBackoff):
    """Restarts at once."""

    def start_in_s(self) -> float:
        return 0.0


class Simulation:
    """An engine, its callers, and processes that end when a poison request begins."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.harness.engine._policy = NoDelay(Clock())
        # By number of the request.
        self.futures: dict[int, asyncio.Future[Any]] = {}
        self.poison: set[int] = set()
        self.runs: Counter[int] = Counter()
        # Runs of the process that lives: its link, and the requests that have begun there.
        self.link: FakeLink | None = None
        self.begun: list[int] = []
        self.submitted = 0

    def submit(self, is_poison: bool) -> None:
        self.submitted += 1
        try:
            future = self.harness.submit(POISON if is_poison else float(self.submitted))
        except ModelFailed:  # a long outage, or a poison request that is known
            return
        self.futures[self.submitted] = future
        if is_poison:
            self.poison.add(self.submitted)

    def in_process(self) -> list[int]:
        """Return the requests that the live process has, in order of their arrival."""
        link = self.harness.link
        if link is not self.link:
            self.link, self.begun = link, []
        if link.is_lost:
            return []
        cancelled = {message.id for message in link.sent_of(Cancel)}
        return [each for each in self.harness.numbers() if each not in cancelled and not self.futures[each].done()]

    def begin(self, choice: int) -> None:
        has = self.in_process()
        waiting = [each for each in has if each not in self.begun]
        if not waiting:
            return
        number = waiting[choice % len(waiting)]
        self.runs[number] += 1
        # A request that was interrupted twice runs alone.
        assert self.runs[number] <= 2 or has == [number]
        self.begun.append(number)
        self.harness.link.begin(number)
        if number in self.poison:
            self.harness.link.lose()

    def answer(self, choice: int) -> None:
        running = [each for each in self.in_process() if each in self.begun]
        if running:
            self.harness.link.complete(running[choice % len(running)])

    def cancel(self, choice: int) -> None:
        open_ones = [each for each, future in self.futures.items() if not future.done()]
        if open_ones:
            self.futures[open_ones[choice % len(open_ones)]].cancel()

    async def apply(self, action: str, choice: int, may_tasks_run: bool) -> None:
        match action:
            case "submit" | "submit poison":
                self.submit(action == "submit poison")
            case "begin":
                self.begin(choice)
            case "answer":
                self.answer(choice)
            case "cancel":
                self.cancel(choice)
            case _:
                self.harness.link.lose()
        if may_tasks_run:
            await settle()

    async def drain(self) -> None:
        """Run what is left, one request at a time."""
        for _ in range(4 * len(self.futures) + 4):
            await settle()
            self.begin(0)
            self.answer(0)
        await settle()

    def check(self, *, was_killed: bool) -> None:
        for number, future in self.futures.items():
            assert future.done()
            if future.cancelled():
                continue
            error = future.exception()
            if error is None:
                assert int(future.result()["y"][0]) == number
                assert number not in self.poison
            else:
                assert isinstance(error, ModelFailed)
                assert was_killed or number in self.poison
        assert not self.harness.engine.is_running
        assert all(runs <= 3 for runs in self.runs.values())
        assert not self.harness.engine._calls.holds_any


@in_loop
async def simulate(actions: list[tuple[str, int, bool]]) -> None:
    simulation = Simulation()
    await simulation.harness.engine.open()
    with capture_logs():
        for action in actions:
            await simulation.apply(*action)
        await simulation.drain()
    simulation.check(was_killed=any(action == "kill" for action, _, _ in actions))


@given(steps)
def test_innocent_requests_survive_poison_requests(actions: list[tuple[str, int, bool]]) -> None:
    simulate(actions)


@given(steps_with_kills)
def test_every_request_ends_once(actions: list[tuple[str, int, bool]]) -> None:
    simulate(actions)
