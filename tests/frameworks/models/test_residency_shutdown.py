"""Test unload commands and the shutdown during loads and evictions: all requests end, all memory is released."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import Draining, ModelNotFound, ModelUnavailable, ModelUnloaded
from frameworks.core.settings.entry_values import VersionPolicy
from frameworks.manager import MLFrameworkManager
from frameworks.models.versions.states import ModelState
from tests.frameworks.models.sized_registry import (
    SizedRegistry,
    check_settled,
    error_of,
    infer,
    make_versions,
    register_lazy,
    states,
)
from tests.support.batch_models import Gate
from tests.support.fake_probe import GIB
from tests.support.loops import in_loop, queued, settle, soon, task
from tests.support.managing import entry, make_manager, permit, permitted, register


async def check_ended(registry: SizedRegistry, manager: MLFrameworkManager) -> None:
    """Check the state after shutdown; a loader thread may still have to close its instances."""
    await soon(lambda: registry.are_all_closed)
    ledger = manager.residency.ledger
    assert (ledger.budget.used("cpu"), ledger.versions) == (0, [])
    assert set(states(manager).values()) <= {"unloaded"}
    for slot in manager.slots:
        assert slot.requests.inflight == 0


class TestUnloadCommands:
    @in_loop
    async def test_unload_during_load_serves_waiting_requests(self) -> None:
        registry = SizedRegistry()
        async with make_manager(registry) as manager:
            register_lazy(manager, "a")
            registry.gates["a"] = Gate()
            requests = [task(infer(manager, "a", x)) for x in range(3)]
            await soon(registry.gates["a"].arrived.is_set)
            order = task(manager.unload("a"))
            await queued(manager.slot("a").active.lock)
            registry.gates["a"].open()
            assert await asyncio.gather(*requests) == ["1"] * 3
            await order
            assert states(manager) == {"a": "unloaded"}
            with pytest.raises(ModelUnloaded):
                await infer(manager, "a")
            check_settled(manager)

    @in_loop
    async def test_unload_during_eviction_refuses_waiting_requests(self) -> None:
        gate = Gate()
        registry = SizedRegistry(lambda x: gate() if x == [7] else None)
        async with make_manager(registry, max_model_bytes=GIB) as manager:
            register_lazy(manager, "a", "b")
            busy = task(infer(manager, "a", 7))
            await soon(gate.arrived.is_set)
            other = task(infer(manager, "b"))
            await soon(lambda: states(manager)["a"] == "draining")
            lock = manager.slot("a").active.lock
            late = task(error_of(infer(manager, "a")))
            await queued(lock)
            order = task(manager.unload("a"))
            await queued(lock, 2)
            gate.open()
            await asyncio.gather(busy, other, order)
            assert isinstance(await late, ModelUnloaded)
            assert states(manager) == {"a": "unloaded", "b": "ready"}
            check_settled(manager)

    @in_loop
    async def test_unload_command_wins_over_eviction(self) -> None:
        registry = SizedRegistry()
        async with make_manager(registry) as manager:
            [slot] = register_lazy(manager, "a")
            await infer(manager, "a")
            # Both wait for the version's lock, the unload command first.
            async with slot.active.lock:
                order = task(manager.unload("a"))
                await queued(slot.active.lock)
                eviction = task(manager.residency._evict(slot.active))
                await queued(slot.active.lock, 2)
            await asyncio.gather(order, eviction)
            assert states(manager) == {"a": "unloaded"}
            check_settled(manager)

    @in_loop
    async def test_load_command_after_unload_succeeds_unlike_requests(self) -> None:
        registry = SizedRegistry()
        async with make_manager(registry) as manager:
            [slot] = register_lazy(manager, "a")
            async with slot.active.lock:
                out = task(manager.residency.unload(slot.active))
                await queued(slot.active.lock)
                request = task(error_of(infer(manager, "a")))  # its load waits behind the unload
                await queued(slot.active.lock, 2)
                order = task(manager.load("a"))
                await soon(lambda: manager.residency.ledger.is_ordered(slot.active))
                await settle()
            await asyncio.gather(out, order)
            assert isinstance(await request, ModelUnloaded)
            assert states(manager) == {"a": "ready"}
            check_settled(manager)

    @in_loop
    async def test_remove_serves_waiting_requests_and_refuses_later(self) -> None:
        registry = SizedRegistry()
        async with make_manager(registry) as manager:
            register_lazy(manager, "a")
            registry.gates["a"] = Gate()
            request = task(infer(manager, "a"))
            await soon(registry.gates["a"].arrived.is_set)
            removal = task(manager.remove("a"))
            await queued(manager.slot("a").active.lock)
            registry.gates["a"].open()
            assert await request == "1"
            await removal
            with pytest.raises(ModelNotFound):
                await infer(manager, "a")
            assert manager.residency.ledger.versions == []

    @in_loop
    async def test_request_during_remove_is_refused_at_once(self) -> None:
        registry = SizedRegistry()
        async with make_manager(registry) as manager:
            [slot] = register_lazy(manager, "a")
            await infer(manager, "a")
            with permitted(slot):
                removal = task(manager.remove("a"))
                await soon(lambda: slot.state is ModelState.DRAINING)
                with pytest.raises(ModelUnloaded):
                    await infer(manager, "a")
            await removal
            with pytest.raises(ModelNotFound):
                await infer(manager, "a")

    @pytest.mark.parametrize("policy", ["latest", "all"])
    @in_loop
    async def test_failed_add_leaves_no_model(self, policy: VersionPolicy, tmp_path: Path) -> None:
        registry = SizedRegistry()
        async with make_manager(registry) as manager:
            registry.broken.add("m/2")
            wanted = entry(version_policy=policy)
            assert await error_of(manager.add("fake", wanted, make_versions(tmp_path, 1, 2))) is not None
            assert manager.slots == []
            assert (registry.are_all_closed, manager.residency.ledger.versions) == (True, [])

    @in_loop
    async def test_unload_cancelled_at_any_time_keeps_ledger_correct(self) -> None:
        for rounds in range(12):
            registry = SizedRegistry()
            async with make_manager(registry) as manager:
                register_lazy(manager, "a")
                await infer(manager, "a")
                order = task(manager.unload("a"))
                for _ in range(rounds):
                    await asyncio.sleep(0)
                order.cancel()
                await asyncio.wait([order])
                check_settled(manager)
                await error_of(infer(manager, "a"))
                check_settled(manager)
            await check_ended(registry, manager)

    @in_loop
    async def test_request_cancelled_at_any_time_releases_everything(self) -> None:
        for rounds in range(0, 30, 2):
            registry = SizedRegistry()
            async with make_manager(registry, max_model_bytes=GIB) as manager:
                register_lazy(manager, "a", "b")
                await infer(manager, "b")
                request = task(infer(manager, "a"))
                for _ in range(rounds):
                    await asyncio.sleep(0.0002)
                request.cancel()
                await asyncio.wait([request])
                await infer(manager, "b")
                await soon(lambda: "loading" not in states(manager).values())
                check_settled(manager)
            await check_ended(registry, manager)


class TestShutdown:
    @in_loop
    async def test_shutdown_serves_requests_waiting_for_load(self) -> None:
        registry = SizedRegistry()
        async with make_manager(registry, max_model_bytes=GIB) as manager:
            register_lazy(manager, "a", "b")
            await infer(manager, "b")
            registry.gates["a"] = Gate()
            requests = [task(infer(manager, "a", x)) for x in range(3)]
            await soon(registry.gates["a"].arrived.is_set)
            asyncio.get_running_loop().call_later(0.02, registry.gates["a"].open)
        assert await asyncio.gather(*requests) == ["1"] * 3
        await check_ended(registry, manager)

    @pytest.mark.parametrize("is_command", [False, True])
    @in_loop
    async def test_shutdown_cancels_load_without_caller(self, is_command: bool) -> None:
        """The gate stays closed: the shutdown does not wait for the load."""
        registry = SizedRegistry()
        async with make_manager(registry, drain_timeout_s=600) as manager:
            register(manager, "a")
            registry.gates["a"] = Gate()
            caller = task(manager.load("a") if is_command else manager.load_registered())
            await soon(registry.gates["a"].arrived.is_set)
            caller.cancel()
            await asyncio.wait([caller])
            assert states(manager) == {"a": "loading"}
        registry.gates["a"].open()
        await check_ended(registry, manager)

    @in_loop
    async def test_shutdown_cancels_load_left_by_caller(self) -> None:
        registry = SizedRegistry()
        async with make_manager(registry, drain_timeout_s=600) as manager:
            register(manager, "a")
            registry.gates["a"] = Gate()
            caller = task(manager.load("a"))
            await soon(registry.gates["a"].arrived.is_set)
            asyncio.get_running_loop().call_later(0.02, caller.cancel)
        assert caller.cancelled()
        registry.gates["a"].open()
        await check_ended(registry, manager)

    @in_loop
    async def test_requests_fail_after_drain_timeout(self) -> None:
        registry = SizedRegistry()
        with capture_logs():
            async with make_manager(registry, drain_timeout_s=0.05) as manager:
                register_lazy(manager, "a", "b")
                registry.gates["a"] = Gate()
                requests = [task(error_of(infer(manager, "a", x))) for x in range(3)]
                await soon(registry.gates["a"].arrived.is_set)
            errors = await asyncio.wait_for(asyncio.gather(*requests), 60)
            assert [type(error) for error in errors] == [Draining] * 3
            with pytest.raises(ModelUnavailable):
                await infer(manager, "b")
        registry.gates["a"].open()
        await check_ended(registry, manager)

    @in_loop
    async def test_requests_waiting_for_memory_fail_at_shutdown(self) -> None:
        gate = Gate()
        registry = SizedRegistry(lambda x: gate() if x == [7] else None)
        with capture_logs():
            async with make_manager(registry, drain_timeout_s=0.05, max_model_bytes=GIB) as manager:
                register_lazy(manager, "a", "b")
                busy = task(error_of(infer(manager, "a", 7)))
                await soon(gate.arrived.is_set)
                other = task(error_of(infer(manager, "b")))
                late = task(error_of(infer(manager, "a")))
                await soon(lambda: states(manager)["a"] == "draining")
            errors = await asyncio.wait_for(asyncio.gather(busy, other, late), 60)
        assert all(isinstance(error, ModelUnavailable) for error in errors), errors
        gate.open()
        await check_ended(registry, manager)

    @in_loop
    async def test_shutdown_closes_replaced_version_in_use(self, tmp_path: Path) -> None:
        gate = Gate()
        registry = SizedRegistry(lambda x: gate() if x == [7] else None)
        with capture_logs():
            async with make_manager(registry, drain_timeout_s=0.05) as manager:
                slot = register(manager, file=str(make_versions(tmp_path, 1)))
                await manager.load("m")
                old, before = slot.active, task(error_of(infer(manager, x=7)))
                await soon(gate.arrived.is_set)
                refresh = task(error_of(manager.refresh("m", frozenset("1"))))
                await soon(lambda: slot.active is not old)
            assert isinstance(await asyncio.wait_for(before, 60), Draining)
            await asyncio.wait_for(asyncio.wait([refresh]), 60)
        gate.open()
        await check_ended(registry, manager)

    @in_loop
    async def test_shutdown_unloads_version_loaded_meanwhile(self, tmp_path: Path) -> None:
        registry = SizedRegistry()
        async with make_manager(registry) as manager:
            register(manager, file=str(make_versions(tmp_path, 1)))
            await manager.load("m")
            registry.gates["m/1"] = Gate()
            refresh = task(error_of(manager.refresh("m", frozenset("1"))))
            await soon(registry.gates["m/1"].arrived.is_set)
            asyncio.get_running_loop().call_later(0.02, registry.gates["m/1"].open)
        await asyncio.wait_for(refresh, 60)
        assert len(registry.made) == 2
        await check_ended(registry, manager)

    @in_loop
    async def test_shutdown_aborts_rollout(self, tmp_path: Path) -> None:
        registry = SizedRegistry()
        with capture_logs():
            async with make_manager(registry, drain_timeout_s=0.05) as manager:
                register(manager, file=str(make_versions(tmp_path, 1, 2)))
                await manager.load("m", "1")
                registry.gates["m/2"] = Gate()
                swap = task(error_of(manager.load("m", "2")))
                await soon(registry.gates["m/2"].arrived.is_set)
            assert isinstance(await asyncio.wait_for(swap, 60), Draining)
        registry.gates["m/2"].open()
        await check_ended(registry, manager)

    @in_loop
    async def test_unload_waiting_for_response_ends_at_shutdown(self) -> None:
        registry = SizedRegistry()
        with permit() as held, capture_logs():
            async with make_manager(registry, drain_timeout_s=0.05) as manager:
                [slot] = register_lazy(manager, "a")
                await infer(manager, "a")
                spec = slot.active.spec_for(held)
                assert slot.active.acquire(held, spec)  # its response is never sent
                order = task(error_of(manager.unload("a")))
                await soon(lambda: slot.state is ModelState.DRAINING)
            held.release_version()
            assert await asyncio.wait_for(order, 60) is None
        await check_ended(registry, manager)
