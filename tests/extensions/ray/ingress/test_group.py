"""The engine over replicas that start, leave and are lost, with real connections."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from extensions.ray.ingress.group import NO_REPLICA
from frameworks.core.errors import Draining, InvalidModel, ModelFailed
from frameworks.types import TensorBatch
from tests.extensions.ray.replicas import ask, ask_all, cluster, serving
from tests.support.engine_hosts import ArrayModel
from tests.support.loops import HANGS_AFTER_S, in_loop, soon, task


class HeldModel(ArrayModel):
    """Waits in each run until `may_run` is set."""

    def __init__(self) -> None:
        self.may_run = threading.Event()
        self.entered = threading.Event()
        super().__init__(self._wait, runs_by_shape=False)

    def _wait(self, _: object) -> None:
        self.entered.set()
        assert self.may_run.wait(HANGS_AFTER_S)


@in_loop
async def test_request_to_replica_is_answered() -> None:
    async with serving() as (there, group):
        assert await ask(group, 2.0) == 4.0
        assert await ask(group, 3.0, columns=100_000) == 6.0
        assert group.model.spec.device == "cpu"
        await soon(lambda: there.counts.batches.sizes.total() == 2)


@in_loop
async def test_requests_are_shared_among_replicas() -> None:
    async with serving(2) as (there, group):
        for _ in range(20):
            values = [float(each) for each in range(16)]
            assert await ask_all(group, *values) == [2 * each for each in values]
        assert all(replica.executed > 20 for replica in there.replicas.values())


@in_loop
async def test_replica_that_starts_gets_requests() -> None:
    async with serving() as (there, group):
        late = await there.start()
        await soon(lambda: group.num_replicas == 2)
        await ask_all(group, *map(float, range(32)))
        assert late.executed > 0


@in_loop
async def test_requests_of_lost_replica_move() -> None:
    async with serving(2, lambda _: HeldModel()) as (there, group):
        sent = [task(ask(group, float(each))) for each in range(8)]
        first, second = there.replicas.values()
        await soon(lambda: first.models[0].entered.is_set() and second.models[0].entered.is_set())
        second.models[0].may_run.set()
        there.withdraw(first)
        first.die()
        assert await asyncio.gather(*sent) == [2.0 * each for each in range(8)]
        first.models[0].may_run.set()
        assert group.num_replicas == 1
        assert there.counts.restarts == {"replica": 1}
        await soon(lambda: len(second.clients) == 1)


@in_loop
async def test_requests_of_last_replica_wait_for_next() -> None:
    async with serving(1, lambda _: HeldModel()) as (there, group):
        sent = task(ask(group, 1.0))
        (first,) = there.replicas.values()
        await soon(first.models[0].entered.is_set)
        there.withdraw(first)
        first.die()
        await soon(lambda: group.num_replicas == 0)
        assert group.outage == NO_REPLICA
        later = task(ask(group, 2.0))
        second = await there.start()
        await soon(lambda: bool(second.models))
        second.models[0].may_run.set()
        assert list(await asyncio.gather(sent, later)) == [2.0, 4.0]
        first.models[0].may_run.set()
        assert group.outage is None


@in_loop
async def test_broken_connection_is_opened_again() -> None:
    async with serving() as (there, group):
        (replica,) = there.replicas.values()
        for client in replica.clients:
            client.channel.fail("the network failed")
        assert await ask(group, 1.0) == 2.0
        await soon(lambda: group.num_replicas == 1)
        assert len(replica.models) == 1


@in_loop
async def test_leaving_replica_answers_its_requests() -> None:
    async with serving(2, lambda _: HeldModel()) as (there, group):
        sent = [task(ask(group, float(each))) for each in range(4)]
        first, second = there.replicas.values()
        await soon(lambda: first.models[0].entered.is_set() and second.models[0].entered.is_set())
        there.withdraw(first)
        await soon(lambda: group.num_replicas == 1)
        assert first.versions.num_calls == 2
        first.models[0].may_run.set()
        second.models[0].may_run.set()
        assert await asyncio.gather(*sent) == [0.0, 2.0, 4.0, 6.0]
        await soon(lambda: not first.clients)
        assert await ask(group, 5.0) == 10.0
        assert not there.counts.restarts


@in_loop
async def test_request_without_replica_wakes_deployment() -> None:
    async with serving(1, may_be_empty=True) as (there, group):
        (replica,) = there.replicas.values()
        there.withdraw(replica)
        await soon(lambda: group.num_replicas == 0)
        assert group.outage is None
        wakes = there.wakes
        there.on_wake = lambda: task(there.start())
        assert await ask_all(group, 1.0, 2.0) == [2.0, 4.0]
        assert there.wakes == wakes + 1


@in_loop
async def test_cold_start_without_replica_fails() -> None:
    async with serving(1, cold_start_s=0.05) as (there, group):
        (replica,) = there.replicas.values()
        there.withdraw(replica)
        await soon(lambda: group.num_replicas == 0)
        with pytest.raises(ModelFailed, match="no replica has started within") as caught:
            await ask(group, 1.0)
        assert caught.value.retry_after_s == 5.0
        await there.start()
        await soon(lambda: group.num_replicas == 1)
        assert await ask(group, 1.0) == 2.0


@in_loop
async def test_version_that_cannot_be_loaded_is_refused() -> None:
    def fail(_: str) -> Any:
        raise InvalidModel("files: expected a graph, got an empty file; export it again")

    async with cluster(1, fail) as there:
        with pytest.raises(InvalidModel, match="expected a graph"):
            await there.group()


@in_loop
async def test_load_without_replica_fails_in_time() -> None:
    async with cluster(0) as there:
        with pytest.raises(ModelFailed, match="no replica has started within"):
            await there.group(cold_start_s=0.05)
        assert there.wakes == 1


@in_loop
async def test_waiting_requests_count_as_queued() -> None:
    """The replica has room for two full batches; the others wait at the ingress, and count for autoscaling."""
    async with serving(1, lambda _: HeldModel()) as (there, group):
        (replica,) = there.replicas.values()
        model = replica.models[0]
        model.may_run.set()
        await ask_all(group, *map(float, range(8)))
        await soon(lambda: replica.versions.queued_s == 0.0)
        model.may_run.clear()
        sent = [task(ask(group, 1.0)) for _ in range(40)]
        await soon(lambda: replica.versions.num_calls == 16)
        [version] = replica.versions.all
        await soon(lambda: replica.versions.queued_s >= 40 * version.host.cost.call_s > 0.0)
        assert replica.versions.running_s() > 0.0
        model.may_run.set()
        await asyncio.gather(*sent)
        await soon(lambda: replica.versions.queued_s == 0.0)
        assert replica.versions.running_s() == 0.0


@in_loop
async def test_cancelled_request_ends_in_replica() -> None:
    async with serving(1, lambda _: HeldModel()) as (there, group):
        (replica,) = there.replicas.values()
        running = task(ask(group, 1.0))
        await soon(replica.models[0].entered.is_set)
        waiting = task(ask(group, 2.0))
        await soon(lambda: replica.versions.num_calls == 2)
        waiting.cancel()
        await soon(lambda: replica.versions.num_calls == 1)
        replica.models[0].may_run.set()
        assert await running == 2.0
        assert replica.models[0].executed == [[1]]


@in_loop
async def test_two_ingresses_share_one_model() -> None:
    async with serving() as (there, group):
        other = await there.group()
        answers = await asyncio.gather(ask_all(group, 1.0, 2.0), ask_all(other, 3.0, 4.0))
        assert list(answers) == [[2.0, 4.0], [6.0, 8.0]]
        (replica,) = there.replicas.values()
        assert len(replica.models) == 1
        await group.close()
        assert await ask(other, 5.0) == 10.0
        # The one that is left gets the counts.
        await soon(lambda: there.counts.batches.sizes.total() >= 3)
        await other.close()


@in_loop
async def test_closed_engine_refuses_requests() -> None:
    async with serving() as (there, group):
        await group.close()
        with pytest.raises((Draining, ModelFailed)):
            await group.submit(TensorBatch({"x": np.zeros((1, 1), np.float32)}))
        await soon(lambda: not next(iter(there.replicas.values())).clients)
