"""Random requests, cancellations, and replicas that start, leave and die: each request ends once, with its answer."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from extensions.ray.ingress.group import ReplicaGroup
from frameworks.core.errors import ModelFailed
from tests.extensions.ray.replicas import Cluster, Replica, ask, cluster
from tests.support.loops import in_loop, settle, soon, task

ACTIONS = ["ask", "ask", "ask", "ask", "cancel", "start", "leave", "die", "break", "wait"]
MAX_REPLICAS = 4
steps = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1000)), max_size=40)


class Simulation:
    """An engine, its callers, and the replicas."""

    def __init__(self, there: Cluster, group: ReplicaGroup) -> None:
        self.there = there
        self.group = group
        self.requests: dict[int, asyncio.Task[float]] = {}
        self.losses = 0

    @property
    def running(self) -> list[Replica]:
        return [self.there.replicas[name] for name in self.there.running.addresses]

    async def apply(self, action: str, choice: int) -> None:
        running = self.running
        chosen: Any = running[choice % len(running)] if running else None
        match action:
            case "ask":
                number = len(self.requests)
                self.requests[number] = task(ask(self.group, float(number), 1 + choice % 7))
            case "cancel" if self.requests:
                self.requests[choice % len(self.requests)].cancel()
            case "start" if len(running) < MAX_REPLICAS:
                await self.there.start()
            case "leave" if running:
                self.there.withdraw(chosen)
            case "die" if running:
                # Serve reports the end later, or before.
                self.losses += 1
                if choice % 2:
                    chosen.die()
                    await settle()
                    self.there.withdraw(chosen)
                else:
                    self.there.withdraw(chosen)
                    chosen.die()
            case "break" if running:
                self.losses += 1
                for client in chosen.clients:
                    client.channel.fail("the network failed")
            case _:
                await settle()

    async def check(self) -> None:
        """Every request has ended with its own answer; two losses may fail one that ran at both."""
        if not self.running:
            await self.there.start()
        results = await asyncio.gather(*self.requests.values(), return_exceptions=True)
        for number, result in zip(self.requests, results, strict=True):
            if isinstance(result, ModelFailed):
                assert self.losses >= 2
            elif not isinstance(result, asyncio.CancelledError):
                assert result == 2.0 * number
        await soon(lambda: self.group.num_replicas == len(self.running))
        await soon(lambda: len(self.group.engines) == len(self.running))
        self.group.check_integrity()
        for replica in self.running:
            await soon(lambda replica=replica: len(replica.clients) == 1)  # type: ignore[misc]
            await soon(lambda replica=replica: not replica.versions.num_calls)  # type: ignore[misc]


@in_loop
async def simulate(actions: list[tuple[str, int]]) -> None:
    with capture_logs():
        async with cluster(1) as there:
            simulation = Simulation(there, await there.group())
            for action in actions:
                await simulation.apply(*action)
            await simulation.check()
            await simulation.group.close()
            for replica in there.replicas.values():
                await soon(lambda replica=replica: not replica.clients)  # type: ignore[misc]


@settings(max_examples=30)
@given(steps)
def test_requests_end_once_in_any_order(actions: list[tuple[str, int]]) -> None:
    simulate(actions)
