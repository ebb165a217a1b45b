"""Loading, names and permits, also all at once."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from frameworks.devices import DeviceManager
from frameworks.errors import (
    InvalidModel,
    ModelExists,
    ModelFailed,
    ModelLoading,
    ModelNotFound,
    OutOfMemory,
    Overloaded,
    VersionNotFound,
)
from frameworks.manager import MLFrameworkManager
from frameworks.settings import PerformanceSettings, SchedulingSettings
from frameworks.slot import ModelState
from tests.frameworks.batch_models import FakeRegistry, Gate
from tests.frameworks.fake_probe import FakeProbe
from tests.frameworks.loops import in_loop, soon, task
from tests.frameworks.managing import ask, entry, make_manager, register, serving


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
