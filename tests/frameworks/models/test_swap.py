"""Versions of a model: which are served, how one takes the place of another, and what is left if it cannot."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from frameworks.errors import InvalidModel, ModelFailed, ModelUnloaded, OutOfMemory, VersionNotFound
from frameworks.models.slot import ModelState
from tests.frameworks.models.lending import asked, check_settled, lazy, loaded_versions, versioned, versions
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task


class TestPolicy:
    @in_loop
    async def test_the_newest_is_served_unless_the_entry_says_otherwise(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, 2, 10) as (_, manager):
            await manager.load_registered()
            assert (loaded_versions(manager), await asked(manager)) == (["10"], "10")
            with pytest.raises(VersionNotFound, match='no version "2"; there is 10'):
                await asked(manager, named="2")

    @pytest.mark.parametrize(("policy", "served"), [("all", ["1", "2", "3"]), ([1, 3], ["1", "3"]), ([2], ["2"])])
    @in_loop
    async def test_several_are_served_by_name_and_the_newest_to_who_names_none(
        self, policy: Any, served: list[str], tmp_path: Path
    ) -> None:
        async with versioned(tmp_path, 1, 2, 3, version_policy=policy) as (_, manager):
            await manager.load("m")
            assert loaded_versions(manager) == served
            assert [await asked(manager, named=name) for name in served] == served
            assert await asked(manager) == served[-1]
            for name in {"1", "2", "3"} - set(served):
                with pytest.raises(VersionNotFound):
                    await asked(manager, named=name)

    @in_loop
    async def test_of_several_the_newest_that_is_ready_answers(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, 2, 3, version_policy="all") as (registry, manager):
            registry.broken |= {"m/3"}
            with capture_logs():
                await manager.load_registered()
            assert (loaded_versions(manager), await asked(manager)) == (["1", "2"], "2")
            with pytest.raises(ModelFailed, match="m/3 is broken"):
                await asked(manager, named="3")
            registry.broken.clear()
            await manager.load("m")
            assert await asked(manager) == "3"

    @in_loop
    async def test_one_that_was_ordered_out_is_out_until_it_is_ordered_in(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, 2, version_policy="all") as (_, manager):
            await manager.load("m")
            await manager.unload("m", "2")
            assert await asked(manager) == "1"
            with pytest.raises(ModelUnloaded):
                await asked(manager, named="2")
            await manager.load("m", "2")
            assert await asked(manager) == "2"

    @in_loop
    async def test_a_wanted_version_that_is_not_there_fails_by_its_own_path(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, version_policy=[7]) as (_, manager):
            slot = manager.slot("m")
            assert (slot.version, slot.active.path) == ("7", tmp_path / "7")


class TestSwap:
    @in_loop
    async def test_the_old_one_answers_what_it_has_while_the_new_one_serves(self, tmp_path: Path) -> None:
        gate = Gate()
        async with versioned(tmp_path, 1, behaviour=lambda x: gate() if x == [7] else None) as (registry, manager):
            await manager.load("m")
            versions(tmp_path, 2)
            before = [task(asked(manager, x=7)), task(asked(manager, x=8))]
            await soon(gate.arrived.is_set)
            registry.gates["m/2"] = Gate()
            order = task(manager.load("m", "2"))
            await soon(registry.gates["m/2"].arrived.is_set)
            assert manager.slot("m").version == "1"  # and serves on
            registry.gates["m/2"].open()
            await soon(lambda: manager.slot("m").version == "2")
            assert await asked(manager) == "2"
            assert (order.done(), registry.of["m/1"].is_closed) == (False, False)
            gate.open()
            assert await asyncio.gather(*before) == ["1", "1"]
            await order
            assert registry.of["m/1"].is_closed
            assert loaded_versions(manager) == ["2"]

    @in_loop
    async def test_nobody_is_lost_while_versions_take_turns(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, 2) as (registry, manager):
            await manager.load("m", "1")
            answered: Counter[str] = Counter()
            is_over = asyncio.Event()

            async def customer() -> None:
                while not is_over.is_set():
                    answered[await asked(manager)] += 1

            customers = [task(customer()) for _ in range(8)]
            for version in "212121":
                await manager.load("m", version)
                await asyncio.sleep(0.005)
            is_over.set()
            await asyncio.gather(*customers)
            assert min(answered["1"], answered["2"]) > 10
            assert len(registry.loads) == 7

    @in_loop
    async def test_if_the_new_one_fails_the_old_one_serves_on(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1) as (registry, manager):
            await manager.load("m")
            versions(tmp_path, 2)
            registry.broken.add("m/2")
            with pytest.raises(InvalidModel, match="m/2 is broken"):
                await manager.load("m", "2")
            slot = manager.slot("m")
            assert (slot.version, slot.state, slot.previous) == ("1", ModelState.READY, None)
            assert (slot.versions["2"].state, slot.versions["2"].reason) == (ModelState.FAILED, "m/2 is broken")
            assert await asked(manager) == "1"
            check_settled(manager)

    @in_loop
    async def test_where_both_do_not_fit_the_caller_is_told_and_the_old_one_serves_on(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, 2, room=1) as (_, manager):
            await manager.load("m", "1")
            with pytest.raises(OutOfMemory, match=r'version "2" needs 1 GiB beside version 1, which serves'):
                await manager.load("m", "2")
            assert (loaded_versions(manager), await asked(manager)) == (["1"], "1")

    @in_loop
    async def test_others_leave_for_the_new_one_but_never_the_old_one(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, 2, room=2) as (_, manager):
            await manager.load("m", "1")
            lazy(manager, "other")
            assert await asked(manager, "other") == "1"
            await asked(manager, "other")  # the old version is the least recently used
            await manager.load("m", "2")
            assert manager.residency.ledger.evictions == {"other": 1}
            assert loaded_versions(manager) == ["2"]

    @in_loop
    async def test_a_version_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1) as (_, manager):
            for order in (manager.load, manager.unload):
                with pytest.raises(VersionNotFound, match='no version "9"; there is 1'):
                    await order("m", "9")

    @in_loop
    async def test_one_that_appears_is_found_by_its_name_or_as_the_newest(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1) as (registry, manager):
            await manager.load("m")
            versions(tmp_path, 2, 3)
            await manager.load("m", "2")
            assert await asked(manager) == "2"
            await manager.load("m")
            assert await asked(manager) == "3"
            await manager.load("m")
            assert registry.loads == ["m/1", "m/2", "m/3"]

    @in_loop
    async def test_files_that_come_later_are_found_where_they_are(self, tmp_path: Path) -> None:
        async with versioned(tmp_path / "m") as (registry, manager):
            registry.broken.add("m")
            with pytest.raises(InvalidModel):
                await manager.load("m")
            versions(tmp_path / "m", 1)
            await manager.load("m")
            assert registry.loads == ["m", "m/1"]


class TestRollback:
    @in_loop
    async def test_there_and_back_again(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, 2) as (registry, manager):
            await manager.load("m", "1")
            await manager.load("m", "2")
            await manager.rollback("m")
            assert (await asked(manager), loaded_versions(manager)) == ("1", ["1"])
            await manager.load("m")  # what was rolled back does not come back by itself
            assert await asked(manager) == "1"
            await manager.rollback("m")
            assert (await asked(manager), loaded_versions(manager)) == ("2", ["2"])
            assert registry.loads == ["m/1", "m/2", "m/1", "m/2"]

    @in_loop
    async def test_where_nothing_was_before(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1) as (_, manager):
            await manager.load("m")
            with pytest.raises(VersionNotFound):
                await manager.rollback("m")
            assert await asked(manager) == "1"

    @in_loop
    async def test_a_way_back_that_is_broken_changes_nothing(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, 2) as (registry, manager):
            await manager.load("m", "1")
            await manager.load("m", "2")
            registry.broken.add("m/1")
            with pytest.raises(InvalidModel):
                await manager.rollback("m")
            assert await asked(manager) == "2"
            registry.broken.clear()
            await manager.rollback("m")
            assert await asked(manager) == "1"
