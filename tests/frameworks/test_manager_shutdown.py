"""Test unloads, dead device threads, and the shutdown of the manager."""

import asyncio

import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import (
    Draining,
    ModelFailed,
    ModelNotFound,
    ModelUnloaded,
)
from frameworks.models.versions.states import ModelState
from tests.support.batch_models import FakeRegistry, Gate
from tests.support.loops import in_loop, settle, soon, task
from tests.support.managing import ask, make_manager, permitted, register, serving


class TestUnloading:
    @in_loop
    async def test_unload_drains_requests_and_refuses_new_ones(self) -> None:
        gate = Gate()
        registry = FakeRegistry(gate)
        async with serving(registry) as manager:
            slot = manager.slot("m")
            asked = [task(ask(manager, i)) for i in range(3)]
            await soon(gate.arrived.is_set)
            unload = task(manager.unload("m"))
            await soon(lambda: slot.state is ModelState.DRAINING)
            late = task(ask(manager))
            await settle()
            assert not unload.done()
            gate.open()
            assert await asyncio.gather(*asked) == [[0], [2], [4]]
            await unload
            with pytest.raises(ModelUnloaded, match="POST /models/m/load loads it again"):
                await late
            assert (slot.state, slot.spec) == (ModelState.UNLOADED, None)
            assert registry.made[0].is_closed
            with pytest.raises(ModelUnloaded):
                await ask(manager)
            await manager.load("m")
            assert (await ask(manager), slot.loads) == ([2], 2)

    @in_loop
    async def test_unload_waits_for_response_being_sent(self) -> None:
        async with serving(FakeRegistry()) as manager:
            with permitted(manager.slot("m")):
                unload = task(manager.unload("m"))
                await settle()
                assert not unload.done()
            await unload

    @in_loop
    async def test_unload_of_unloaded_model_succeeds(self) -> None:
        async with make_manager(FakeRegistry()) as manager:
            slot = register(manager)
            await manager.unload("m")
            await manager.unload("m")
            assert slot.state is ModelState.UNLOADED

    @in_loop
    async def test_cancelled_unload_keeps_model_ready(self) -> None:
        gate = Gate()
        registry = FakeRegistry(gate)
        async with serving(registry) as manager:
            slot = manager.slot("m")
            asked = task(ask(manager))
            await soon(gate.arrived.is_set)
            unload = task(manager.unload("m"))
            await soon(lambda: slot.state is ModelState.DRAINING)
            unload.cancel()
            await asyncio.wait([unload])
            assert slot.state is ModelState.READY
            gate.open()
            assert await asked == [2]
            await manager.load("m")
            assert (len(registry.made), await ask(manager, 3)) == (1, [6])

    @in_loop
    async def test_remove_waits_for_running_load(self) -> None:
        gate = Gate()
        registry = FakeRegistry(on_load=gate)
        async with make_manager(registry) as manager:
            register(manager)
            load = task(manager.load("m"))
            await soon(gate.arrived.is_set)
            removal, late = task(manager.remove("m")), task(manager.load("m"))
            await settle()
            gate.open()
            await asyncio.gather(load, removal)
            with pytest.raises(ModelNotFound):
                await late
            assert manager.slots == []
            assert [model.is_closed for model in registry.made] == [True]
            register(manager)

    @in_loop
    async def test_second_concurrent_remove_is_refused(self) -> None:
        async with serving(FakeRegistry()) as manager:
            results = await asyncio.gather(manager.remove("m"), manager.remove("m"), return_exceptions=True)
            assert [type(result) for result in results] == [type(None), ModelNotFound]


class TestDeadThread:
    @staticmethod
    def die(x: list[object]) -> None:
        if x == [13]:
            raise SystemExit

    @in_loop
    async def test_dead_thread_makes_model_failed_at_once(self) -> None:
        registry = FakeRegistry(TestDeadThread.die)
        async with serving(registry) as manager:
            slot = manager.slot("m")
            with capture_logs(), pytest.raises(ModelFailed):
                await ask(manager, 13)
            assert (slot.state, slot.reason) == (ModelState.FAILED, "its device thread ended")
            with pytest.raises(ModelFailed, match="its device thread ended; its load is retried in"):
                await ask(manager)
            assert slot.requests.inflight == 0
            assert registry.made[0].is_closed

    @in_loop
    async def test_load_after_dead_thread_serves_again(self) -> None:
        registry = FakeRegistry(TestDeadThread.die)
        async with serving(registry) as manager:
            with capture_logs(), pytest.raises(ModelFailed):
                await ask(manager, 13)
            await manager.load("m")
            assert (len(registry.made), await ask(manager)) == (2, [2])

    @in_loop
    async def test_dead_model_is_unloaded_and_removed(self) -> None:
        async with serving(FakeRegistry(TestDeadThread.die)) as manager:
            with capture_logs(), pytest.raises(ModelFailed):
                await ask(manager, 13)
            assert (await manager.unload("m")).state is ModelState.UNLOADED
            await manager.remove("m")


class TestShutdown:
    @in_loop
    async def test_shutdown_answers_running_requests(self) -> None:
        gate = Gate()
        registry = FakeRegistry(gate)
        async with serving(registry) as manager:
            register(manager, "other")
            await manager.load("other")
            asked = [task(ask(manager, i)) for i in range(3)]
            await soon(gate.arrived.is_set)
            asyncio.get_running_loop().call_later(0.02, gate.open)
        assert [t.result() for t in asked] == [[0], [2], [4]]
        assert [slot.state.value for slot in manager.slots] == ["unloaded", "unloaded"]
        assert all(model.is_closed for model in registry.made)

    @in_loop
    async def test_shutdown_fails_requests_after_drain_timeout(self) -> None:
        gate = Gate()
        registry = FakeRegistry(gate)
        with capture_logs() as logs:
            async with serving(registry, drain_timeout_s=0.05) as manager:
                asked = [task(ask(manager, i)) for i in range(3)]
                await soon(gate.arrived.is_set)
            errors = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        assert [type(error) for error in errors] == [Draining] * 3
        assert [entry for entry in logs if entry["event"] == "drain timed out"] == [
            {"event": "drain timed out", "log_level": "warning", "inflight": {"m": 3}}
        ]
        assert manager.slot("m").state is ModelState.UNLOADED
        gate.open()
        await soon(lambda: registry.made[0].is_closed)
        assert registry.made[0].executed == [[0]]

    @in_loop
    async def test_shutdown_waits_for_running_load(self) -> None:
        gate = Gate()
        registry = FakeRegistry(on_load=gate)
        async with make_manager(registry) as manager:
            slot = register(manager)
            load = task(manager.load("m"))
            await soon(gate.arrived.is_set)
            asyncio.get_running_loop().call_later(0.02, gate.open)
        await load
        assert slot.state is ModelState.UNLOADED
        assert registry.made[0].is_closed

    @in_loop
    async def test_load_longer_than_drain_timeout_is_closed(self) -> None:
        gate = Gate()
        registry = FakeRegistry(on_load=gate)
        with capture_logs():
            async with make_manager(registry, drain_timeout_s=0.02) as manager:
                slot = register(manager)
                load = task(manager.load("m"))
                await soon(gate.arrived.is_set)
        gate.open()
        with pytest.raises(Draining):
            await load
        assert slot.state is ModelState.UNLOADED
        await soon(lambda: bool(registry.made) and registry.made[0].is_closed)

    @in_loop
    async def test_load_after_shutdown_is_refused(self) -> None:
        registry = FakeRegistry()
        async with serving(registry) as manager:
            pass
        with pytest.raises(Draining):
            await manager.load("m")
        assert len(registry.made) == 1
