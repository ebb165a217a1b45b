"""Unloading, device threads that die, and how the house is left."""

import asyncio

import pytest
from structlog.testing import capture_logs

from frameworks.errors import (
    Draining,
    ModelFailed,
    ModelNotFound,
    ModelUnloaded,
)
from frameworks.models.slot import ModelState
from tests.support.batch_models import FakeRegistry, Gate
from tests.support.loops import in_loop, soon, task
from tests.support.managing import ask, make_manager, permitted, register, serving


class TestUnloading:
    @in_loop
    async def test_it_waits_for_those_in_flight_and_takes_nothing_new(self) -> None:
        gate = Gate()
        registry = FakeRegistry(gate)
        async with serving(registry) as manager:
            slot = manager.slot("m")
            asked = [task(ask(manager, i)) for i in range(3)]
            await soon(gate.arrived.is_set)
            unload = task(manager.unload("m"))
            await soon(lambda: slot.state is ModelState.DRAINING)
            late = task(ask(manager))
            await asyncio.sleep(0.01)
            assert not unload.done()
            gate.open()
            assert await asyncio.gather(*asked) == [[0], [2], [4]]
            await unload
            with pytest.raises(ModelUnloaded, match="POST /models/m/load brings it back"):
                await late
            assert (slot.state, slot.spec) == (ModelState.UNLOADED, None)
            assert registry.made[0].is_closed
            with pytest.raises(ModelUnloaded):
                await ask(manager)
            await manager.load("m")
            assert (await ask(manager), slot.loads) == ([2], 2)

    @in_loop
    async def test_it_waits_for_an_answer_that_is_still_being_sent(self) -> None:
        async with serving(FakeRegistry()) as manager:
            with permitted(manager.slot("m")):
                unload = task(manager.unload("m"))
                await asyncio.sleep(0.02)
                assert not unload.done()
            await unload

    @in_loop
    async def test_what_is_not_loaded_unloads_without_a_word(self) -> None:
        async with make_manager(FakeRegistry()) as manager:
            slot = register(manager)
            await manager.unload("m")
            await manager.unload("m")
            assert slot.state is ModelState.UNLOADED

    @in_loop
    async def test_an_unload_whose_caller_left_leaves_the_model_in_service(self) -> None:
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
    async def test_deleting_while_it_loads_lets_the_load_end_first(self) -> None:
        gate = Gate()
        registry = FakeRegistry(on_load=gate)
        async with make_manager(registry) as manager:
            register(manager)
            load = task(manager.load("m"))
            await soon(gate.arrived.is_set)
            removal, late = task(manager.remove("m")), task(manager.load("m"))
            await asyncio.sleep(0.01)
            gate.open()
            await asyncio.gather(load, removal)
            with pytest.raises(ModelNotFound):
                await late
            assert manager.slots == []
            assert [model.is_closed for model in registry.made] == [True]
            register(manager)

    @in_loop
    async def test_two_deletes_at_once_delete_once(self) -> None:
        async with serving(FakeRegistry()) as manager:
            results = await asyncio.gather(manager.remove("m"), manager.remove("m"), return_exceptions=True)
            assert [type(result) for result in results] == [type(None), ModelNotFound]


class TestADeadThread:
    @staticmethod
    def die(x: list[object]) -> None:
        if x == [13]:
            raise SystemExit

    @in_loop
    async def test_the_model_has_failed_before_anybody_asks_again(self) -> None:
        registry = FakeRegistry(TestADeadThread.die)
        async with serving(registry) as manager:
            slot = manager.slot("m")
            with capture_logs(), pytest.raises(ModelFailed):
                await ask(manager, 13)
            assert (slot.state, slot.reason) == (ModelState.FAILED, "its device thread ended")
            with pytest.raises(ModelFailed, match="its device thread ended; it is tried again in"):
                await ask(manager)
            assert slot.requests.inflight == 0
            assert registry.made[0].is_closed

    @in_loop
    async def test_loading_again_brings_it_back(self) -> None:
        registry = FakeRegistry(TestADeadThread.die)
        async with serving(registry) as manager:
            with capture_logs(), pytest.raises(ModelFailed):
                await ask(manager, 13)
            await manager.load("m")
            assert (len(registry.made), await ask(manager)) == (2, [2])

    @in_loop
    async def test_it_can_be_unloaded_and_deleted(self) -> None:
        async with serving(FakeRegistry(TestADeadThread.die)) as manager:
            with capture_logs(), pytest.raises(ModelFailed):
                await ask(manager, 13)
            assert (await manager.unload("m")).state is ModelState.UNLOADED
            await manager.remove("m")


class TestLeaving:
    @in_loop
    async def test_what_is_in_flight_is_answered_first(self) -> None:
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
    async def test_past_the_deadline_nobody_hangs(self) -> None:
        gate = Gate()
        registry = FakeRegistry(gate)
        with capture_logs() as logs:
            async with serving(registry, drain_timeout_s=0.05) as manager:
                asked = [task(ask(manager, i)) for i in range(3)]
                await soon(gate.arrived.is_set)
            errors = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 5)
        assert [type(error) for error in errors] == [Draining] * 3
        assert [entry for entry in logs if entry["event"] == "drain timed out"] == [
            {"event": "drain timed out", "log_level": "warning", "inflight": {"m": 3}}
        ]
        assert manager.slot("m").state is ModelState.UNLOADED
        gate.open()
        await soon(lambda: registry.made[0].is_closed)
        assert registry.made[0].executed == [[0]]

    @in_loop
    async def test_a_load_on_its_way_is_waited_for_and_unloaded(self) -> None:
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
    async def test_a_load_that_outlasts_the_deadline_brings_nothing(self) -> None:
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
    async def test_afterwards_nothing_loads(self) -> None:
        registry = FakeRegistry()
        async with serving(registry) as manager:
            pass
        with pytest.raises(Draining):
            await manager.load("m")
        assert len(registry.made) == 1
