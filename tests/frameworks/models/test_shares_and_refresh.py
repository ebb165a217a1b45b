"""Versions beside the active one: canaries, shadows, and files that have changed."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from frameworks.errors import InvalidInput, InvalidModel, ModelFailed, ModelUnloaded, VersionNotFound
from frameworks.models.slot import ModelState
from frameworks.models.traffic import Share
from tests.frameworks.models.lending import asked, error_of, loaded_versions, versioned, versions
from tests.support.batch_models import Gate
from tests.support.loops import in_loop, soon, task


class TestShares:
    @in_loop
    async def test_a_canary_gets_exactly_its_share_until_it_ends(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, 2) as (_, manager):
            await manager.load("m", "1")
            await manager.split("m", "canary", Share("2", 5))
            answers = Counter([await asked(manager) for _ in range(200)])
            assert answers == {"1": 190, "2": 10}
            assert await asked(manager, named="2") == "2"
            await manager.split("m", "canary", Share("2", 50))
            assert Counter([await asked(manager) for _ in range(20)]) == {"1": 10, "2": 10}
            await manager.split("m", "canary", None)
            assert Counter([await asked(manager) for _ in range(20)]) == {"1": 20}
            assert loaded_versions(manager) == ["1"]
            with pytest.raises(VersionNotFound):
                await asked(manager, named="2")

    @in_loop
    async def test_one_that_takes_over_is_a_canary_no_more(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, 2) as (registry, manager):
            await manager.load("m", "1")
            await manager.split("m", "canary", Share("2", 5))
            await manager.load("m", "2")
            assert manager.slot("m").canary is None
            assert (loaded_versions(manager), registry.loads) == (["2"], ["m/1", "m/2"])

    @in_loop
    async def test_one_that_cannot_be_loaded_leaves_the_share_as_it_was(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, 2, 3) as (registry, manager):
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
    async def test_one_that_is_unloaded_gets_nothing_more(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, 2) as (_, manager):
            await manager.load("m", "1")
            for kind in ("canary", "shadow"):
                await manager.split("m", kind, Share("2", 100))
                assert loaded_versions(manager) == ["1", "2"]
                await manager.unload("m", "2")
                assert (manager.slot("m").canary, manager.slot("m").shadow) == (None, None)
                assert (await asked(manager), loaded_versions(manager)) == ("1", ["1"])

    @in_loop
    async def test_a_shadow_answers_nobody_and_stays_while_it_is_one(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, 2) as (_, manager):
            await manager.load("m", "1")
            await manager.split("m", "shadow", Share("2", 100))
            await manager.split("m", "canary", Share("2", 10))
            await manager.split("m", "canary", None)
            assert Counter([await asked(manager) for _ in range(20)]) == {"1": 20}
            assert loaded_versions(manager) == ["1", "2"]
            await manager.split("m", "shadow", None)
            assert loaded_versions(manager) == ["1"]

    @pytest.mark.parametrize("kind", ["canary", "shadow"])
    @in_loop
    async def test_the_one_that_answers_already_gets_no_share(self, kind: str, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1) as (_, manager):
            await manager.load("m")
            with pytest.raises(InvalidInput, match=f'{kind}: version "1" is the active version'):
                await manager.split("m", kind, Share("1", 5))


class TestRefresh:
    @in_loop
    async def test_changed_files_are_loaded_beside_what_serves(self, tmp_path: Path) -> None:
        gate = Gate()
        async with versioned(tmp_path, 1, behaviour=lambda x: gate() if x == [7] else None) as (registry, manager):
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
        async with versioned(tmp_path, 1) as (registry, manager):
            await manager.load("m")
            registry.broken.add("m/1")
            with pytest.raises(InvalidModel):
                await manager.refresh("m", frozenset("1"))
            assert await asked(manager) == "1"
            assert manager.slot("m").state is ModelState.READY

    @in_loop
    async def test_a_new_folder_is_served_as_the_entry_says(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1) as (registry, manager):
            await manager.load("m")
            versions(tmp_path, 2)
            await manager.refresh("m", frozenset("2"))
            assert (await asked(manager), registry.loads) == ("2", ["m/1", "m/2"])

    @in_loop
    async def test_one_that_was_ordered_out_stays_out(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1) as (registry, manager):
            await manager.load("m")
            await manager.unload("m")
            versions(tmp_path, 2)
            await manager.refresh("m", frozenset("12"))
            assert (loaded_versions(manager), registry.loads) == ([], ["m/1"])
            with pytest.raises(ModelUnloaded):
                await asked(manager)

    @in_loop
    async def test_one_that_failed_is_tried_again_by_who_asks(self, tmp_path: Path) -> None:
        async with versioned(tmp_path, 1, load="lazy") as (registry, manager):
            registry.broken.add("m/1")
            assert isinstance(await error_of(asked(manager)), ModelFailed)
            registry.broken.clear()
            await manager.refresh("m", frozenset("1"))
            assert await asked(manager) == "1"
