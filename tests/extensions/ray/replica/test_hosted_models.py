"""Lazy models that share replicas: which replica loads them, evictions under load, faults."""

import asyncio
import random
import threading

import pytest

from extensions.ray.handshake import Address
from extensions.ray.ingress import shared_group as sharing_module
from extensions.ray.ingress.connections import ReplicaEngine
from extensions.ray.ingress.shared_group import SharedConnections, SharedGroup
from frameworks.core.errors import ModelFailed, OutOfMemory
from frameworks.manager import MLFrameworkManager
from frameworks.models.versions.states import ModelState
from tests.extensions.ray.shared_replicas import SharedReplica, ask, group_config, sharing
from tests.frameworks.models.sized_registry import error_of
from tests.support.batch_models import Gate
from tests.support.fake_probe import GIB
from tests.support.loops import HANGS_AFTER_S, in_loop, soon, task


@in_loop
async def test_request_loads_model_in_one_replica() -> None:
    async with sharing() as (there, manager):
        for x in range(20):
            await ask(manager, "a", float(x))
        await asyncio.gather(*(ask(manager, "a", float(x)) for x in range(20)))
        assert there.loads == ["a"]


@in_loop
async def test_models_are_spread_over_free_replicas() -> None:
    async with sharing() as (there, manager):
        for name in "abcd":
            await ask(manager, name)
        assert sorted(map(len, (replica.loaded for replica in there.replicas))) == [2, 2]
        for name in "dcba" * 5:
            await ask(manager, name)
        assert sorted(there.loads) == list("abcd")
        assert there.evictions == 0


@in_loop
async def test_more_models_than_memory_all_answer() -> None:
    """Callers in random order, and a budget for four of six models: evictions, and every answer is right."""
    async with sharing("abcdef") as (there, manager):
        choice = random.Random(7)

        async def call() -> None:
            for _ in range(25):
                await ask(manager, choice.choice("abcdef"), float(choice.randrange(100)))

        await asyncio.gather(*(call() for _ in range(6)))
        assert there.evictions > 0
        counted = manager.residency.ledger.evictions
        await soon(lambda: counted.total() == there.evictions)
        assert len(there.loads) == there.evictions + sum(len(replica.loaded) for replica in there.replicas)


@in_loop
async def test_replicas_are_replaced_under_load() -> None:
    """Two ingresses, little memory, and replicas that are lost or leave as in an update: every answer is right."""
    async with sharing("abcd", capacity_gib=1.5) as (there, manager), there.ingress() as other:
        choice, over = random.Random(11), asyncio.Event()

        async def call(ingress: MLFrameworkManager) -> None:
            while not over.is_set():
                await ask(ingress, choice.choice("abcd"), float(choice.randrange(100)))

        async def replace(leaving: SharedReplica, is_lost: bool) -> None:
            before = there.evictions
            await soon(lambda: there.evictions >= before + 5)
            await there.start()
            there.publish(*(each for each in there.replicas if each is not leaving))
            if is_lost:
                leaving.die()
            await soon(lambda: not any(each.clients for each in leaving.models.all))

        calls = [task(call(each)) for each in (manager, other) for _ in range(3)]
        first, second, *_ = there.replicas
        await replace(first, True)
        await replace(second, False)
        over.set()
        await asyncio.gather(*calls)
        assert there.evictions >= 10
        assert not first.models.num_calls
        assert not second.models.num_calls


@in_loop
async def test_load_in_one_replica_delays_no_other() -> None:
    async with sharing("ab") as (there, manager):
        gates = [replica.registry.gates.setdefault("a", Gate()) for replica in there.replicas]
        slow = task(ask(manager, "a"))
        await soon(lambda: any(gate.arrived.is_set() for gate in gates))
        await ask(manager, "b")
        assert not slow.done()
        for gate in gates:
            gate.open()
        await slow


@in_loop
async def test_least_recently_used_model_is_evicted() -> None:
    async with sharing("abc", size=1) as (there, manager):
        for name in "aba":
            await ask(manager, name)
        await ask(manager, "c")
        assert there.replicas[0].loaded == {"a", "c"}
        await soon(lambda: manager.slot("b").state is ModelState.REGISTERED)
        assert [manager.slot(name).state for name in "ac"] == [ModelState.READY] * 2
        assert [manager.slot(name).memory_bytes for name in "abc"] == [GIB, 0, GIB]
        await ask(manager, "b")
        assert manager.slot("b").loads == 2


@in_loop
async def test_running_request_ends_before_eviction() -> None:
    gate = Gate()

    def hold(values: list[object]) -> None:
        if 7.0 in values:
            gate()

    async with sharing("ab", size=1, capacity_gib=1.5, behaviour=hold) as (there, manager):
        running = task(ask(manager, "a", 7.0))
        await soon(gate.arrived.is_set)
        other = task(ask(manager, "b"))
        group = manager.slot("a").active.engine()
        assert isinstance(group, SharedGroup)
        await soon(lambda: group.num_replicas == 0)
        later = task(ask(manager, "a"))
        assert not running.done()
        gate.open()
        await asyncio.gather(running, other, later)
        assert there.loads == ["a", "b", "a"]


@in_loop
async def test_pinned_model_is_never_evicted() -> None:
    async with sharing("ab", size=1, capacity_gib=1.5, pinned=True) as (there, manager):
        await ask(manager, "a")
        with pytest.raises(OutOfMemory, match=r"has 512 MiB of 1\.5 GiB left for models"):
            await ask(manager, "b")
        await ask(manager, "a")
        assert there.replicas[0].loaded == {"a"}


@in_loop
async def test_full_replica_leaves_model_to_other() -> None:
    """The first replica holds a pinned model only; the model that does not fit beside it goes to the second one."""
    async with sharing("ab", size=1, capacity_gib=1.5, pinned=True) as (there, manager):
        await ask(manager, "a")
        second = await there.start()
        await ask(manager, "b")
        assert (there.replicas[0].loaded, second.loaded) == ({"a"}, {"b"})


@in_loop
async def test_model_above_budget_is_refused() -> None:
    async with sharing("ab", size=0, capacity_gib=1.5) as (there, manager):
        for _ in range(2):
            await there.start(a=2 * GIB)
        with pytest.raises(OutOfMemory, match='model "a", version "1" needs 2 GiB'):
            await ask(manager, "a")
        assert manager.slot("a").state is ModelState.FAILED
        await ask(manager, "b")


@in_loop
async def test_broken_model_fails_with_its_reason() -> None:
    async with sharing("ab") as (there, manager):
        for replica in there.replicas:
            replica.registry.broken.add("a")
        assert isinstance(error := await error_of(ask(manager, "a")), ModelFailed)
        assert "a is broken" in error.message
        await ask(manager, "b")


@in_loop
async def test_requests_of_lost_replica_run_elsewhere() -> None:
    """The replica with the model dies in a run; another one, and no third one, loads it and answers."""
    entered, may_run = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        entered.set()
        assert may_run.wait(HANGS_AFTER_S)

    async with sharing("a", size=3, behaviour=hold) as (there, manager):
        sent = [task(ask(manager, "a", float(x))) for x in range(5)]
        await soon(entered.is_set)
        [lost] = [replica for replica in there.replicas if replica.registry.loads]
        there.publish(*(replica for replica in there.replicas if replica is not lost))
        lost.die()
        may_run.set()
        await asyncio.gather(*sent)
        assert there.loads == ["a", "a"]


@in_loop
async def test_model_without_replica_is_registered_again() -> None:
    async with sharing("a", size=1) as (there, manager):
        await ask(manager, "a")
        there.publish()
        await soon(lambda: manager.slot("a").state is ModelState.REGISTERED)
        waiting = task(ask(manager, "a"))
        replica = await there.start()
        await waiting
        assert replica.loaded == {"a"}
        assert manager.slot("a").state is ModelState.READY


@in_loop
async def test_replica_of_other_config_is_left_out() -> None:
    """During an update some replicas do not have the model: it is loaded in one that has it."""
    async with sharing("ab", size=0) as (there, manager):
        await there.start(group_config("b", 2.5))
        waiting = task(ask(manager, "a"))
        await soon(lambda: manager.slot("a").state is ModelState.LOADING)
        right = await there.start()
        await waiting
        assert right.loaded == {"a"}


@in_loop
async def test_second_ingress_finds_loaded_model() -> None:
    async with sharing("abcd") as (there, manager):
        for name in "abcd":
            await ask(manager, name)
        async with there.ingress() as other:
            await asyncio.gather(*(ask(other, name) for name in "abcd"))
            assert sorted(there.loads) == list("abcd")
            assert other.slot("a").state is ModelState.READY


@in_loop
async def _check_early_unload(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica evicts the version before its first request, and the request loads it again."""
    make_engine, unloads = SharedConnections._replica_engine, [True, True]

    def engine_that_unloads(connections: SharedConnections, address: Address) -> ReplicaEngine:
        replica_engine = make_engine(connections, address)
        replica_engine.is_unloading = bool(unloads and unloads.pop())
        return replica_engine

    monkeypatch.setattr(SharedConnections, "_replica_engine", engine_that_unloads)
    async with sharing("a", size=1) as (_, manager):
        await ask(manager, "a")
    assert not unloads


def test_eviction_before_request_loads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _check_early_unload(monkeypatch)


@in_loop
async def _check_spread() -> None:
    gate = Gate()
    async with sharing("a", behaviour=gate) as (there, manager):
        sent = [task(ask(manager, "a", float(x))) for x in range(40)]
        await soon(lambda: there.loads == ["a", "a"])
        gate.open()
        await asyncio.gather(*sent)


def test_saturated_model_is_loaded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing_module, "SPREAD_S", -100.0)
    _check_spread()
