"""Versions in replicas: several at once, changed files, failed loads, requests that end their replica."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from extensions.ray.ingress.group import ReplicaGroup
from extensions.ray.ingress.group_startup import Deployed, open_group
from extensions.ray.replica import hosted_versions
from frameworks.core.errors import InvalidModel, ModelFailed
from frameworks.engine.contract import RunCounts
from tests.extensions.ray.replicas import NODE, Cluster, ask, cluster, serving
from tests.support.engine_hosts import SETTINGS, ArrayModel
from tests.support.loops import HANGS_AFTER_S, in_loop, soon

POISON = -1.0


async def version_of(there: Cluster, name: str, path: Path) -> ReplicaGroup:
    """Open the engine of another version."""
    deployed = Deployed(there.running, there._wake, NODE, cold_start_s=HANGS_AFTER_S)
    group, _ = await open_group(deployed, SETTINGS, RunCounts(), name, str(path), 1)
    return group


@in_loop
async def _check_rollout(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_versions, "UNUSED_S", 0.01)
    async with cluster(2) as there:
        first = await version_of(there, "1", path / "1")
        second = await version_of(there, "2", path / "2")
        await soon(lambda: first.num_replicas == second.num_replicas == 2)
        assert (await ask(first, 1.0), await ask(second, 2.0)) == (2.0, 4.0)
        await first.close()
        for replica in there.replicas.values():
            await soon(lambda replica=replica: [each.name for each in replica.versions.all] == ["2"])  # type: ignore[misc]
            await soon(lambda replica=replica: replica.models[0].is_closed)  # type: ignore[misc]
        assert await ask(second, 3.0) == 6.0
        await second.close()
        # The last version stays for the next ingress.
        await asyncio.sleep(0.05)
        assert all(len(replica.versions.all) == 1 for replica in there.replicas.values())


def test_unused_version_is_unloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _check_rollout(tmp_path, monkeypatch)


@in_loop
async def _check_changed_files(path: Path) -> None:
    async with cluster() as there:
        (replica,) = there.replicas.values()
        await asyncio.to_thread(path.write_text, "first")
        first = await version_of(there, "1", path)
        same = await version_of(there, "1", path)
        assert len(replica.models) == 1
        await asyncio.to_thread(path.write_text, "second one")
        changed = await version_of(there, "1", path)
        assert len(replica.models) == 2
        for group in (first, same, changed):
            assert await ask(group, 1.0) == 2.0
            await group.close()


def test_changed_files_are_loaded_again(tmp_path: Path) -> None:
    _check_changed_files(tmp_path / "model.onnx")


@in_loop
async def test_failed_load_is_tried_again() -> None:
    failures = [InvalidModel("files: expected a graph, got none; export it again")]

    def make(_: str) -> Any:
        if failures:
            raise failures.pop()
        return ArrayModel()

    async with cluster(1, make) as there:
        with pytest.raises(InvalidModel):
            await there.group()
        await soon(lambda: not next(iter(there.replicas.values())).clients)
        group = await there.group()
        assert await ask(group, 1.0) == 2.0
        await group.close()


@in_loop
async def test_request_that_ends_replicas_is_refused() -> None:
    """A request that ends each replica fails after three, and is then refused; all others are answered."""
    there: Cluster
    loop = asyncio.get_running_loop()

    def make(_: str) -> ArrayModel:
        def end(values: list[object]) -> None:
            if POISON in values:
                replica = next(each for each in there.replicas.values() if model in each.models)
                asyncio.run_coroutine_threadsafe(_end(there, replica), loop).result()

        model = ArrayModel(end, runs_by_shape=False)
        return model

    async with serving(1, make) as (there, group):
        for _ in range(4):
            await there.start()
        await soon(lambda: group.num_replicas == 5)
        for _ in range(2):
            with pytest.raises(ModelFailed):
                await ask(group, POISON)
            assert await ask(group, 1.0) == 2.0
        # The first end is not counted where the report of the run was lost with it, and the next follows at once.
        assert there.counts.restarts["replica"] in (3, 4)
        assert len(there.running.addresses) == 5 - there.counts.restarts["replica"]


async def _end(there: Cluster, replica: Any) -> None:
    replica.die()
    there.withdraw(replica)
