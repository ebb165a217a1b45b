"""Loading, answering, unloading and deleting, also all at once; and how the house is left."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from frameworks.devices import DeviceManager
from frameworks.errors import (
    Draining,
    InvalidModel,
    ModelExists,
    ModelFailed,
    ModelLoading,
    ModelNotFound,
    ModelUnloaded,
    OutOfMemory,
    Overloaded,
    VersionNotFound,
)
from frameworks.manager import MLFrameworkManager
from frameworks.settings import OnnxModelEntry, PerformanceSettings, SchedulingSettings
from frameworks.slot import ModelSlot, ModelState
from tests.frameworks.batch_models import FakeRegistry, Gate, numbers
from tests.frameworks.fake_probe import FakeProbe
from tests.frameworks.loops import in_loop, soon, task


def make_manager(registry: FakeRegistry, max_queue_size: int = 8, drain_timeout_s: float = 5) -> MLFrameworkManager:
    return MLFrameworkManager(
        {"fake": lambda: registry},
        DeviceManager(FakeProbe()),
        PerformanceSettings(max_batch_size=4),
        SchedulingSettings(max_queue_size=max_queue_size),
        drain_timeout_s,
    )


def entry(name: str = "m", **settings: Any) -> OnnxModelEntry:
    return OnnxModelEntry(name=name, path=Path("files"), **settings)


def register(manager: MLFrameworkManager, name: str = "m", file: str = "files") -> ModelSlot:
    return manager.register("fake", entry(name), Path(file))


@asynccontextmanager
async def serving(registry: FakeRegistry, **settings: Any) -> AsyncIterator[MLFrameworkManager]:
    """A manager with the model "m", loaded."""
    async with make_manager(registry, **settings) as manager:
        register(manager)
        await manager.load("m")
        yield manager


async def ask(manager: MLFrameworkManager, x: object = 1, name: str = "m") -> Any:
    """What a door does: the model, a permit, the answer."""
    slot = manager.slot(name)
    _, lane = slot.ready()
    with slot.permit():
        return (await lane.run(numbers(x))).outputs["y"]


class TestLoading:
    @in_loop
    async def test_a_model_is_warmed_up_before_it_is_ready(self) -> None:
        registry = FakeRegistry()
        async with serving(registry) as manager:
            slot = manager.slot("m")
            assert (slot.state, slot.loads) == (ModelState.READY, 1)
            assert slot.load_s > 0
            assert [model.warm_ups for model in registry.made] == [1]
            assert await ask(manager, 21) == [42]

    @in_loop
    async def test_nothing_is_read_when_a_model_is_registered(self) -> None:
        registry = FakeRegistry()
        async with make_manager(registry) as manager:
            slot = register(manager)
            assert (slot.state, slot.spec, registry.made) == (ModelState.REGISTERED, None, [])
            with pytest.raises(ModelLoading, match="is registered"):
                await ask(manager)

    @in_loop
    async def test_two_loads_at_once_load_once(self) -> None:
        gate = Gate()
        registry = FakeRegistry(on_load=gate)
        async with make_manager(registry) as manager:
            slot = register(manager)
            loads = [task(manager.load("m")) for _ in range(5)]
            await soon(gate.arrived.is_set)
            assert slot.state is ModelState.LOADING
            with pytest.raises(ModelLoading, match="is loading"):
                await ask(manager)
            gate.open()
            await asyncio.gather(*loads)
            assert (len(registry.made), slot.loads) == (1, 1)

    @in_loop
    async def test_a_model_that_cannot_be_loaded_has_failed_with_the_reason(self) -> None:
        async with make_manager(FakeRegistry()) as manager:
            slot = register(manager, file="broken")
            with pytest.raises(InvalidModel, match="broken"):
                await manager.load("m")
            assert (slot.state, slot.reason) == (ModelState.FAILED, "broken: broken")
            with pytest.raises(ModelFailed, match="broken: broken; mend it, then POST /models/m/load"):
                await ask(manager)
            slot.path = Path("mended")
            await manager.load("m")
            assert (slot.state, slot.reason) == (ModelState.READY, None)
            assert await ask(manager) == [2]

    @in_loop
    async def test_what_a_library_raises_becomes_our_word_for_it(self) -> None:
        def on_load() -> None:
            raise ZeroDivisionError("by the library")

        async with make_manager(FakeRegistry(on_load=on_load)) as manager:
            slot = register(manager)
            with capture_logs() as logs, pytest.raises(InvalidModel, match="ZeroDivisionError: by the library"):
                await manager.load("m")
            assert slot.state is ModelState.FAILED
            assert [entry["event"] for entry in logs] == ["model failed to load"]

    @in_loop
    async def test_a_model_that_does_not_warm_up_is_closed(self) -> None:
        class Cold(FakeRegistry):
            def load(self, *arguments: Any) -> Any:
                model = super().load(*arguments)
                self.made[-1].warm_up = self.refuse  # type: ignore[method-assign]
                return model

            @staticmethod
            def refuse() -> None:
                raise OutOfMemory("it is too cold")

        registry = Cold()
        async with make_manager(registry) as manager:
            slot = register(manager)
            with pytest.raises(OutOfMemory):
                await manager.load("m")
            assert (slot.state, slot.reason) == (ModelState.FAILED, "it is too cold")
            assert registry.made[0].is_closed

    @in_loop
    async def test_at_start_up_one_failure_does_not_keep_the_others(self) -> None:
        async with make_manager(FakeRegistry()) as manager:
            for name, file in {"a": "files", "b": "broken", "c": "files"}.items():
                register(manager, name, file)
            with capture_logs() as logs:
                await manager.load_registered()
            assert [slot.state.value for slot in manager.slots] == ["ready", "failed", "ready"]
            [failure] = [entry for entry in logs if entry["log_level"] == "error"]
            assert (failure["model"], failure["reason"]) == ("b", "broken: broken")
            ready = [entry for entry in logs if entry["event"] == "model ready"]
            assert [entry["model"] for entry in ready] == ["a", "c"]
            assert ready[0]["warm_up_s"] >= 0

    @in_loop
    async def test_a_load_whose_caller_left_closes_what_it_still_brings(self) -> None:
        gate = Gate()
        registry = FakeRegistry(on_load=gate)
        async with make_manager(registry) as manager:
            slot = register(manager)
            load = task(manager.load("m"))
            await soon(gate.arrived.is_set)
            load.cancel()
            await asyncio.wait([load])
            assert (slot.state, slot.reason) == (ModelState.FAILED, "its load was cancelled")
            gate.open()
            await soon(lambda: bool(registry.made) and registry.made[0].is_closed)
            await manager.load("m")
            assert await ask(manager) == [2]

    @in_loop
    async def test_a_framework_s_registry_is_made_once_in_a_loader_thread(self) -> None:
        made: list[str] = []

        def make() -> FakeRegistry:
            made.append(threading.current_thread().name)
            return FakeRegistry()

        settings = PerformanceSettings(), SchedulingSettings()
        async with MLFrameworkManager({"fake": make}, DeviceManager(FakeProbe()), *settings, 5) as manager:
            for name in "abcd":
                register(manager, name)
            assert made == []
            await asyncio.gather(*(manager.load(name) for name in "abcd"))
        assert len(made) == 1
        assert made[0].startswith("loader")


class TestNames:
    @in_loop
    async def test_a_name_is_taken_once(self) -> None:
        async with make_manager(FakeRegistry()) as manager:
            register(manager)
            with pytest.raises(ModelExists, match='"m"'):
                register(manager)
            with pytest.raises(ModelExists):
                await manager.add("fake", entry(), Path("files"))
            assert [slot.name for slot in manager.slots] == ["m"]

    @in_loop
    async def test_an_unknown_name_lists_near_ones(self) -> None:
        async with make_manager(FakeRegistry()) as manager:
            with pytest.raises(ModelNotFound, match="no model is registered"):
                manager.slot("bert")
            for name in ("bert-base", "bert-large", "resnet"):
                register(manager, name)
            with pytest.raises(ModelNotFound, match=r"there is bert-base, bert-large$"):
                manager.slot("bert-bas1e")
            for wait in (manager.load, manager.unload, manager.remove):
                with pytest.raises(ModelNotFound):
                    await wait("what")

    @in_loop
    async def test_a_model_added_that_cannot_be_loaded_is_not_kept(self) -> None:
        async with make_manager(FakeRegistry()) as manager:
            with pytest.raises(InvalidModel):
                await manager.add("fake", entry(), Path("broken"))
            assert manager.slots == []
            slot = await manager.add("fake", entry(), Path("files"))
            assert slot.state is ModelState.READY

    @in_loop
    async def test_an_entry_s_own_bounds_go_before_the_server_s(self) -> None:
        async with make_manager(FakeRegistry(), max_queue_size=7) as manager:
            own = manager.register("fake", entry("own", max_batch_size=3, max_queue_size=2), Path("files"))
            other = register(manager, "other")
            assert (own.max_batch_size, own.max_queue_size) == (3, 2)
            assert (other.max_batch_size, other.max_queue_size) == (4, 7)

    @in_loop
    async def test_there_is_one_version(self) -> None:
        async with serving(FakeRegistry()) as manager:
            manager.slot("m").check_version("1")
            with pytest.raises(VersionNotFound, match='no version "2"; there is 1'):
                manager.slot("m").check_version("2")


class TestPermits:
    @in_loop
    async def test_past_the_queue_s_bound_the_refusal_says_when_to_come_again(self) -> None:
        gates = [Gate(), Gate()]
        calls = iter(gates)
        async with serving(FakeRegistry(lambda _: next(calls)()), max_queue_size=3) as manager:
            gates[0].open()
            await ask(manager)
            slot = manager.slot("m")
            asked = [task(ask(manager, i)) for i in range(1)]
            await soon(gates[1].arrived.is_set)
            with slot.permit(), slot.permit():
                assert slot.inflight == 3
                with pytest.raises(Overloaded, match="3 requests under way, its max_queue_size; try again in") as full:
                    await ask(manager)
                _, lane = slot.ready()
                assert full.value.retry_after_s == pytest.approx(max(0.001, 3 * lane.mean_compute_s))
            gates[1].open()
            await asyncio.gather(*asked)
            assert slot.inflight == 0
            slot.check_room()

    @in_loop
    async def test_a_permit_comes_back_however_the_request_ends(self) -> None:
        gate = Gate()
        async with serving(FakeRegistry(lambda x: gate() if x == [7] else None)) as manager:
            slot = manager.slot("m")
            with pytest.raises(Exception, match="not a number"):
                await ask(manager, "bad")
            assert slot.inflight == 0
            gone = task(ask(manager, 7))
            await soon(gate.arrived.is_set)
            assert (slot.inflight, slot.queue_depth) == (1, 1)
            gone.cancel()
            await asyncio.wait([gone])
            assert (slot.inflight, slot.queue_depth) == (0, 0)
            gate.open()
            assert slot.last_used is not None


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
            with pytest.raises(ModelUnloaded, match="POST /models/m/load brings it back"):
                await ask(manager)
            assert not unload.done()
            gate.open()
            assert await asyncio.gather(*asked) == [[0], [2], [4]]
            await unload
            assert (slot.state, slot.spec) == (ModelState.UNLOADED, None)
            assert registry.made[0].is_closed
            with pytest.raises(ModelUnloaded):
                await ask(manager)
            await manager.load("m")
            assert (await ask(manager), slot.loads) == ([2], 2)

    @in_loop
    async def test_it_waits_for_an_answer_that_is_still_being_sent(self) -> None:
        async with serving(FakeRegistry()) as manager:
            with manager.slot("m").permit():
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
            with pytest.raises(ModelFailed, match="its device thread ended; mend it, then POST /models/m/load"):
                await ask(manager)
            assert slot.inflight == 0
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
        assert registry.made[0].is_closed

    @in_loop
    async def test_afterwards_nothing_loads(self) -> None:
        registry = FakeRegistry()
        async with serving(registry) as manager:
            pass
        with pytest.raises(Draining):
            await manager.load("m")
        assert len(registry.made) == 1
