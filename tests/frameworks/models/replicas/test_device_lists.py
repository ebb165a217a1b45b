"""Models with several processes that workers share: each worker has a queue before connections to all of them."""

import asyncio
import signal
from pathlib import Path

import psutil
import pytest

from frameworks.core.errors import InvalidModel
from frameworks.engine.group import EngineGroup
from frameworks.engine.process.client import process_registry
from frameworks.models.versions.states import ModelState
from tests.support.loops import in_loop, soon, task
from tests.support.replicated import Replica, Replicated, replicated

BOTH = ("cpu", "cpu")


def group_of(replica: Replica) -> EngineGroup:
    engine = replica.models.slot("m").active.engine()
    assert isinstance(engine, EngineGroup)
    return engine


def process(index: int) -> psutil.Process:
    """Return one of the processes of "m"."""
    [found] = [each for each in psutil.Process().children() if f"m.{index}" in each.cmdline()]
    return found


async def answers(whole: Replicated) -> list[int]:
    """Return the answers of all workers to several requests each."""
    asked = [replica.ask(5) for replica in whole.replicas.values() for _ in range(4)]
    return list(await asyncio.gather(*asked))


@in_loop
async def test_workers_share_all_processes(tmp_path: Path) -> None:
    async with replicated(tmp_path) as whole:
        whole.register(device=BOTH)
        slot = await whole.load()
        assert (process_registry.count(), slot.isolation) == (2, "process")
        assert await answers(whole) == [-5] * 8
        assert [group_of(replica).model.spec.device for replica in whole.replicas.values()] == ["cpu,cpu"] * 2
        await soon(lambda: sum(rows * count for rows, count in slot.batches.sizes.items()) == 8)
        late = await whole.join(2)
        assert await late.ask(7) == -7
        whole.manager.residency.ledger.check_integrity()
        await whole.manager.unload("m")
        await whole.publisher.applied()
        assert {replica.models.slot("m").state for replica in whole.replicas.values()} == {ModelState.UNLOADED}
        await soon(lambda: not process_registry.count())


@pytest.mark.extended
@in_loop
async def test_lost_process_leaves_others_to_workers(tmp_path: Path) -> None:
    async with replicated(tmp_path) as whole:
        whole.register(device=BOTH)
        slot = await whole.load()
        process(1).send_signal(signal.SIGSEGV)
        await soon(lambda: slot.restarts == {"sigsegv": 1})
        assert slot.state is ModelState.READY
        assert await answers(whole) == [-5] * 8
        groups = [group_of(replica) for replica in whole.replicas.values()]
        await soon(lambda: all(engine.outage is None for group in groups for engine in group.engines))
        with_both = [replica.ask(6) for replica in whole.replicas.values() for _ in range(4)]
        assert await asyncio.gather(*with_both) == [-6] * 8
        assert process_registry.count() == 2


@pytest.mark.extended
@in_loop
async def test_worker_leaves_processes_to_others(tmp_path: Path) -> None:
    async with replicated(tmp_path) as whole:
        whole.register(device=BOTH)
        await whole.load()
        await whole.replicas.pop(0).die()
        assert await answers(whole) == [-5] * 4
        assert process_registry.count() == 2


@pytest.mark.extended
@in_loop
async def test_requests_wait_while_all_processes_restart(tmp_path: Path) -> None:
    async with replicated(tmp_path) as whole:
        whole.register(device=BOTH)
        slot = await whole.load()
        for each in [process(0), process(1)]:
            each.kill()
        await soon(lambda: slot.state is ModelState.FAILED)
        waiting = task(answers(whole))
        assert await waiting == [-5] * 8
        await soon(lambda: slot.restarts == {"sigkill": 2} and process_registry.count() == 2)


@in_loop
async def test_failed_load_leaves_no_process(tmp_path: Path) -> None:
    async with replicated(tmp_path) as whole:
        whole.register(device="cuda:*")
        with pytest.raises(InvalidModel, match="expected a CUDA device"):
            await whole.manager.load("m")
        await soon(lambda: not process_registry.count())


@pytest.mark.extended
@in_loop
async def test_worker_joins_while_one_process_is_down(tmp_path: Path) -> None:
    async with replicated(tmp_path, num_workers=1) as whole:
        whole.register(device=BOTH)
        slot = await whole.load()
        file, hidden = tmp_path / "m.onnx", tmp_path / "hidden.onnx"
        file.rename(hidden)
        process(1).kill()
        await soon(lambda: slot.restarts == {"sigkill": 1})
        late = await whole.join(1)
        assert await late.ask(7) == -7
        assert [engine.outage is None for engine in group_of(late).engines] == [True, False]
        hidden.rename(file)
        await soon(lambda: all(engine.outage is None for engine in group_of(late).engines))
        assert await answers(whole) == [-5] * 8
