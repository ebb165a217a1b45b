"""Requests whose replicas end again and again: refused where nothing else explains it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from extensions.ray.ingress import connections
from frameworks.core.errors import ModelFailed
from tests.extensions.ray.ingress.test_group import HeldModel
from tests.extensions.ray.replicas import Cluster, Replica, ask, serving
from tests.support.loops import in_loop, soon, task

pytestmark = pytest.mark.extended


@dataclass
class Runs:
    """Number of runs of a request that replicas have reported."""

    reported: int = 0

    def begin(self) -> None:
        self.reported += 1


async def end_replicas(there: Cluster, runs: Runs, number: int, end: Callable[[Replica], Awaitable[None]]) -> None:
    """End the replica that runs a request, this number of times.

    Its connection ends without the messages that it still holds. A request whose run was not reported moves instead.
    """
    ended: set[str] = set()

    def running() -> list[Replica]:
        return [
            each
            for each in there.replicas.values()
            if each.name not in ended and any(model.entered.is_set() for model in each.models)
        ]

    for index in range(number):
        await soon(lambda: len(running()) == 1)
        await soon(lambda: runs.reported > index)  # noqa: B023 - awaited before the next index
        (replica,) = running()
        ended.add(replica.name)
        await end(replica)


def release(there: Cluster) -> None:
    """Let all models run, also those whose callers are lost."""
    for replica in there.replicas.values():
        for model in replica.models:
            model.may_run.set()


async def crash(replica: Replica) -> None:
    replica.die()


@in_loop
async def test_request_that_ends_three_replicas_is_refused() -> None:
    async with serving(4, lambda _: HeldModel()) as (there, group):
        runs = Runs()
        sent = task(ask(group, 1.0, begin=runs.begin))
        await end_replicas(there, runs, 3, crash)
        with pytest.raises(ModelFailed):
            await sent
        release(there)
        with pytest.raises(ModelFailed, match="ended its process 3 times"):
            await ask(group, 1.0)
        assert await ask(group, 2.0) == 4.0


@in_loop
async def test_request_that_ends_two_replicas_is_answered() -> None:
    async with serving(3, lambda _: HeldModel()) as (there, group):
        runs = Runs()
        sent = task(ask(group, 1.0, begin=runs.begin))
        await end_replicas(there, runs, 2, crash)
        release(there)
        assert await sent == 2.0
        assert await ask(group, 1.0) == 2.0


@in_loop
async def test_ends_of_withdrawn_replicas_refuse_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANNOUNCED_S", 0.0)
    async with serving(6, lambda _: HeldModel()) as (there, group):

        async def stop(replica: Replica) -> None:
            running = group.num_replicas
            there.withdraw(replica)
            await soon(lambda: group.num_replicas < running)
            replica.die()

        runs = Runs()
        sent = task(ask(group, 1.0, begin=runs.begin))
        await end_replicas(there, runs, 5, stop)
        release(there)
        assert await sent == 2.0
        assert await ask(group, 1.0) == 2.0
