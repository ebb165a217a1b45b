"""What is told of models that come, go and fail, and the orders that are given them."""

from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from app.admin.open_inference.management import Management
from app.inference.lifecycle import Lifecycle
from app.inference.pipeline import Bounds, Pipeline
from app.observability.metrics import Observer
from app.protocols.errors import NotSupported
from frameworks.errors import (
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
from frameworks.models.slot import ModelState
from frameworks.scheduling.admission import RequestLimit
from tests.app.protocols.open_inference.messages import check_message
from tests.frameworks.models.lending import asked, kill, versioned, yard
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task
from tests.support.managing import make_manager, register


def management_of(
    manager: MLFrameworkManager, startup_models: tuple[str, ...] = (), max_concurrent_requests: int | None = None
) -> Management:
    limit = RequestLimit("the server", None, max_concurrent_requests)
    nothing: Any = None
    lifecycle = Lifecycle(manager, startup_models)
    return Management(Pipeline(manager, nothing, nothing, Observer("none", 1000), lifecycle, Bounds(limit, 1000, None)))


def drain(management: Management) -> None:
    cast(Any, management)._lifecycle.drain()


def index(management: Management, ready_only: bool = False) -> dict[str, tuple[str, str]]:
    entries = management.repository_index(ready_only)
    check_message("RepositoryIndexResponse", {"models": entries})
    return {f"{each['name']}/{each['version']}": (each["state"], each["reason"]) for each in entries}


class TestReadiness:
    @in_loop
    async def test_a_lazy_model_is_ready_before_it_is_in_memory(self) -> None:
        async with yard("a") as (registry, manager):
            management = management_of(manager)
            assert management.why_model_is_not_ready("a") is None
            assert index(management)["a/1"] == ("READY", "not in memory; whoever asks for it waits for its load")
            assert registry.loads == []
            await asked(manager, "a")
            assert index(management)["a/1"] == ("READY", "")

    @in_loop
    async def test_one_that_has_left_to_make_room_is_ready_and_one_that_was_ordered_out_is_not(self) -> None:
        async with yard("ab", room=1) as (_, manager):
            management = management_of(manager)
            await asked(manager, "a")
            await asked(manager, "b")
            assert manager.slot("a").state is ModelState.REGISTERED
            assert management.why_model_is_not_ready("a") is None
            await management.unload("b")
            assert isinstance(management.why_model_is_not_ready("b"), ModelUnloaded)
            assert index(management)["b/1"] == ("UNAVAILABLE", "unloaded")
            assert list(index(management, ready_only=True)) == ["a/1"]
            await management.load("b", {})
            assert management.why_model_is_not_ready("b") is None

    @in_loop
    async def test_one_that_failed_is_not_ready_and_says_why(self) -> None:
        async with yard("a") as (registry, manager):
            management = management_of(manager)
            registry.broken.add("a")
            with capture_logs():
                with pytest.raises(ModelFailed, match="a is broken"):
                    await management.load("a", {})
                assert isinstance(management.why_model_is_not_ready("a"), ModelFailed)
            state, reason = index(management)["a/1"]
            assert (state, "a is broken" in reason) == ("UNAVAILABLE", True)
            with pytest.raises(ModelFailed, match="a is broken"):
                await management.model_metadata("a")

    @in_loop
    async def test_one_whose_thread_died_is_not_ready(self) -> None:
        def die(x: list[object]) -> None:
            if x == ["die"]:
                raise SystemExit

        async with yard("a", behaviour=die) as (_, manager):
            management = management_of(manager)
            await kill(manager, "a")
            assert isinstance(management.why_model_is_not_ready("a"), ModelFailed)

    @in_loop
    async def test_a_start_up_model_is_not_ready_before_its_first_load(self) -> None:
        gate = Gate()
        async with yard("") as (registry, manager):
            register(manager, "a")
            management = management_of(manager, ("a",))
            registry.gates["a"] = gate
            error = management.why_not_ready()
            assert isinstance(error, ModelLoading)
            assert "a" in error.message
            assert index(management)["a/1"][0] == "UNAVAILABLE"
            loading = task(manager.load_registered())
            await soon(gate.arrived.is_set)
            assert isinstance(management.why_model_is_not_ready("a"), ModelLoading)
            assert index(management)["a/1"][0] == "LOADING"
            with pytest.raises(ModelLoading):
                await management.model_metadata("a")
            gate.open()
            await loading
            assert management.why_not_ready() is None
            assert management.why_model_is_not_ready("a") is None

    @in_loop
    async def test_one_that_is_being_unloaded_says_so(self) -> None:
        gate = Gate()
        async with yard("a", behaviour=gate) as (_, manager):
            management = management_of(manager)
            asking = task(asked(manager, "a"))
            await soon(gate.arrived.is_set)
            leaving = task(management.unload("a"))
            await soon(lambda: manager.slot("a").state is ModelState.DRAINING)
            assert index(management)["a/1"] == ("UNLOADING", "unloaded")
            gate.open()
            await asking
            await leaving
            assert index(management)["a/1"] == ("UNAVAILABLE", "unloaded")

    @in_loop
    async def test_nothing_is_ready_while_the_server_drains(self) -> None:
        async with yard("a") as (_, manager):
            management = management_of(manager)
            await asked(manager, "a")
            drain(management)
            assert isinstance(management.why_not_ready(), Draining)
            assert isinstance(management.why_model_is_not_ready("a"), Draining)
            with pytest.raises(Draining):
                await management.load("a", {})
            assert (await management.model_metadata("a"))["name"] == "a"

    @in_loop
    async def test_who_is_unknown_is_not_ready(self) -> None:
        async with yard("a") as (_, manager):
            management = management_of(manager)
            assert isinstance(management.why_model_is_not_ready("b"), ModelNotFound)
            assert isinstance(management.why_model_is_not_ready("a", "2"), VersionNotFound)


class TestWhatIsTold:
    @in_loop
    async def test_a_model_that_was_never_loaded_is_brought_in(self) -> None:
        async with yard("a") as (registry, manager):
            management = management_of(manager)
            metadata = await management.model_metadata("a")
            assert metadata["inputs"] == [{"name": "x", "datatype": "INT64", "shape": [-1]}]
            assert registry.loads == ["a"]
            assert (await management.model_configuration("a"))["name"] == "a"
            assert registry.loads == ["a"]

    @in_loop
    async def test_what_has_left_to_make_room_is_told_from_memory(self) -> None:
        async with yard("ab", room=1) as (registry, manager):
            management = management_of(manager)
            before = await management.model_metadata("a")
            await management.model_metadata("b")
            assert manager.slot("a").state is ModelState.REGISTERED
            assert await management.model_metadata("a") == before
            assert registry.loads == ["a", "b"], "nobody is sent out for a look"

    @in_loop
    async def test_who_waits_for_it_takes_a_place_and_gives_it_back(self) -> None:
        gate = Gate()
        async with yard("a") as (registry, manager):
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
    async def test_one_who_leaves_while_it_loads_leaves_nothing_behind(self) -> None:
        gate = Gate()
        async with yard("a") as (registry, manager):
            management = management_of(manager)
            registry.gates["a"] = gate
            gone = task(management.model_metadata("a"))
            await soon(gate.arrived.is_set)
            gone.cancel()
            await soon(gone.done)
            gate.open()
            await soon(lambda: manager.slot("a").state is ModelState.READY)

    @in_loop
    async def test_versions_that_may_be_asked_for(self, tmp_path: Path) -> None:
        async with versioned(tmp_path / "m", 1, 2, 3, version_policy=[1, 3]) as (_, manager):
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
            statistics = management.model_statistics("m")["model_stats"]
            assert [each["version"] for each in statistics] == ["1", "3"]
            # One that is not served can be asked about all the same.
            assert management.model_statistics("m", "2")["model_stats"][0]["execution_count"] == 0

    @pytest.mark.parametrize(("name", "version", "error"), [("b", "", ModelNotFound), ("a", "9", VersionNotFound)])
    @in_loop
    async def test_what_is_not_there(self, name: str, version: str, error: type[RoundhouseError]) -> None:
        async with yard("a") as (_, manager):
            management = management_of(manager)
            for told in (management.model_metadata, management.model_configuration):
                with pytest.raises(error):
                    await told(name, version)
            with pytest.raises(error):
                management.model_statistics(name, version)


class TestOrders:
    @pytest.mark.parametrize("name", ["config", "file:1/model.onnx"])
    @in_loop
    async def test_a_model_is_loaded_as_its_entry_says(self, name: str) -> None:
        async with yard("a") as (registry, manager):
            management = management_of(manager)
            with pytest.raises(NotSupported, match=name):
                await management.load("a", {"priority": 1, name: "{}"})
            assert registry.loads == []
            await management.load("a", {"anything": [1]})
            assert registry.loads == ["a"]

    @in_loop
    async def test_who_is_unknown_is_not_found(self) -> None:
        manager = make_manager(cast(Any, None))
        for order in (management_of(manager).load("a", {"config": ""}), management_of(manager).unload("a")):
            with pytest.raises(ModelNotFound):
                await order
