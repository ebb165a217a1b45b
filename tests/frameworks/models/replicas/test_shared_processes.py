"""A model in a process that several workers use: requests meet there, and run again after its end."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from frameworks.core.devices import DeviceManager
from frameworks.core.errors import Draining, ModelFailed
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.engine.process.client import process_registry
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.registries import RegistrySettings
from frameworks.manager import MLFrameworkManager
from frameworks.models.residency.loader import Loader
from frameworks.models.residency.processes import ProcessStarter
from frameworks.models.versions.contract import ServedModels
from frameworks.models.versions.states import ModelState
from frameworks.types import TensorBatch
from tests.support.batch_models import FakeRegistry
from tests.support.fake_probe import FakeProbe
from tests.support.loops import HANGS_AFTER_S, in_loop, soon, task
from tests.support.managing import opened, permit
from tests.support.models.onnx_graphs import add, save
from tests.support.server_workers import ServerWorkers, server_workers


@asynccontextmanager
async def sharing(folder: Path, num_workers: int = 2, **entry: Any) -> AsyncIterator[ServerWorkers]:
    """Register the model "m" with a process of its own. After the block no process and no descriptor is left."""
    num_descriptors = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    path = save(add(), folder / "adder.onnx")
    registries = RegistrySettings(max_model_size=None, cache_dir=folder, ageing_ms=1000.0)
    loader = Loader({}, DeviceManager(FakeProbe()), ProcessStarter(registries))
    manager = MLFrameworkManager(loader, PerformanceSettings(), SchedulingSettings(), HANGS_AFTER_S)
    async with server_workers(manager, FakeRegistry, num_workers) as whole:
        settings = OnnxModelEntry(name="m", path=path, isolation="process", **entry)
        manager.register("onnx", settings, path)
        yield whole
    await soon(lambda: not process_registry.count())
    if sys.platform == "linux":
        await soon(lambda: len(os.listdir("/proc/self/fd")) <= num_descriptors)


async def add_to_itself(models: ServedModels, x: float, elements: int = 4) -> float:
    """Return x + x."""
    with permit() as held:
        version = await opened(models, held)
        held.queue(version.model.requests)
        value = np.full((elements // 4, 4), x, np.float32)
        outputs = await version.engine().submit(TensorBatch({"a": value, "b": value}), begin=held.begin)
    array = outputs["sum"]
    assert isinstance(array, np.ndarray)
    return float(array[-1, -1])


def engine_process() -> psutil.Process:
    children = psutil.Process().children()
    [engine] = [child for child in children if "roundhouse-engine" in " ".join(child.cmdline())]
    return engine


@pytest.mark.extended
@in_loop
async def test_restart_runs_requests_of_all_workers(tmp_path: Path) -> None:
    async with sharing(tmp_path) as whole:
        slot = await whole.manager.load("m")
        one, other = whole.replicas.values()
        for _ in range(2):
            # A process that is stopped holds the requests: they are in flight when it ends.
            engine = engine_process()
            engine.suspend()
            answers = [task(add_to_itself(models, x)) for x in range(3) for models in (one, other)]
            await soon(lambda: all(each.slot("m").active.is_running for each in (one, other)))
            engine.send_signal(signal.SIGKILL)
            await soon(lambda: slot.state is ModelState.FAILED)
            assert await asyncio.gather(*answers) == [2 * x for x in range(3) for _ in range(2)]
            assert slot.state is ModelState.READY
            assert await add_to_itself(one, 5.0) + await add_to_itself(other, 5.0) == 20.0
        assert slot.restarts == {"sigkill": 2}
        assert one.slot("m").active.serving_id == other.slot("m").active.serving_id == slot.active.serving_id
        one.check_integrity()


@in_loop
async def test_new_load_replaces_process_under_requests(tmp_path: Path) -> None:
    async with sharing(tmp_path) as whole:
        await whole.manager.load("m")
        over = asyncio.Event()

        async def send(models: ServedModels) -> int:
            count = 0
            while not over.is_set():
                assert await add_to_itself(models, count) == 2 * count
                count += 1
            return count

        senders = [task(send(models)) for models in whole.replicas.values()]
        for _ in range(2):
            await whole.manager.refresh("m", frozenset({"1"}))
        over.set()
        assert min(await asyncio.gather(*senders)) > 0
        assert process_registry.count() == 1


@pytest.mark.extended
@in_loop
async def test_damaged_message_ends_the_process(tmp_path: Path) -> None:
    async with sharing(tmp_path) as whole:
        slot = await whole.manager.load("m")
        one, other = whole.replicas.values()
        engine = one.slot("m").active.engine()
        assert isinstance(engine, ProcessEngine)
        assert engine.started is not None
        engine.started.link.kill("protocol", "it sent a damaged message")
        await soon(lambda: slot.state is ModelState.FAILED)
        assert await asyncio.gather(*[add_to_itself(models, 1.0) for models in (one, other)]) == [2.0, 2.0]
        assert slot.restarts == {"protocol": 1}


@pytest.mark.extended
@in_loop
async def test_unload_ends_the_wait_for_a_restart(tmp_path: Path) -> None:
    async with sharing(tmp_path) as whole:
        slot = await whole.manager.load("m")
        engine = engine_process()
        engine.suspend()
        waiting = [task(add_to_itself(models, 1.0)) for models in whole.replicas.values()]
        await soon(lambda: all(each.slot("m").active.is_running for each in whole.replicas.values()))
        engine.send_signal(signal.SIGKILL)
        await soon(lambda: slot.state is ModelState.FAILED)
        await whole.manager.unload("m", drain_timeout_s=0.01)
        for each in waiting:
            with pytest.raises(Draining):
                await each
        assert await whole.manager.load("m") is slot
        await whole.publisher.applied()
        assert await asyncio.gather(*[add_to_itself(models, 1.0) for models in whole.replicas.values()]) == [2.0, 2.0]


@pytest.mark.extended
@in_loop
async def test_worker_leaves_while_it_connects(tmp_path: Path) -> None:
    async with sharing(tmp_path) as whole:
        slot = await whole.manager.load("m")
        engine_process().send_signal(signal.SIGKILL)
        await soon(lambda: slot.state is ModelState.FAILED)
        # It asks for the next process.
        connects = [each._connects[0] for each in whole.publisher._engines.values()]
        await soon(lambda: any(each._asked for each in connects) or slot.state is ModelState.READY)
        await whole.leave(0)
        assert await add_to_itself(whole.replicas[1], 1.0) == 2.0


@pytest.mark.extended
@in_loop
async def test_new_worker_refuses_with_retry_during_outage(tmp_path: Path) -> None:
    async with sharing(tmp_path, num_workers=1) as whole:
        slot = await whole.manager.load("m")
        for _ in range(2):
            await soon(lambda: slot.state is ModelState.READY)
            engine_process().send_signal(signal.SIGKILL)
            await soon(lambda: slot.state is ModelState.FAILED)
        joined = await whole.join(1)
        with pytest.raises(ModelFailed, match=r'model "m" failed: .*SIGKILL.*; try again') as caught:
            await add_to_itself(joined, 1.0)
        assert caught.value.retry_after_s is not None
        assert caught.value.retry_after_s >= 1.0
