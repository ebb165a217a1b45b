"""Test loading, names and permits of the manager, also concurrently."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from frameworks.core.devices import DeviceManager
from frameworks.core.errors import (
    InvalidModel,
    ModelExists,
    ModelFailed,
    ModelLoading,
    ModelNotFound,
    OutOfMemory,
    Overloaded,
    VersionNotFound,
)
from frameworks.core.progress import WorkState, states
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.manager import MLFrameworkManager
from frameworks.models.residency.loader import Loader
from frameworks.models.versions.states import ModelState
from frameworks.scheduling.batch.batcher import BatchLimits
from tests.support.batch_models import FakeRegistry, Gate
from tests.support.fake_probe import FakeProbe
from tests.support.loops import in_loop, soon, task
from tests.support.managing import ask, entry, make_manager, permitted, register, serving


def progress_of(model: str) -> list[WorkState]:
    return states(lambda work: work.name == model)


class TestLoading:
    @in_loop
    async def test_model_is_warmed_up_before_ready(self) -> None:
        registry = FakeRegistry()
        async with serving(registry) as manager:
            slot = manager.slot("m")
            assert (slot.state, slot.loads) == (ModelState.READY, 1)
            assert slot.active.load_s > 0
            assert [model.warm_ups for model in registry.made] == [1]
            assert await ask(manager, 21) == [42]

    @in_loop
    async def test_register_reads_no_files(self) -> None:
        registry = FakeRegistry()
        async with make_manager(registry) as manager:
            slot = register(manager)
            assert (slot.state, slot.spec, registry.made) == (ModelState.REGISTERED, None, [])
            with pytest.raises(ModelLoading, match="is registered"):
                await ask(manager)

    @in_loop
    async def test_concurrent_loads_share_one_load(self) -> None:
        gate = Gate()
        registry = FakeRegistry(on_load=gate)
        async with make_manager(registry) as manager:
            slot = register(manager)
            loads = [task(manager.load("m")) for _ in range(5)]
            await soon(gate.arrived.is_set)
            assert slot.state is ModelState.LOADING
            assert [(each.kind, each.what) for each in progress_of("m")] == [("load", "files")]
            with pytest.raises(ModelLoading, match="is loading"):
                await ask(manager)
            gate.open()
            await asyncio.gather(*loads)
            assert (len(registry.made), slot.loads) == (1, 1)
            assert not progress_of("m")

    @in_loop
    async def test_failed_load_has_state_and_reason(self) -> None:
        async with make_manager(FakeRegistry()) as manager:
            slot = register(manager, file="broken")
            with pytest.raises(InvalidModel, match="broken"):
                await manager.load("m")
            assert (slot.state, slot.reason) == (ModelState.FAILED, "broken: broken")
            with pytest.raises(
                ModelFailed, match=r"broken: broken; its load is retried in [01]\.\d s, or by POST /models/m/load"
            ):
                await ask(manager)
            slot.path = Path("repaired")
            await manager.load("m")
            assert (slot.state, slot.reason) == (ModelState.READY, None)
            assert await ask(manager) == [2]

    @in_loop
    async def test_library_error_becomes_invalid_model(self) -> None:
        def on_load() -> None:
            raise ZeroDivisionError("by the library")

        async with make_manager(FakeRegistry(on_load=on_load)) as manager:
            slot = register(manager)
            with capture_logs() as logs, pytest.raises(InvalidModel, match="ZeroDivisionError: by the library"):
                await manager.load("m")
            assert slot.state is ModelState.FAILED
            assert [entry["event"] for entry in logs] == ["model failed to load"]

    @in_loop
    async def test_model_with_failed_warm_up_is_closed(self) -> None:
        class FailingWarmUp(FakeRegistry):
            def load(self, *arguments: Any) -> Any:
                model = super().load(*arguments)
                self.made[-1].warm_up = self.refuse  # type: ignore[method-assign]
                return model

            @staticmethod
            def refuse() -> None:
                raise OutOfMemory("warm-up failed")

        registry = FailingWarmUp()
        async with make_manager(registry) as manager:
            slot = register(manager)
            with pytest.raises(OutOfMemory):
                await manager.load("m")
            assert (slot.state, slot.reason) == (ModelState.FAILED, "warm-up failed")
            assert registry.made[0].is_closed

    @in_loop
    async def test_startup_continues_after_failed_model(self) -> None:
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
    async def test_load_continues_after_cancelled_caller(self) -> None:
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
    async def test_registry_is_created_once_in_loader_thread(self) -> None:
        made: list[str] = []

        def make() -> FakeRegistry:
            made.append(threading.current_thread().name)
            return FakeRegistry()

        settings = PerformanceSettings(), SchedulingSettings()
        async with MLFrameworkManager(Loader({"fake": make}, DeviceManager(FakeProbe())), *settings, 5) as manager:
            for name in "abcd":
                register(manager, name)
            assert made == []
            await asyncio.gather(*(manager.load(name) for name in "abcd"))
        assert len(made) == 1
        assert made[0].startswith("loader")

    @in_loop
    async def test_device_is_prepared_once_before_first_load(self) -> None:
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
    async def test_instances_run_in_own_threads_and_are_closed(self) -> None:
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
    async def test_failed_warm_up_closes_all_instances(self) -> None:
        class FailingWarmUp(FakeRegistry):
            def load(self, *arguments: Any) -> Any:
                instances = super().load(*arguments)
                self.made[1].warm_up = self.refuse  # type: ignore[method-assign]
                return instances

            @staticmethod
            def refuse() -> None:
                raise OutOfMemory("warm-up failed")

        registry = FailingWarmUp()
        async with make_manager(registry) as manager:
            register(manager, instances=3)
            with pytest.raises(OutOfMemory):
                await manager.load("m")
            assert [model.is_closed for model in registry.made] == [True] * 3

    @in_loop
    async def test_model_fails_when_last_instance_has_died(self) -> None:
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
    async def test_registered_name_is_refused(self) -> None:
        async with make_manager(FakeRegistry()) as manager:
            register(manager)
            with pytest.raises(ModelExists, match='"m"'):
                register(manager)
            with pytest.raises(ModelExists):
                await manager.add("fake", entry(), Path("files"))
            assert [slot.name for slot in manager.slots] == ["m"]

    @in_loop
    async def test_unknown_name_lists_similar_names(self) -> None:
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
    async def test_failed_add_removes_model(self) -> None:
        async with make_manager(FakeRegistry()) as manager:
            with pytest.raises(InvalidModel):
                await manager.add("fake", entry(), Path("broken"))
            assert manager.slots == []
            slot = await manager.add("fake", entry(), Path("files"))
            assert slot.state is ModelState.READY

    @in_loop
    async def test_limits_of_entry_override_server_limits(self) -> None:
        async with make_manager(FakeRegistry()) as manager:
            own = register(manager, "own", max_batch_size=3, max_batch_tokens=99, max_queue_delay_ms=20)
            other = register(manager, "other")
            assert own.limits == BatchLimits(max_rows=3, max_tokens=99, max_delay_s=0.02)
            assert other.limits == BatchLimits(max_rows=4, max_tokens=None, max_delay_s=0.0)

    @in_loop
    async def test_request_limits_come_from_entry_only(self) -> None:
        async with make_manager(FakeRegistry()) as manager:
            own = register(manager, "own", max_queue_size=2, max_concurrent_requests=5)
            other = register(manager, "other")
            assert (own.requests.max_queue_size, own.requests.max_concurrent_requests) == (2, 5)
            assert (other.requests.max_queue_size, other.requests.max_concurrent_requests) == (None, None)

    @in_loop
    async def test_model_without_folders_has_one_version(self) -> None:
        async with serving(FakeRegistry()) as manager:
            slot = manager.slot("m")
            assert slot.version_named("1") is slot.route() is slot.active
            with pytest.raises(VersionNotFound, match='no version "2"; there is 1'):
                slot.version_named("2")


class TestPermits:
    @in_loop
    async def test_request_beyond_queue_limit_is_refused(self) -> None:
        gate = Gate()
        async with serving(FakeRegistry(gate), max_queue_size=2) as manager:
            slot = manager.slot("m")
            asked = [task(ask(manager, 0))]
            await soon(gate.arrived.is_set)
            assert (slot.requests.inflight, slot.queue_depth) == (1, 0)
            for i in (1, 2):
                asked.append(task(ask(manager, i)))
                # A model without batching gets the next request while this one runs.
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
    async def test_request_beyond_concurrency_limit_is_refused(self) -> None:
        gate = Gate()
        async with serving(FakeRegistry(gate), max_concurrent_requests=1) as manager:
            asked = task(ask(manager))
            await soon(gate.arrived.is_set)
            with pytest.raises(Overloaded, match="1 requests are in flight, its max_concurrent_requests"):
                await ask(manager)
            gate.open()
            assert await asked == [2]
            assert await ask(manager) == [2]

    @in_loop
    async def test_permit_is_released_however_request_ends(self) -> None:
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
