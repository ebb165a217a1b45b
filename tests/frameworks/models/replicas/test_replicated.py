"""Models that several workers share, in real engine processes and in every worker."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from frameworks.core.errors import ModelFailed
from frameworks.engine.process.client import process_registry
from frameworks.engine.process.client.running_process import RunningProcess
from frameworks.models.versions.states import ModelState
from tests.support.loops import in_loop, settle, soon, task
from tests.support.managing import opened, permit
from tests.support.models.onnx_crashes import POISON, TRAPS
from tests.support.replicated import Replicated, replicated


def pid_of(whole: Replicated, name: str = "m") -> int:
    """Return the engine process of a model."""
    [engine] = [e for e in whole.publisher._engines.values() if e.version.model.name == name and e.is_ready]
    [process] = engine._processes
    assert process.started is not None
    link = process.started.link
    assert isinstance(link, RunningProcess)
    return link.pid


async def answers(whole: Replicated) -> list[int]:
    """Return the answers of all workers to a request each."""
    return [await replica.ask(5) for replica in whole.replicas.values()]


@in_loop
async def test_workers_share_one_process(tmp_path: Path) -> None:
    async with replicated(tmp_path) as whole:
        whole.register(isolation="process")
        slot = await whole.load()
        assert process_registry.count() == 1
        assert await answers(whole) == [-5, -5]
        await soon(lambda: slot.batches.sizes.total() == 2)
        await whole.manager.unload("m")
        await whole.publisher.applied()
        assert [replica.models.slot("m").state for replica in whole.replicas.values()] == [ModelState.UNLOADED] * 2
        await soon(lambda: not process_registry.count())


@in_loop
async def test_small_model_runs_in_every_worker(tmp_path: Path) -> None:
    async with replicated(tmp_path) as whole:
        whole.register()
        slot = await whole.load()
        assert slot.isolation == "none"
        assert process_registry.count() == 0
        assert await answers(whole) == [-5, -5]
        await soon(lambda: slot.batches.sizes == {1: 2})
        await whole.manager.remove("m")
        await soon(lambda: not any(replica.models.slots for replica in whole.replicas.values()))


@in_loop
async def test_request_of_worker_loads_model_everywhere(tmp_path: Path) -> None:
    async with replicated(tmp_path) as whole:
        slot = whole.register(isolation="process", load="lazy")
        await whole.publisher.applied()
        assert await asyncio.gather(*(replica.ask(2) for replica in whole.replicas.values())) == [-2, -2]
        assert slot.loads == 1


@pytest.mark.extended
@in_loop
async def test_crash_is_retried_for_all_workers(tmp_path: Path) -> None:
    async with replicated(tmp_path) as whole:
        whole.register(isolation="process")
        slot = await whole.load()
        first = pid_of(whole)
        os.kill(first, signal.SIGSEGV)
        await soon(lambda: slot.state is ModelState.FAILED)
        assert await asyncio.gather(*(replica.ask(3) for replica in whole.replicas.values())) == [-3, -3]
        assert slot.state is ModelState.READY
        assert slot.restarts == {"sigsegv": 1}
        assert pid_of(whole) != first


@pytest.mark.extended
@TRAPS
@in_loop
async def test_poisonous_request_is_refused_by_all_workers(tmp_path: Path) -> None:
    async with replicated(tmp_path) as whole:
        whole.register(isolation="process")
        slot = await whole.load()
        one, other = whole.replicas.values()
        poison = task(one.ask(POISON))
        await soon(lambda: slot.state is ModelState.FAILED)
        good = task(other.ask(4))
        with pytest.raises(ModelFailed):
            await poison
        assert await good == -4
        assert slot.restarts.total() == 2
        with pytest.raises(ModelFailed, match="ended its process twice"):
            await other.ask(POISON)
        await soon(lambda: all(each.models.slot("m").active.is_ready for each in (one, other)))
        assert await answers(whole) == [-5, -5]
        late = await whole.join(2)
        assert await late.ask(6) == -6
        assert slot.restarts.total() == 2


@in_loop
async def test_lost_worker_ends_no_request_of_others(tmp_path: Path) -> None:
    async with replicated(tmp_path) as whole:
        whole.register(isolation="process")
        slot = await whole.load()
        one, other = whole.replicas.values()
        requests = [task(one.ask(1)), task(other.ask(2))]
        await one.die()
        with contextlib.suppress(Exception):
            await requests[0]
        assert await requests[1] == -2
        await whole.join(0)
        assert await answers(whole) == [-5, -5]
        await whole.manager.unload("m")
        assert slot.active.references == 0
        await soon(lambda: not process_registry.count())


@in_loop
async def test_unload_waits_for_reference_in_worker(tmp_path: Path) -> None:
    async with replicated(tmp_path) as whole:
        whole.register(isolation="process")
        slot = await whole.load()
        with permit() as held:
            await opened(whole.replicas[0].models, held)
            unload = task(whole.manager.unload("m"))
            await soon(lambda: whole.replicas[1].models.slot("m").state is ModelState.DRAINING)
            await settle()
            assert slot.state is ModelState.DRAINING
            assert process_registry.count() == 1
        await unload
        await soon(lambda: not process_registry.count())


@pytest.mark.extended
@in_loop
async def test_kills_at_any_moment_hang_nothing(tmp_path: Path) -> None:
    chance = random.Random(17)
    async with replicated(tmp_path) as whole:
        slot = whole.register(isolation="process")
        await whole.load()
        for kills in range(1, 4):
            requests = [task(replica.ask(8)) for replica in list(whole.replicas.values()) for _ in range(4)]
            await asyncio.sleep(chance.random() * 0.01)
            os.kill(pid_of(whole), signal.SIGKILL)
            if chance.random() < 0.5:
                await whole.replicas[1].die()
                await whole.join(1)
            for result in await asyncio.gather(*requests, return_exceptions=True):
                assert result == -8 or isinstance(result, Exception)
            await soon(lambda: slot.restarts.total() == kills)  # noqa: B023 - awaited at once
            await whole.load()
            await soon(lambda: all(each.models.slot("m").active.is_ready for each in whole.replicas.values()))
            assert await answers(whole) == [-5, -5]
        assert slot.state is ModelState.READY
        assert process_registry.count() == 1


@in_loop
async def test_worker_finds_models_by_alias(tmp_path: Path) -> None:
    async with replicated(tmp_path) as whole:
        whole.register(aliases=("first", "second"))
        slot = await whole.load("first")
        assert [await replica.ask(5, "second") for replica in whole.replicas.values()] == [-5, -5]
        await soon(lambda: slot.batches.sizes == {1: 2})


@in_loop
async def test_alias_replaces_removed_name(tmp_path: Path) -> None:
    async with replicated(tmp_path) as whole:
        first, second = (whole.register(name, load="lazy") for name in ("a", "b"))
        await whole.publisher.applied()
        # Published together, and "a" first: the alias is there before the model of this name is removed.
        whole.manager._forget(first)
        whole.manager._forget(second)
        whole.register("a", aliases=("b",), load="lazy")
        await whole.publisher.applied()
        for replica in whole.replicas.values():
            found = replica.models.slots_by_name
            assert {name: slot.name for name, slot in found.items()} == {"a": "a", "b": "a"}
            assert [slot.name for slot in replica.models.slots] == ["a"]
        assert [set(peer.shown) for peer in whole.publisher._peers.connected.values()] == [{"a"}, {"a"}]
