"""Test canaries, shadows, and versions whose files have changed."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from frameworks.core.errors import InvalidInput, InvalidModel, ModelFailed, ModelUnloaded, VersionNotFound
from frameworks.manager import MLFrameworkManager
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.traffic import Share
from tests.frameworks.models.sized_registry import error_of, infer, loaded_versions, make_versions, versioned_model
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task


def backgrounds(manager: MLFrameworkManager) -> list[str]:
    """Return the loaded versions whose process has a low priority."""
    return [name for name, each in manager.slot("m").versions.items() if each.is_ready and each.is_background]


class TestShares:
    @in_loop
    async def test_canary_gets_exact_share_until_it_ends(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2) as (_, manager):
            await manager.load("m", "1")
            await manager.split("m", "canary", Share("2", 5))
            answers = Counter([await infer(manager) for _ in range(200)])
            assert answers == {"1": 190, "2": 10}
            assert await infer(manager, named="2") == "2"
            await manager.split("m", "canary", Share("2", 50))
            assert Counter([await infer(manager) for _ in range(20)]) == {"1": 10, "2": 10}
            await manager.split("m", "canary", None)
            assert Counter([await infer(manager) for _ in range(20)]) == {"1": 20}
            assert loaded_versions(manager) == ["1"]
            with pytest.raises(VersionNotFound):
                await infer(manager, named="2")

    @in_loop
    async def test_activated_canary_loses_its_share(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2) as (registry, manager):
            await manager.load("m", "1")
            await manager.split("m", "canary", Share("2", 5))
            await manager.load("m", "2")
            assert manager.slot("m").canary is None
            assert (loaded_versions(manager), registry.loads) == (["2"], ["m/1", "m/2"])

    @in_loop
    async def test_failed_canary_load_keeps_old_share(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2, 3) as (registry, manager):
            await manager.load("m", "1")
            await manager.split("m", "canary", Share("2", 50))
            registry.broken.add("m/3")
            with pytest.raises(InvalidModel):
                await manager.split("m", "canary", Share("3", 50))
            canary = manager.slot("m").canary
            assert canary is not None
            assert (canary.version, loaded_versions(manager)) == ("2", ["1", "2"])
            registry.broken.clear()
            await manager.split("m", "canary", Share("3", 50))
            assert loaded_versions(manager) == ["1", "3"]

    @in_loop
    async def test_unload_of_version_ends_its_share(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2) as (_, manager):
            await manager.load("m", "1")
            for kind in ("canary", "shadow"):
                await manager.split("m", kind, Share("2", 100))
                assert loaded_versions(manager) == ["1", "2"]
                await manager.unload("m", "2")
                assert (manager.slot("m").canary, manager.slot("m").shadow) == (None, None)
                assert (await infer(manager), loaded_versions(manager)) == ("1", ["1"])

    @in_loop
    async def test_shadow_stays_loaded_and_sends_no_answers(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2) as (_, manager):
            await manager.load("m", "1")
            await manager.split("m", "shadow", Share("2", 100))
            await manager.split("m", "canary", Share("2", 10))
            await manager.split("m", "canary", None)
            assert Counter([await infer(manager) for _ in range(20)]) == {"1": 20}
            assert loaded_versions(manager) == ["1", "2"]
            await manager.split("m", "shadow", None)
            assert loaded_versions(manager) == ["1"]

    @in_loop
    async def test_only_shadow_is_background(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2, 3) as (_, manager):
            await manager.load("m", "1")
            await manager.split("m", "canary", Share("2", 5))
            await manager.split("m", "shadow", Share("2", 100))
            assert backgrounds(manager) == []
            await manager.split("m", "shadow", Share("3", 100))
            assert backgrounds(manager) == ["3"]

    @pytest.mark.parametrize("command", ["load", "canary", "rollback"])
    @in_loop
    async def test_background_process_reloads_before_answers(self, command: str, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2) as (registry, manager):
            await manager.load("m", "2")
            await manager.load("m", "1")
            await manager.split("m", "shadow", Share("2", 100))
            manager.slot("m").versions["2"].isolation = "process"
            if command == "canary":
                await manager.split("m", "canary", Share("2", 100))
            elif command == "load":
                await manager.load("m", "2")
            else:
                await manager.rollback("m")
            assert (await infer(manager), backgrounds(manager)) == ("2", [])
            assert registry.loads[-2:] == ["m/2", "m/2"]
            assert loaded_versions(manager) == (["1", "2"] if command == "canary" else ["2"])

    @in_loop
    async def test_shadow_replaces_no_unloaded_version(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2) as (_, manager):
            await manager.load("m", "1")
            await manager.split("m", "shadow", Share("2", 100))
            await manager.unload("m", "1")
            with pytest.raises(ModelUnloaded):
                await infer(manager)

    @pytest.mark.parametrize("kind", ["canary", "shadow"])
    @in_loop
    async def test_active_version_gets_no_share(self, kind: str, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1) as (_, manager):
            await manager.load("m")
            with pytest.raises(InvalidInput, match=f'{kind}: version "1" is the active version'):
                await manager.split("m", kind, Share("1", 5))


class TestChangedFiles:
    """A load order for a version that is ready."""

    @in_loop
    async def test_load_reloads_changed_files_while_old_instances_serve(self, tmp_path: Path) -> None:
        gate = Gate()
        async with versioned_model(tmp_path, 1, behaviour=lambda x: gate() if x == [7] else None) as (
            registry,
            manager,
        ):
            file = tmp_path / "1" / "model.onnx"
            file.write_bytes(b"one")
            await manager.load("m")
            old, old_version = registry.of["m/1"], manager.slot("m").active
            for version in (None, "1"):
                await manager.load("m", version)
            assert registry.loads == ["m/1"]
            before = task(infer(manager, x=7))
            await soon(gate.arrived.is_set)
            file.write_bytes(b"other")
            registry.gates["m/1"] = Gate()
            order = task(manager.load("m"))
            await soon(registry.gates["m/1"].arrived.is_set)
            assert manager.slot("m").active is old_version
            registry.gates["m/1"].open()
            await soon(lambda: manager.slot("m").active is not old_version)
            assert await infer(manager, x=3) == "1"
            assert (registry.of["m/1"].executed, old.is_closed) == ([[3]], False)
            gate.open()
            await asyncio.gather(before, order)
            assert old.is_closed
            await manager.load("m")
            assert registry.loads == ["m/1", "m/1"]
            assert manager.slot("m").previous is None

    @in_loop
    async def test_load_of_broken_files_keeps_old_instances(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1) as (registry, manager):
            await manager.load("m")
            (tmp_path / "1" / "model.onnx").write_bytes(b"half")
            registry.broken.add("m/1")
            for version in (None, "1"):
                with pytest.raises(InvalidModel):
                    await manager.load("m", version)
            assert (await infer(manager), manager.slot("m").state) == ("1", ModelState.READY)
            registry.broken.clear()
            await manager.load("m")
            assert registry.loads == ["m/1"] * 4

    @in_loop
    async def test_load_reloads_changed_version_that_is_not_active(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2, 3, version_policy=[1, 3]) as (registry, manager):
            await manager.load("m")
            (tmp_path / "1" / "model.onnx").write_bytes(b"other")
            await manager.load("m")
            assert (registry.loads, loaded_versions(manager)) == (["m/1", "m/3", "m/1"], ["1", "3"])
            assert (await infer(manager), await infer(manager, named="1")) == ("3", "1")
            await manager.split("m", "canary", Share("2", 50))
            (tmp_path / "2" / "model.onnx").write_bytes(b"other")
            await manager.load("m", "2")
            assert registry.loads[3:] == ["m/2", "m/2"]
            assert (await infer(manager), manager.slot("m").canary) == ("2", None)

    @in_loop
    async def test_load_keeps_version_whose_files_are_gone(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1) as (registry, manager):
            (tmp_path / "1" / "model.onnx").write_bytes(b"one")
            await manager.load("m")
            (tmp_path / "1" / "model.onnx").unlink()
            await manager.load("m")
            assert (await infer(manager), registry.loads) == ("1", ["m/1"])


class TestRefresh:
    @in_loop
    async def test_changed_files_are_loaded_while_old_version_serves(self, tmp_path: Path) -> None:
        gate = Gate()
        async with versioned_model(tmp_path, 1, behaviour=lambda x: gate() if x == [7] else None) as (
            registry,
            manager,
        ):
            await manager.load("m")
            old, old_version = registry.of["m/1"], manager.slot("m").active
            before = task(infer(manager, x=7))
            await soon(gate.arrived.is_set)
            refresh = task(manager.refresh("m", frozenset("1")))
            await soon(lambda: manager.slot("m").active is not old_version)
            assert await infer(manager, x=3) == "1"
            assert (registry.of["m/1"].executed, old.is_closed) == ([[3]], False)
            gate.open()
            await asyncio.gather(before, refresh)
            assert old.is_closed
            assert manager.slot("m").previous is None

    @in_loop
    async def test_refresh_with_broken_files_keeps_old_version(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1) as (registry, manager):
            await manager.load("m")
            registry.broken.add("m/1")
            with pytest.raises(InvalidModel):
                await manager.refresh("m", frozenset("1"))
            assert await infer(manager) == "1"
            assert manager.slot("m").state is ModelState.READY

    @in_loop
    async def test_refresh_activates_new_folder(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1) as (registry, manager):
            await manager.load("m")
            make_versions(tmp_path, 2)
            await manager.refresh("m", frozenset("2"))
            assert (await infer(manager), registry.loads) == ("2", ["m/1", "m/2"])

    @in_loop
    async def test_refresh_keeps_unloaded_model_unloaded(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1) as (registry, manager):
            await manager.load("m")
            await manager.unload("m")
            make_versions(tmp_path, 2)
            await manager.refresh("m", frozenset("12"))
            assert (loaded_versions(manager), registry.loads) == ([], ["m/1"])
            with pytest.raises(ModelUnloaded):
                await infer(manager)

    @in_loop
    async def test_refresh_of_failed_version_allows_next_request(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, load="lazy") as (registry, manager):
            registry.broken.add("m/1")
            assert isinstance(await error_of(infer(manager)), ModelFailed)
            registry.broken.clear()
            await manager.refresh("m", frozenset("1"))
            assert await infer(manager) == "1"
