"""A manager whose models are in replicas: loads, unloads, other versions, and models that are not deployed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from extensions.ray.ingress.group_startup import Deployed
from extensions.ray.ingress.starter import RayStarter
from frameworks.core.devices import DeviceManager
from frameworks.core.errors import InvalidModel, ModelUnloaded
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.manager import MLFrameworkManager
from frameworks.models.residency.loader import Loader
from frameworks.models.versions.states import ModelState
from frameworks.types import TensorBatch
from tests.extensions.ray.replicas import NODE, Cluster, cluster
from tests.support.fake_probe import FakeProbe
from tests.support.loops import HANGS_AFTER_S, in_loop, soon
from tests.support.managing import opened, permit


@asynccontextmanager
async def managed(path: Path, **entry: object) -> AsyncIterator[tuple[Cluster, MLFrameworkManager]]:
    """Register the model "m", which has two replicas. No connection is left after the block."""
    async with cluster(2) as there:
        deployed = Deployed(there.running, there._wake, NODE, cold_start_s=HANGS_AFTER_S)
        loader = Loader({}, DeviceManager(FakeProbe()), RayStarter({"m": deployed}))
        scheduling = SchedulingSettings()
        async with MLFrameworkManager(loader, PerformanceSettings(), scheduling, HANGS_AFTER_S) as manager:
            settings = OnnxModelEntry(name="m", path=path, isolation="process", device="cpu", **entry)  # type: ignore[arg-type]
            manager.register("onnx", settings, path)
            yield there, manager
        for replica in there.replicas.values():
            await soon(lambda replica=replica: not replica.clients)  # type: ignore[misc]


async def ask(manager: MLFrameworkManager, x: float) -> float:
    """Return twice x."""
    with permit() as held:
        version = await opened(manager, held)
        held.queue(version.model.requests)
        outputs = await version.engine().submit(TensorBatch({"x": np.full((1, 1), x, np.float32)}), begin=held.begin)
    answer = outputs["y"]
    assert isinstance(answer, np.ndarray)
    return float(answer[0, 0])


@in_loop
async def test_model_answers_from_replicas() -> None:
    async with managed(Path("/absent")) as (there, manager):
        slot = await manager.load("m")
        assert await ask(manager, 2.0) == 4.0
        # Each replica reports 5 bytes.
        await soon(lambda: slot.memory_bytes == 10)
        assert slot.active.state is ModelState.READY
        await manager.unload("m")
        with pytest.raises(ModelUnloaded):
            await ask(manager, 1.0)
        await manager.load("m")
        assert await ask(manager, 3.0) == 6.0
        assert all(len(replica.models) == 1 for replica in there.replicas.values())


@in_loop
async def test_lazy_model_is_loaded_by_request() -> None:
    async with managed(Path("/absent"), load="lazy") as (there, manager):
        assert not any(replica.models for replica in there.replicas.values())
        assert await ask(manager, 2.0) == 4.0


@in_loop
async def test_model_without_replica_is_failed() -> None:
    async with managed(Path("/absent")) as (there, manager):
        slot = await manager.load("m")
        for replica in there.replicas.values():
            there.withdraw(replica)
        await soon(lambda: slot.active.state is ModelState.FAILED)
        await there.start()
        await soon(lambda: slot.active.state is ModelState.READY)
        assert await ask(manager, 1.0) == 2.0


@in_loop
async def test_model_without_deployment_is_refused() -> None:
    async with managed(Path("/absent")) as (_, manager):
        other = OnnxModelEntry(name="other", path=Path("/absent"), isolation="process")
        manager.register("onnx", other, Path("/absent"))
        with pytest.raises(InvalidModel, match="add it there and deploy again"):
            await manager.load("other")
