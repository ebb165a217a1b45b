"""Versions of a model: which are served, how one takes the place of another, and what is left if it cannot."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from frameworks.errors import (
    InvalidInput,
    InvalidModel,
    ModelFailed,
    ModelUnloaded,
    OutOfMemory,
    VersionNotFound,
)
from frameworks.manager import MLFrameworkManager
from frameworks.slot import ModelState
from frameworks.traffic import Share
from tests.frameworks.batch_models import Gate
from tests.frameworks.fake_probe import GIB
from tests.frameworks.lending import Yard, asked, check_settled, error_of, lazy, versions
from tests.frameworks.loops import in_loop, soon, task
from tests.frameworks.managing import make_manager, register


@asynccontextmanager
async def yard(
    path: Path, *numbers: int, room: int = 9, behaviour: Any = None, **settings: Any
) -> AsyncIterator[tuple[Yard, MLFrameworkManager]]:
    """The model "m" with these version folders, and room for so many GiB; a version takes one."""
    registry = Yard(behaviour)
    async with make_manager(registry, max_model_bytes=room * GIB) as manager:
        register(manager, file=str(versions(path, *numbers)), **settings)
        yield registry, manager
        check_settled(manager)
    assert registry.are_all_closed
    assert manager.residents.room.budget.used("cpu") == 0


def loaded(manager: MLFrameworkManager) -> list[str]:
    return [name for name, version in manager.slot("m").versions.items() if version.is_ready]


class TestPolicy:
    @in_loop
    async def test_the_newest_is_served_unless_the_entry_says_otherwise(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1, 2, 10) as (_, manager):
            await manager.load_registered()
            assert (loaded(manager), await asked(manager)) == (["10"], "10")
            with pytest.raises(VersionNotFound, match='no version "2"; there is 10'):
                await asked(manager, named="2")

    @pytest.mark.parametrize(("policy", "served"), [("all", ["1", "2", "3"]), ([1, 3], ["1", "3"]), ([2], ["2"])])
    @in_loop
    async def test_several_are_served_by_name_and_the_newest_to_who_names_none(
        self, policy: Any, served: list[str], tmp_path: Path
    ) -> None:
        async with yard(tmp_path, 1, 2, 3, version_policy=policy) as (_, manager):
            await manager.load("m")
            assert loaded(manager) == served
            assert [await asked(manager, named=name) for name in served] == served
            assert await asked(manager) == served[-1]
            for name in {"1", "2", "3"} - set(served):
                with pytest.raises(VersionNotFound):
                    await asked(manager, named=name)

    @in_loop
    async def test_of_several_the_newest_that_is_ready_answers(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1, 2, 3, version_policy="all") as (registry, manager):
            registry.broken |= {"m/3"}
            with capture_logs():
                await manager.load_registered()
            assert (loaded(manager), await asked(manager)) == (["1", "2"], "2")
            with pytest.raises(ModelFailed, match="m/3 is broken"):
                await asked(manager, named="3")
            registry.broken.clear()
            await manager.load("m")
            assert await asked(manager) == "3"

    @in_loop
    async def test_one_that_was_ordered_out_is_out_until_it_is_ordered_in(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1, 2, version_policy="all") as (_, manager):
            await manager.load("m")
            await manager.unload("m", "2")
            assert await asked(manager) == "1"
            with pytest.raises(ModelUnloaded):
                await asked(manager, named="2")
            await manager.load("m", "2")
            assert await asked(manager) == "2"

    @in_loop
    async def test_a_wanted_version_that_is_not_there_fails_by_its_own_path(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1, version_policy=[7]) as (_, manager):
            slot = manager.slot("m")
            assert (slot.version, slot.active.path) == ("7", tmp_path / "7")


class TestSwap:
    @in_loop
    async def test_the_old_one_answers_what_it_has_while_the_new_one_serves(self, tmp_path: Path) -> None:
        gate = Gate()
        async with yard(tmp_path, 1, behaviour=lambda x: gate() if x == [7] else None) as (registry, manager):
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
            assert loaded(manager) == ["2"]

    @in_loop
    async def test_nobody_is_lost_while_versions_take_turns(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1, 2) as (registry, manager):
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
        async with yard(tmp_path, 1) as (registry, manager):
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
        async with yard(tmp_path, 1, 2, room=1) as (_, manager):
            await manager.load("m", "1")
            with pytest.raises(OutOfMemory, match=r'version "2" needs 1 GiB beside version 1, which serves'):
                await manager.load("m", "2")
            assert (loaded(manager), await asked(manager)) == (["1"], "1")

    @in_loop
    async def test_others_leave_for_the_new_one_but_never_the_old_one(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1, 2, room=2) as (_, manager):
            await manager.load("m", "1")
            lazy(manager, "other")
            assert await asked(manager, "other") == "1"
            await asked(manager, "other")  # the old version is the least recently used
            await manager.load("m", "2")
            assert manager.residents.room.evictions == {"other": 1}
            assert loaded(manager) == ["2"]

    @in_loop
    async def test_a_version_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1) as (_, manager):
            for order in (manager.load, manager.unload):
                with pytest.raises(VersionNotFound, match='no version "9"; there is 1'):
                    await order("m", "9")

    @in_loop
    async def test_one_that_appears_is_found_by_its_name_or_as_the_newest(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1) as (registry, manager):
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
        async with yard(tmp_path / "m") as (registry, manager):
            registry.broken.add("m")
            with pytest.raises(InvalidModel):
                await manager.load("m")
            versions(tmp_path / "m", 1)
            await manager.load("m")
            assert registry.loads == ["m", "m/1"]


class TestRollback:
    @in_loop
    async def test_there_and_back_again(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1, 2) as (registry, manager):
            await manager.load("m", "1")
            await manager.load("m", "2")
            await manager.rollback("m")
            assert (await asked(manager), loaded(manager)) == ("1", ["1"])
            await manager.load("m")  # what was rolled back does not come back by itself
            assert await asked(manager) == "1"
            await manager.rollback("m")
            assert (await asked(manager), loaded(manager)) == ("2", ["2"])
            assert registry.loads == ["m/1", "m/2", "m/1", "m/2"]

    @in_loop
    async def test_where_nothing_was_before(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1) as (_, manager):
            await manager.load("m")
            with pytest.raises(VersionNotFound):
                await manager.rollback("m")
            assert await asked(manager) == "1"

    @in_loop
    async def test_a_way_back_that_is_broken_changes_nothing(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1, 2) as (registry, manager):
            await manager.load("m", "1")
            await manager.load("m", "2")
            registry.broken.add("m/1")
            with pytest.raises(InvalidModel):
                await manager.rollback("m")
            assert await asked(manager) == "2"
            registry.broken.clear()
            await manager.rollback("m")
            assert await asked(manager) == "1"


class TestShares:
    @in_loop
    async def test_a_canary_gets_exactly_its_share_until_it_ends(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1, 2) as (_, manager):
            await manager.load("m", "1")
            await manager.split("m", "canary", Share("2", 5))
            answers = Counter([await asked(manager) for _ in range(200)])
            assert answers == {"1": 190, "2": 10}
            assert await asked(manager, named="2") == "2"
            await manager.split("m", "canary", Share("2", 50))
            assert Counter([await asked(manager) for _ in range(20)]) == {"1": 10, "2": 10}
            await manager.split("m", "canary", None)
            assert Counter([await asked(manager) for _ in range(20)]) == {"1": 20}
            assert loaded(manager) == ["1"]
            with pytest.raises(VersionNotFound):
                await asked(manager, named="2")

    @in_loop
    async def test_one_that_takes_over_is_a_canary_no_more(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1, 2) as (registry, manager):
            await manager.load("m", "1")
            await manager.split("m", "canary", Share("2", 5))
            await manager.load("m", "2")
            assert manager.slot("m").canary is None
            assert (loaded(manager), registry.loads) == (["2"], ["m/1", "m/2"])

    @in_loop
    async def test_one_that_cannot_be_loaded_leaves_the_share_as_it_was(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1, 2, 3) as (registry, manager):
            await manager.load("m", "1")
            await manager.split("m", "canary", Share("2", 50))
            registry.broken.add("m/3")
            with pytest.raises(InvalidModel):
                await manager.split("m", "canary", Share("3", 50))
            canary = manager.slot("m").canary
            assert canary is not None
            assert (canary.version, loaded(manager)) == ("2", ["1", "2"])
            registry.broken.clear()
            await manager.split("m", "canary", Share("3", 50))
            assert loaded(manager) == ["1", "3"]

    @in_loop
    async def test_one_that_is_unloaded_gets_nothing_more(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1, 2) as (_, manager):
            await manager.load("m", "1")
            for kind in ("canary", "shadow"):
                await manager.split("m", kind, Share("2", 100))
                assert loaded(manager) == ["1", "2"]
                await manager.unload("m", "2")
                assert (manager.slot("m").canary, manager.slot("m").shadow) == (None, None)
                assert (await asked(manager), loaded(manager)) == ("1", ["1"])

    @in_loop
    async def test_a_shadow_answers_nobody_and_stays_while_it_is_one(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1, 2) as (_, manager):
            await manager.load("m", "1")
            await manager.split("m", "shadow", Share("2", 100))
            await manager.split("m", "canary", Share("2", 10))
            await manager.split("m", "canary", None)
            assert Counter([await asked(manager) for _ in range(20)]) == {"1": 20}
            assert loaded(manager) == ["1", "2"]
            await manager.split("m", "shadow", None)
            assert loaded(manager) == ["1"]

    @pytest.mark.parametrize("kind", ["canary", "shadow"])
    @in_loop
    async def test_the_one_that_answers_already_gets_no_share(self, kind: str, tmp_path: Path) -> None:
        async with yard(tmp_path, 1) as (_, manager):
            await manager.load("m")
            with pytest.raises(InvalidInput, match=f'{kind}: version "1" answers already'):
                await manager.split("m", kind, Share("1", 5))


class TestRefresh:
    @in_loop
    async def test_changed_files_are_loaded_beside_what_serves(self, tmp_path: Path) -> None:
        gate = Gate()
        async with yard(tmp_path, 1, behaviour=lambda x: gate() if x == [7] else None) as (registry, manager):
            await manager.load("m")
            old, old_version = registry.of["m/1"], manager.slot("m").active
            before = task(asked(manager, x=7))
            await soon(gate.arrived.is_set)
            refresh = task(manager.refresh("m", frozenset("1")))
            await soon(lambda: manager.slot("m").active is not old_version)
            assert await asked(manager, x=3) == "1"
            assert (registry.of["m/1"].executed, old.is_closed) == ([[3]], False)
            gate.open()
            await asyncio.gather(before, refresh)
            assert old.is_closed
            assert manager.slot("m").previous is None

    @in_loop
    async def test_if_they_are_broken_what_serves_serves_on(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1) as (registry, manager):
            await manager.load("m")
            registry.broken.add("m/1")
            with pytest.raises(InvalidModel):
                await manager.refresh("m", frozenset("1"))
            assert await asked(manager) == "1"
            assert manager.slot("m").state is ModelState.READY

    @in_loop
    async def test_a_new_folder_is_served_as_the_entry_says(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1) as (registry, manager):
            await manager.load("m")
            versions(tmp_path, 2)
            await manager.refresh("m", frozenset("2"))
            assert (await asked(manager), registry.loads) == ("2", ["m/1", "m/2"])

    @in_loop
    async def test_one_that_was_ordered_out_stays_out(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1) as (registry, manager):
            await manager.load("m")
            await manager.unload("m")
            versions(tmp_path, 2)
            await manager.refresh("m", frozenset("12"))
            assert (loaded(manager), registry.loads) == ([], ["m/1"])
            with pytest.raises(ModelUnloaded):
                await asked(manager)

    @in_loop
    async def test_one_that_failed_is_tried_again_by_who_asks(self, tmp_path: Path) -> None:
        async with yard(tmp_path, 1, load="lazy") as (registry, manager):
            registry.broken.add("m/1")
            assert isinstance(await error_of(asked(manager)), InvalidModel)
            registry.broken.clear()
            await manager.refresh("m", frozenset("1"))
            assert await asked(manager) == "1"
