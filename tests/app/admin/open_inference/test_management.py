"""Test readiness, metadata, statistics, loads and unloads through Management."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from app.admin.open_inference.management import Management
from app.admin.views import Views
from app.auth.principal import ANONYMOUS
from app.inference.bounds import Bounds
from app.inference.lifecycle import ServerLifecycle
from app.inference.model_view import ManagedModelView
from app.inference.pipeline import Pipeline
from app.observability.metrics import Observer
from app.protocols.shared.errors import NotSupported
from frameworks.core.errors import (
    Draining,
    ModelFailed,
    ModelLoading,
    ModelNotFound,
    ModelUnloaded,
    Overloaded,
    RoundhouseError,
    VersionNotFound,
)
from frameworks.manager import MLFrameworkManager
from frameworks.models.versions.states import ModelState
from frameworks.scheduling.admission import RequestLimit
from tests.app.protocols.open_inference.messages import check_message
from tests.frameworks.models.sized_registry import infer, kill, lazy_models, versioned_model
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task
from tests.support.managing import make_manager, register


class AnonymousManagement:
    """Calls the methods of Management with the view of a server without keys."""

    def __init__(self, manager: MLFrameworkManager, pipeline: Pipeline, lifecycle: ServerLifecycle) -> None:
        self._management = Management(pipeline, lifecycle)
        self._view = Views(partial(ManagedModelView, manager), pipeline.observer).of(ANONYMOUS)

    def __getattr__(self, method: str) -> Any:
        return partial(getattr(self._management, method), self._view)


def management_of(
    manager: MLFrameworkManager, startup_models: tuple[str, ...] = (), max_concurrent_requests: int | None = None
) -> AnonymousManagement:
    limit = RequestLimit("the server", None, max_concurrent_requests)
    nothing: Any = None
    lifecycle = ServerLifecycle(manager, startup_models)
    bounds = Bounds(limit, 1000, None)
    pipeline = Pipeline(manager, nothing, nothing, Observer("none", 1000), lifecycle, bounds)
    return AnonymousManagement(manager, pipeline, lifecycle)


def drain(management: AnonymousManagement) -> None:
    cast(Any, management)._management._lifecycle.drain()


def index(management: AnonymousManagement, ready_only: bool = False) -> dict[str, tuple[str, str]]:
    entries = management.repository_index(ready_only)
    check_message("RepositoryIndexResponse", {"models": entries})
    return {f"{each['name']}/{each['version']}": (each["state"], each["reason"]) for each in entries}


class TestReadiness:
    @in_loop
    async def test_lazy_model_is_ready_before_its_load(self) -> None:
        async with lazy_models("a") as (registry, manager):
            management = management_of(manager)
            assert management.why_model_not_ready("a") is None
            assert index(management)["a/1"] == ("READY", "not in memory; the next request loads it")
            assert registry.loads == []
            await infer(manager, "a")
            assert index(management)["a/1"] == ("READY", "")

    @in_loop
    async def test_evicted_model_is_ready_and_unloaded_is_not(self) -> None:
        async with lazy_models("ab", capacity_gib=1) as (_, manager):
            management = management_of(manager)
            await infer(manager, "a")
            await infer(manager, "b")
            assert manager.slot("a").state is ModelState.REGISTERED
            assert management.why_model_not_ready("a") is None
            await management.unload("b")
            assert isinstance(management.why_model_not_ready("b"), ModelUnloaded)
            assert index(management)["b/1"] == ("UNAVAILABLE", "unloaded")
            assert list(index(management, ready_only=True)) == ["a/1"]
            await management.load("b", {})
            assert management.why_model_not_ready("b") is None

    @in_loop
    async def test_failed_model_is_not_ready_with_reason(self) -> None:
        async with lazy_models("a") as (registry, manager):
            management = management_of(manager)
            registry.broken.add("a")
            with capture_logs():
                with pytest.raises(ModelFailed, match="a is broken"):
                    await management.load("a", {})
                assert isinstance(management.why_model_not_ready("a"), ModelFailed)
            state, reason = index(management)["a/1"]
            assert (state, "a is broken" in reason) == ("UNAVAILABLE", True)
            with pytest.raises(ModelFailed, match="a is broken"):
                await management.model_metadata("a")

    @in_loop
    async def test_model_with_dead_thread_is_not_ready(self) -> None:
        def die(x: list[object]) -> None:
            if x == ["die"]:
                raise SystemExit

        async with lazy_models("a", behaviour=die) as (_, manager):
            management = management_of(manager)
            await kill(manager, "a")
            assert isinstance(management.why_model_not_ready("a"), ModelFailed)

    @in_loop
    async def test_startup_model_is_not_ready_before_first_load(self) -> None:
        gate = Gate()
        async with lazy_models("") as (registry, manager):
            register(manager, "a")
            management = management_of(manager, ("a",))
            registry.gates["a"] = gate
            error = management.why_not_ready()
            assert isinstance(error, ModelLoading)
            assert "a" in error.message
            assert index(management)["a/1"][0] == "UNAVAILABLE"
            loading = task(manager.load_registered())
            await soon(gate.arrived.is_set)
            assert isinstance(management.why_model_not_ready("a"), ModelLoading)
            assert index(management)["a/1"][0] == "LOADING"
            with pytest.raises(ModelLoading):
                await management.model_metadata("a")
            gate.open()
            await loading
            assert management.why_not_ready() is None
            assert management.why_model_not_ready("a") is None

    @in_loop
    async def test_model_during_unload_is_in_state_unloading(self) -> None:
        gate = Gate()
        async with lazy_models("a", behaviour=gate) as (_, manager):
            management = management_of(manager)
            running = task(infer(manager, "a"))
            await soon(gate.arrived.is_set)
            unloading = task(management.unload("a"))
            await soon(lambda: manager.slot("a").state is ModelState.DRAINING)
            assert index(management)["a/1"] == ("UNLOADING", "unloaded")
            gate.open()
            await running
            await unloading
            assert index(management)["a/1"] == ("UNAVAILABLE", "unloaded")

    @in_loop
    async def test_nothing_is_ready_during_drain(self) -> None:
        async with lazy_models("a") as (_, manager):
            management = management_of(manager)
            await infer(manager, "a")
            drain(management)
            assert isinstance(management.why_not_ready(), Draining)
            assert isinstance(management.why_model_not_ready("a"), Draining)
            with pytest.raises(Draining):
                await management.load("a", {})
            assert (await management.model_metadata("a"))["name"] == "a"

    @in_loop
    async def test_unknown_model_is_not_ready(self) -> None:
        async with lazy_models("a") as (_, manager):
            management = management_of(manager)
            assert isinstance(management.why_model_not_ready("b"), ModelNotFound)
            assert isinstance(management.why_model_not_ready("a", "2"), VersionNotFound)


class TestDescriptions:
    @in_loop
    async def test_metadata_loads_model_that_was_never_loaded(self) -> None:
        async with lazy_models("a") as (registry, manager):
            management = management_of(manager)
            metadata = await management.model_metadata("a")
            assert metadata["inputs"] == [{"name": "x", "datatype": "INT64", "shape": [-1]}]
            assert registry.loads == ["a"]
            assert (await management.model_configuration("a"))["name"] == "a"
            assert registry.loads == ["a"]

    @in_loop
    async def test_metadata_of_evicted_model_needs_no_load(self) -> None:
        async with lazy_models("ab", capacity_gib=1) as (registry, manager):
            management = management_of(manager)
            before = await management.model_metadata("a")
            await management.model_metadata("b")
            assert manager.slot("a").state is ModelState.REGISTERED
            assert await management.model_metadata("a") == before
            assert registry.loads == ["a", "b"], "reading metadata evicts no model"

    @in_loop
    async def test_metadata_wait_counts_against_request_limit(self) -> None:
        gate = Gate()
        async with lazy_models("a") as (registry, manager):
            management = management_of(manager, max_concurrent_requests=1)
            registry.gates["a"] = gate
            first = task(management.model_metadata("a"))
            await soon(gate.arrived.is_set)
            with pytest.raises(Overloaded):
                await management.model_configuration("a")
            gate.open()
            await first
            assert (await management.model_configuration("a"))["name"] == "a"

    @in_loop
    async def test_metadata_cancelled_during_load_releases_model(self) -> None:
        gate = Gate()
        async with lazy_models("a") as (registry, manager):
            management = management_of(manager)
            registry.gates["a"] = gate
            cancelled = task(management.model_metadata("a"))
            await soon(gate.arrived.is_set)
            cancelled.cancel()
            await soon(cancelled.done)
            gate.open()
            await soon(lambda: manager.slot("a").state is ModelState.READY)

    @in_loop
    async def test_metadata_lists_versions_of_version_policy(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path / "m", 1, 2, 3, version_policy=[1, 3]) as (_, manager):
            management = management_of(manager)
            await manager.load("m")
            assert (await management.model_metadata("m"))["versions"] == ["1", "3"]
            assert (await management.model_metadata("m", "1"))["versions"] == ["1"]
            with pytest.raises(VersionNotFound):
                await management.model_metadata("m", "2")
            assert {name: state for name, (state, _) in index(management).items()} == {
                "m/1": "READY",
                "m/2": "UNAVAILABLE",
                "m/3": "READY",
            }
            assert "version_policy" in index(management)["m/2"][1]
            statistics = (await management.model_statistics("m"))["model_stats"]
            assert [each["version"] for each in statistics] == ["1", "3"]
            # Statistics of a version that is not served are available too.
            assert (await management.model_statistics("m", "2"))["model_stats"][0]["execution_count"] == 0

    @pytest.mark.parametrize(("name", "version", "error"), [("b", "", ModelNotFound), ("a", "9", VersionNotFound)])
    @in_loop
    async def test_unknown_model_or_version_is_not_found(
        self, name: str, version: str, error: type[RoundhouseError]
    ) -> None:
        async with lazy_models("a") as (_, manager):
            management = management_of(manager)
            for read in (management.model_metadata, management.model_configuration):
                with pytest.raises(error):
                    await read(name, version)
            with pytest.raises(error):
                await management.model_statistics(name, version)


class TestLoadAndUnload:
    @pytest.mark.parametrize("name", ["config", "file:1/model.onnx"])
    @in_loop
    async def test_load_with_other_configuration_is_not_supported(self, name: str) -> None:
        async with lazy_models("a") as (registry, manager):
            management = management_of(manager)
            with pytest.raises(NotSupported, match=name):
                await management.load("a", {"priority": 1, name: "{}"})
            assert registry.loads == []
            await management.load("a", {"anything": [1]})
            assert registry.loads == ["a"]

    @in_loop
    async def test_load_and_unload_of_unknown_model_not_found(self) -> None:
        manager = make_manager(cast(Any, None))
        for operation in (management_of(manager).load("a", {"config": ""}), management_of(manager).unload("a")):
            with pytest.raises(ModelNotFound):
                await operation
