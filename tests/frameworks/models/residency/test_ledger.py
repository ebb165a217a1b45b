"""Test evictions, and the memory that the ledger records for them."""

import asyncio

import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import ModelFailed, OutOfMemory
from frameworks.models.versions.states import ModelState
from tests.frameworks.models.sized_registry import (
    check_settled,
    die,
    error_of,
    infer,
    kill,
    lazy_models,
    register_lazy,
    states,
)
from tests.support.batch_models import Gate
from tests.support.clocks import Clock
from tests.support.fake_probe import GIB
from tests.support.loops import HANGS_AFTER_S, in_loop, settle, soon, task
from tests.support.managing import permit, register


class TestEviction:
    @in_loop
    async def test_least_recently_used_model_is_evicted(self) -> None:
        async with lazy_models() as (registry, manager):
            for name in "aba":
                await infer(manager, name)
            assert await infer(manager, "c") == "1"
            assert states(manager) == {"a": "ready", "b": "registered", "c": "ready"}
            assert registry.of["b"].is_closed
            assert manager.residency.ledger.evictions == {"b": 1}
            assert await infer(manager, "b") == "1"
            assert states(manager) == {"a": "registered", "b": "ready", "c": "ready"}

    @in_loop
    async def test_large_model_evicts_as_many_as_needed(self) -> None:
        async with lazy_models("abcde", capacity_gib=4) as (registry, manager):
            registry.sizes["e"] = 3 * GIB
            for name in "abcd":
                await infer(manager, name)
            await infer(manager, "e")
            assert [name for name, state in states(manager).items() if state == "ready"] == ["d", "e"]

    @in_loop
    async def test_eviction_of_busy_model_waits_for_its_requests(self) -> None:
        gate = Gate()
        async with lazy_models("ab", capacity_gib=1, behaviour=lambda x: gate() if x == [7] else None) as (
            registry,
            manager,
        ):
            before = [task(infer(manager, "a", 7)), *(task(infer(manager, "a", x)) for x in (1, 2, 3))]
            await soon(gate.arrived.is_set)
            other = task(infer(manager, "b"))
            await soon(lambda: states(manager)["a"] == "draining")
            late = task(infer(manager, "a", 8))
            await settle()
            assert not registry.of["a"].is_closed
            assert not other.done()
            first = registry.of["a"]
            gate.open()
            assert await asyncio.gather(*before, other, late) == ["1"] * 6
            assert (registry.loads, [8] in first.executed) == (["a", "b", "a"], False)

    @in_loop
    async def test_loaded_model_serves_its_request_before_eviction(self) -> None:
        async with lazy_models("abcd", capacity_gib=1) as (registry, manager):
            assert await asyncio.gather(*(infer(manager, name) for name in "abcd")) == ["1"] * 4
            assert sorted(registry.loads) == ["a", "b", "c", "d"]
            assert [model.executed for model in registry.made] == [[[1]]] * 4

    @in_loop
    async def test_waiting_request_keeps_its_model_loaded(self) -> None:
        async with lazy_models("ab", capacity_gib=1) as (_, manager):
            version = manager.slot("a").active
            with permit() as held:
                await manager.wait_for(version, held)
                other, order = task(infer(manager, "b")), task(manager.unload("a"))
                await soon(lambda: version.state is ModelState.DRAINING)
                assert not other.done()
                assert version.acquire(held, version.spec_for(held))
            await asyncio.gather(other, order)

    @in_loop
    async def test_reload_of_dead_model_and_eviction_avoid_deadlock(self) -> None:
        async with lazy_models("ab", capacity_gib=1, behaviour=die) as (_, manager):
            version, clock = manager.slot("a").active, Clock()
            version._clock = version.failures._clock = clock
            await infer(manager, "a")
            await kill(manager, "a")
            with pytest.raises(ModelFailed):
                await infer(manager, "a")
            clock.now_s += 1
            async with version.lock:
                again = task(infer(manager, "a"))
                await settle()
                other = task(infer(manager, "b"))
                await settle()
            async with asyncio.timeout(HANGS_AFTER_S):
                await asyncio.gather(again, other)

    @in_loop
    async def test_each_load_serves_its_whole_queue(self) -> None:
        async with lazy_models("ab", capacity_gib=1) as (registry, manager):
            requests = [infer(manager, "ab"[i % 2], i) for i in range(40)]
            assert await asyncio.gather(*requests) == ["1"] * 40
            assert sorted(registry.loads) == ["a", "b"]

    @in_loop
    async def test_ordered_load_proceeds_when_a_model_is_idle(self) -> None:
        gate = Gate()
        async with lazy_models("ab", capacity_gib=1, behaviour=lambda x: gate() if x == [7] else None) as (_, manager):
            busy = task(infer(manager, "a", 7))
            await soon(gate.arrived.is_set)
            manager.slot("a").active.load_s = 1000.0
            other = task(manager.load("b"))
            await soon(lambda: states(manager)["b"] == "loading")
            await settle()
            assert states(manager) == {"a": "ready", "b": "loading"}
            more = task(infer(manager, "a"))  # it still accepts requests
            gate.open()
            await asyncio.gather(busy, more, other)

    @in_loop
    async def test_waiting_load_proceeds_after_cancelled_unload(self) -> None:
        gate = Gate()
        async with lazy_models("ab", capacity_gib=1, behaviour=lambda x: gate() if x == [7] else None) as (_, manager):
            busy = task(infer(manager, "a", 7))
            await soon(gate.arrived.is_set)
            order = task(manager.unload("a"))
            await soon(lambda: states(manager)["a"] == "draining")
            other = task(infer(manager, "b"))
            await soon(lambda: states(manager)["b"] == "loading")
            await settle()
            order.cancel()
            await asyncio.wait([order])
            gate.open()
            assert [*await asyncio.gather(busy, other)] == ["1", "1"]

    @in_loop
    async def test_pinned_model_is_never_evicted(self) -> None:
        async with lazy_models("b", capacity_gib=1) as (_, manager):
            register_lazy(manager, "a", pinned=True)
            await infer(manager, "a")
            with pytest.raises(OutOfMemory, match=r'"b".* needs 1 GiB; .*unload or unpin'):
                await infer(manager, "b")
            with pytest.raises(OutOfMemory, match="is retried in"):
                await infer(manager, "b")
            assert states(manager) == {"a": "ready", "b": "failed"}
            await manager.unload("a")
            await manager.load("b")

    @pytest.mark.parametrize("pinned", [False, True])
    @in_loop
    async def test_dead_model_is_evicted(self, pinned: bool) -> None:
        async with lazy_models("bc", behaviour=die) as (_, manager):
            register_lazy(manager, "a", pinned=pinned)
            await infer(manager, "a")
            await infer(manager, "b")
            await kill(manager, "a")
            await infer(manager, "c")
            assert states(manager) == {"a": "registered", "b": "ready", "c": "ready"}

    @in_loop
    async def test_start_up_skips_model_that_needs_eviction(self) -> None:
        async with lazy_models("", capacity_gib=2) as (registry, manager):
            for name in "abc":
                register(manager, name)
            registry.sizes["b"] = 2 * GIB
            with capture_logs() as logs:
                await manager.load_registered()
            assert states(manager) == {"a": "ready", "b": "registered", "c": "ready"}
            assert [slot.is_awaited for slot in manager.slots] == [False] * 3
            [warning] = [each for each in logs if each["log_level"] == "warning"]
            assert (warning["event"], warning["model"]) == ("model is not loaded at start-up", "b")
            assert "needs 2 GiB" in warning["reason"]
            assert await infer(manager, "b") == "1"
            assert states(manager) == {"a": "registered", "b": "ready", "c": "registered"}


class TestMeasuredMemory:
    @in_loop
    async def test_ledger_records_measured_bytes(self) -> None:
        async with lazy_models("a", capacity_gib=4) as (registry, manager):
            registry.sizes["a"], registry.estimates["a"] = 3 * GIB, GIB
            await infer(manager, "a")
            assert manager.slot("a").memory_bytes == manager.residency.ledger.budget.used("cpu") == 3 * GIB
            registry.estimates["a"] = 9 * GIB
            await manager.unload("a")
            await manager.load("a")  # by the measurement of the last load

    @in_loop
    async def test_larger_measurement_evicts_other_models(self) -> None:
        async with lazy_models("abc", capacity_gib=3) as (registry, manager):
            await infer(manager, "a")
            await infer(manager, "b")
            registry.sizes["c"], registry.estimates["c"] = 2 * GIB, GIB
            await infer(manager, "c")
            assert states(manager) == {"a": "registered", "b": "ready", "c": "ready"}
            assert registry.loads == ["a", "b", "c"]

    @in_loop
    async def test_larger_model_is_reloaded_when_memory_is_free(self) -> None:
        gate = Gate()
        async with lazy_models("ab", capacity_gib=2, behaviour=lambda x: gate() if x == [7] else None) as (
            registry,
            manager,
        ):
            busy = task(infer(manager, "a", 7))
            await soon(gate.arrived.is_set)
            manager.slot("a").active.load_s = 1000.0
            registry.sizes["b"], registry.estimates["b"] = 2 * GIB, GIB
            other = task(infer(manager, "b"))
            await soon(lambda: registry.loads == ["a", "b"] and registry.of["b"].is_closed)
            manager.slot("a").active.load_s = 0.0
            gate.open()
            await asyncio.gather(busy, other)
            assert registry.loads == ["a", "b", "b"]

    @in_loop
    async def test_load_command_after_out_of_memory_uses_estimate(self) -> None:
        async with lazy_models("a", capacity_gib=2) as (registry, manager):
            registry.sizes["a"], registry.estimates["a"] = 3 * GIB, GIB
            assert isinstance(await error_of(infer(manager, "a")), OutOfMemory)
            assert (registry.loads, registry.are_all_closed) == (["a"], True)
            check_settled(manager)
            registry.sizes["a"] = GIB
            await manager.load("a")
            assert manager.slot("a").memory_bytes == GIB
