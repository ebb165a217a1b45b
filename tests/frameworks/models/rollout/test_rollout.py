"""Test which versions are served, how a version replaces another, and failed rollouts."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from frameworks.core.errors import InvalidModel, ModelFailed, ModelUnloaded, OutOfMemory, VersionNotFound
from frameworks.models.versions.states import ModelState
from tests.frameworks.models.sized_registry import (
    check_settled,
    infer,
    loaded_versions,
    make_versions,
    register_lazy,
    versioned_model,
)
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task


class TestPolicy:
    @in_loop
    async def test_newest_version_is_served_by_default(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2, 10) as (_, manager):
            await manager.load_registered()
            assert (loaded_versions(manager), await infer(manager)) == (["10"], "10")
            with pytest.raises(VersionNotFound, match='no version "2"; there is 10'):
                await infer(manager, named="2")

    @pytest.mark.parametrize(("policy", "served"), [("all", ["1", "2", "3"]), ([1, 3], ["1", "3"]), ([2], ["2"])])
    @in_loop
    async def test_policy_serves_several_versions_newest_by_default(
        self, policy: Any, served: list[str], tmp_path: Path
    ) -> None:
        async with versioned_model(tmp_path, 1, 2, 3, version_policy=policy) as (_, manager):
            await manager.load("m")
            assert loaded_versions(manager) == served
            assert [await infer(manager, named=name) for name in served] == served
            assert await infer(manager) == served[-1]
            for name in {"1", "2", "3"} - set(served):
                with pytest.raises(VersionNotFound):
                    await infer(manager, named=name)

    @in_loop
    async def test_newest_ready_version_answers(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2, 3, version_policy="all") as (registry, manager):
            registry.broken |= {"m/3"}
            with capture_logs():
                await manager.load_registered()
            assert (loaded_versions(manager), await infer(manager)) == (["1", "2"], "2")
            with pytest.raises(ModelFailed, match="m/3 is broken"):
                await infer(manager, named="3")
            registry.broken.clear()
            await manager.load("m")
            assert await infer(manager) == "3"

    @in_loop
    async def test_unloaded_version_stays_unloaded_until_load_command(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2, version_policy="all") as (_, manager):
            await manager.load("m")
            await manager.unload("m", "2")
            assert await infer(manager) == "1"
            with pytest.raises(ModelUnloaded):
                await infer(manager, named="2")
            await manager.load("m", "2")
            assert await infer(manager) == "2"

    @in_loop
    async def test_absent_version_of_policy_has_its_own_path(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, version_policy=[7]) as (_, manager):
            slot = manager.slot("m")
            assert (slot.version, slot.active.path) == ("7", tmp_path / "7")


class TestRollout:
    @in_loop
    async def test_old_version_finishes_its_requests_during_rollout(self, tmp_path: Path) -> None:
        gate = Gate()
        async with versioned_model(tmp_path, 1, behaviour=lambda x: gate() if x == [7] else None) as (
            registry,
            manager,
        ):
            await manager.load("m")
            make_versions(tmp_path, 2)
            before = [task(infer(manager, x=7)), task(infer(manager, x=8))]
            await soon(gate.arrived.is_set)
            registry.gates["m/2"] = Gate()
            order = task(manager.load("m", "2"))
            await soon(registry.gates["m/2"].arrived.is_set)
            assert manager.slot("m").version == "1"  # it continues to serve
            registry.gates["m/2"].open()
            await soon(lambda: manager.slot("m").version == "2")
            assert await infer(manager) == "2"
            assert (order.done(), registry.of["m/1"].is_closed) == (False, False)
            gate.open()
            assert await asyncio.gather(*before) == ["1", "1"]
            await order
            assert registry.of["m/1"].is_closed
            assert loaded_versions(manager) == ["2"]

    @in_loop
    async def test_repeated_rollouts_answer_every_request(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2) as (registry, manager):
            await manager.load("m", "1")
            answered: Counter[str] = Counter()
            is_over = asyncio.Event()

            async def client() -> None:
                while not is_over.is_set():
                    answered[await infer(manager)] += 1

            clients = [task(client()) for _ in range(8)]
            for version in "212121":
                await manager.load("m", version)
                before = answered[version]
                await soon(lambda version=version, before=before: answered[version] >= before + 5)  # type: ignore[misc]
            is_over.set()
            await asyncio.gather(*clients)
            assert min(answered["1"], answered["2"]) > 10
            assert len(registry.loads) == 7

    @in_loop
    async def test_failed_rollout_keeps_old_version(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1) as (registry, manager):
            await manager.load("m")
            make_versions(tmp_path, 2)
            registry.broken.add("m/2")
            with pytest.raises(InvalidModel, match="m/2 is broken"):
                await manager.load("m", "2")
            slot = manager.slot("m")
            assert (slot.version, slot.state, slot.previous) == ("1", ModelState.READY, None)
            assert (slot.versions["2"].state, slot.versions["2"].reason) == (ModelState.FAILED, "m/2 is broken")
            assert await infer(manager) == "1"
            check_settled(manager)

    @in_loop
    async def test_rollout_without_memory_keeps_old_version(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2, capacity_gib=1) as (_, manager):
            await manager.load("m", "1")
            with pytest.raises(OutOfMemory, match=r'version "2" needs 1 GiB beside version 1, which serves'):
                await manager.load("m", "2")
            assert (loaded_versions(manager), await infer(manager)) == (["1"], "1")

    @in_loop
    async def test_rollout_evicts_other_models_not_old_version(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2, capacity_gib=2) as (_, manager):
            await manager.load("m", "1")
            register_lazy(manager, "other")
            assert await infer(manager, "other") == "1"
            await infer(manager, "other")  # the old version is the least recently used
            await manager.load("m", "2")
            assert manager.residency.ledger.evictions == {"other": 1}
            assert loaded_versions(manager) == ["2"]

    @in_loop
    async def test_absent_version_is_refused_by_name(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1) as (_, manager):
            for order in (manager.load, manager.unload):
                with pytest.raises(VersionNotFound, match='no version "9"; there is 1'):
                    await order("m", "9")

    @in_loop
    async def test_new_folder_is_found_by_load(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1) as (registry, manager):
            await manager.load("m")
            make_versions(tmp_path, 2, 3)
            await manager.load("m", "2")
            assert await infer(manager) == "2"
            await manager.load("m")
            assert await infer(manager) == "3"
            await manager.load("m")
            assert registry.loads == ["m/1", "m/2", "m/3"]

    @in_loop
    async def test_version_folder_created_after_failure_is_loaded(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path / "m") as (registry, manager):
            registry.broken.add("m")
            with pytest.raises(InvalidModel):
                await manager.load("m")
            make_versions(tmp_path / "m", 1)
            await manager.load("m")
            assert registry.loads == ["m", "m/1"]


class TestRollback:
    @in_loop
    async def test_rollback_switches_between_two_versions(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2) as (registry, manager):
            await manager.load("m", "1")
            await manager.load("m", "2")
            await manager.rollback("m")
            assert (await infer(manager), loaded_versions(manager)) == ("1", ["1"])
            await manager.load("m")  # a version that was rolled back is not activated again
            assert await infer(manager) == "1"
            await manager.rollback("m")
            assert (await infer(manager), loaded_versions(manager)) == ("2", ["2"])
            assert registry.loads == ["m/1", "m/2", "m/1", "m/2"]

    @in_loop
    async def test_rollback_without_previous_version_is_refused(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1) as (_, manager):
            await manager.load("m")
            with pytest.raises(VersionNotFound):
                await manager.rollback("m")
            assert await infer(manager) == "1"

    @in_loop
    async def test_failed_rollback_keeps_active_version(self, tmp_path: Path) -> None:
        async with versioned_model(tmp_path, 1, 2) as (registry, manager):
            await manager.load("m", "1")
            await manager.load("m", "2")
            registry.broken.add("m/1")
            with pytest.raises(InvalidModel):
                await manager.rollback("m")
            assert await infer(manager) == "2"
            registry.broken.clear()
            await manager.rollback("m")
            assert await infer(manager) == "1"
