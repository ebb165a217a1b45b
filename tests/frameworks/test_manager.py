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
from frameworks.models.slot import ModelState
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.settings import PerformanceSettings, SchedulingSettings
from tests.support.batch_models import FakeRegistry, Gate
from tests.support.fake_probe import FakeProbe
from tests.support.loops import in_loop, soon, task
from tests.support.managing import ask, entry, make_manager, permitted, register, serving


class TestLoading:
    @in_loop
    async def test_a_model_is_warmed_up_before_it_is_ready(self) -> None:
        registry = FakeRegistry()
        async with serving(registry) as manager:
            slot = manager.slot("m")
            assert (slot.state, slot.loads) == (ModelState.READY, 1)
            assert slot.active.load_s > 0
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
            with pytest.raises(
                ModelFailed, match=r"broken: broken; it is tried again in [01]\.\d s, or by POST /models/m/load"
            ):
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
    async def test_a_load_whose_caller_left_goes_on_to_its_end(self) -> None:
        gate = Gate()
        registry = FakeRegistry(on_load=gate)
        async with make_manager(registry) as manager:
            slot = register(manager)
            load = task(manager.load("m"))
            await soon(gate.arrived.is_set)
            load.cancel()
            await asyncio.wait([load])
            assert (slot.state, slot.reason) == (ModelState.LOADING, None)
            gate.open()
            await soon(lambda: slot.state is ModelState.READY)
            assert (len(registry.made), await ask(manager)) == (1, [2])

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

    @in_loop
    async def test_a_device_is_prepared_once_before_the_first_load_there(self) -> None:
        registry = FakeRegistry()
        registry.on_load = lambda: seen.append([*registry.prepared])
        seen: list[list[str]] = []
        async with make_manager(registry) as manager:
            for name in "ab":
                register(manager, name)
                await manager.load(name)
        assert seen == [["cpu"], ["cpu"]]


class TestInstances:
    @in_loop
    async def test_each_is_warmed_up_runs_in_a_thread_of_its_own_and_is_closed(self) -> None:
        gate = Gate()
        registry = FakeRegistry(gate)
        async with serving(registry, instances=3) as manager:
            assert [model.warm_ups for model in registry.made] == [1, 1, 1]
            asked = [task(ask(manager, i)) for i in range(3)]
            await soon(lambda: all(model.executed for model in registry.made))
            gate.open()
            assert await asyncio.gather(*asked) == [[0], [2], [4]]
        assert [model.is_closed for model in registry.made] == [True] * 3

    @in_loop
    async def test_where_one_does_not_warm_up_all_are_closed(self) -> None:
        class Cold(FakeRegistry):
            def load(self, *arguments: Any) -> Any:
                instances = super().load(*arguments)
                self.made[1].warm_up = self.refuse  # type: ignore[method-assign]
                return instances

            @staticmethod
            def refuse() -> None:
                raise OutOfMemory("it is too cold")

        registry = Cold()
        async with make_manager(registry) as manager:
            register(manager, instances=3)
            with pytest.raises(OutOfMemory):
                await manager.load("m")
            assert [model.is_closed for model in registry.made] == [True] * 3

    @in_loop
    async def test_the_model_has_failed_only_when_the_last_has_died(self) -> None:
        def die(x: list[object]) -> None:
            if x == [13]:
                raise SystemExit

        registry = FakeRegistry(die)
        async with serving(registry, instances=2) as manager:
            slot = manager.slot("m")
            with capture_logs(), pytest.raises(ModelFailed):
                await ask(manager, 13)
            assert slot.state is ModelState.READY
            assert [await ask(manager, i) for i in range(4)] == [[0], [2], [4], [6]]
            with capture_logs(), pytest.raises(ModelFailed):
                await ask(manager, 13)
            assert (slot.state, slot.reason) == (ModelState.FAILED, "its device thread ended")


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
        async with make_manager(FakeRegistry()) as manager:
            own = register(manager, "own", max_batch_size=3, max_batch_tokens=99, max_queue_delay_ms=20)
            other = register(manager, "other")
            assert own.limits == BatchLimits(max_rows=3, max_tokens=99, max_delay_s=0.02)
            assert other.limits == BatchLimits(max_rows=4, max_tokens=None, max_delay_s=0.0)

    @in_loop
    async def test_only_an_entry_s_own_keys_bound_its_requests(self) -> None:
        async with make_manager(FakeRegistry()) as manager:
            own = register(manager, "own", max_queue_size=2, max_concurrent_requests=5)
            other = register(manager, "other")
            assert (own.requests.max_queue_size, own.requests.max_concurrent_requests) == (2, 5)
            assert (other.requests.max_queue_size, other.requests.max_concurrent_requests) == (None, None)

    @in_loop
    async def test_there_is_one_version(self) -> None:
        async with serving(FakeRegistry()) as manager:
            slot = manager.slot("m")
            assert slot.version_named("1") is slot.route() is slot.active
            with pytest.raises(VersionNotFound, match='no version "2"; there is 1'):
                slot.version_named("2")


class TestPermits:
    @in_loop
    async def test_what_runs_does_not_wait_and_past_the_queue_s_bound_is_a_refusal(self) -> None:
        gate = Gate()
        async with serving(FakeRegistry(gate), max_queue_size=2) as manager:
            slot = manager.slot("m")
            asked = [task(ask(manager, 0))]
            await soon(gate.arrived.is_set)
            assert (slot.requests.inflight, slot.queue_depth) == (1, 0)
            for i in (1, 2):
                asked.append(task(ask(manager, i)))
                # A model that takes no company is handed the next request while this one runs.
                await soon(lambda: slot.requests.inflight == len(asked))
            await soon(lambda: slot.queue_depth == 1)
            with permitted(slot):
                assert slot.queue_depth == 2
                with pytest.raises(
                    Overloaded, match='model "m": 2 requests are waiting, its max_queue_size; try again'
                ):
                    await ask(manager)
            gate.open()
            assert await asyncio.gather(*asked) == [[0], [2], [4]]
            assert (slot.requests.inflight, slot.queue_depth) == (0, 0)
            slot.requests.check_room()

    @in_loop
    async def test_past_the_bound_of_requests_at_once_is_a_refusal(self) -> None:
        gate = Gate()
        async with serving(FakeRegistry(gate), max_concurrent_requests=1) as manager:
            asked = task(ask(manager))
            await soon(gate.arrived.is_set)
            with pytest.raises(Overloaded, match="1 requests are under way, its max_concurrent_requests"):
                await ask(manager)
            gate.open()
            assert await asked == [2]
            assert await ask(manager) == [2]

    @in_loop
    async def test_a_permit_comes_back_however_the_request_ends(self) -> None:
        gate = Gate()
        async with serving(FakeRegistry(lambda x: gate() if x == [7] else None)) as manager:
            slot = manager.slot("m")
            with pytest.raises(Exception, match="not a number"):
                await ask(manager, "bad")
            assert slot.requests.inflight == 0
            gone = task(ask(manager, 7))
            await soon(gate.arrived.is_set)
            assert (slot.requests.inflight, slot.queue_depth) == (1, 0)
            gone.cancel()
            await asyncio.wait([gone])
            assert (slot.requests.inflight, slot.queue_depth) == (0, 0)
            gate.open()
            assert slot.seconds_unused is not None
