"""Replicas of a real Ray cluster of one node; the process of the test is the ingress."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extensions.ray.config import ReplicaConfig
from extensions.ray.ingress.group import ReplicaGroup
from extensions.ray.ingress.group_startup import open_group
from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.engine.contract import EngineSettings, RunCounts
from frameworks.engine.registries import RegistrySettings
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.types import TensorBatch
from tests.support.loops import in_loop, soon, task
from tests.support.models.onnx_graphs import add, save
from tests.support.ray_cluster import delete_application, replica_actors, started

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster"), pytest.mark.extended]
SETTINGS = EngineSettings("adder", BatchLimits(8), 1.0)
NAME = "model-adder"
CLUSTER_S = 120.0
"""Limit of a wait for a process of Ray."""


@pytest.fixture
def config(tmp_path: Path) -> Iterator[ReplicaConfig]:
    """The config of a model that adds rows; its application is deleted after the test."""
    path = save(add(), tmp_path / "model.onnx")
    entry = OnnxModelEntry(name="adder", path=path)
    settings = RegistrySettings(max_model_size=None, cache_dir=tmp_path / "cache", ageing_ms=1000.0)
    yield ReplicaConfig("onnx", entry, SETTINGS, settings, (("1", str(path)),))
    delete_application("adder")


@asynccontextmanager
async def deployed_group(config: ReplicaConfig, replicas: Any) -> AsyncIterator[tuple[ReplicaGroup, RunCounts]]:
    """Deploy the model and open its engine here."""
    from ray import serve

    from extensions.ray.deployment import Scaling, model_deployment
    from extensions.ray.ingress.ingress import deployed

    application = model_deployment(config, replicas, num_cpus=0.1, drain_s=10.0)
    running = started(serve.run, application, name="adder", route_prefix=None)
    handle = await asyncio.wait_for(asyncio.wrap_future(running), CLUSTER_S)
    counts = RunCounts()
    may_be_empty = isinstance(replicas, Scaling) and not replicas.minimum
    there = deployed(handle, may_be_empty=may_be_empty)
    group, _ = await open_group(there, SETTINGS, counts, "1", config.versions[0][1], 1)
    try:
        yield group, counts
        group.check_integrity()
    finally:
        await group.close()


async def replicas() -> dict[str, Any]:
    """Return the actors of the running replicas by their names."""
    return await asyncio.wait_for(asyncio.wrap_future(started(replica_actors, NAME)), CLUSTER_S)


async def ask(group: ReplicaGroup, value: float) -> float:
    """Return the answer to a request, which is twice the value."""
    row = np.full((1, 4), value, np.float32)
    answer = (await group.submit(TensorBatch({"a": row, "b": row})))["sum"]
    assert isinstance(answer, np.ndarray)
    return float(answer[0, 0])


@in_loop
async def _check_loss_under_load(config: ReplicaConfig) -> None:
    import ray

    async with deployed_group(config, 2) as (group, counts):
        await soon(lambda: group.num_replicas == 2, CLUSTER_S)
        answers: list[float] = []
        is_over = False

        async def ask_always() -> None:
            while not is_over:
                answers.append(await ask(group, 1.0))

        load = [task(ask_always()) for _ in range(16)]
        await soon(lambda: len(answers) > 200)
        before = await replicas()
        assert len(before) == 2
        name, actor = next(iter(before.items()))
        ray.kill(actor)
        await soon(lambda: group.num_replicas == 1)
        count = len(answers)
        await soon(lambda: len(answers) > count + 200)
        await soon(lambda: group.num_replicas == 2, CLUSTER_S)
        is_over = True
        await asyncio.gather(*load)
        assert set(answers) == {2.0}
        assert counts.restarts == {"replica": 1}
        after = await replicas()
        assert name not in after


def test_lost_replica_fails_no_request(config: ReplicaConfig) -> None:
    _check_loss_under_load(config)


@in_loop
async def _check_scaling(config: ReplicaConfig) -> None:
    from extensions.ray.deployment import Scaling

    scaling = Scaling(0, 2, target_queued_s=1e-6, up_delay_s=0.0, down_delay_s=0.5, look_back_s=10.5)
    async with deployed_group(config, scaling) as (group, _):
        assert await ask(group, 1.0) == 2.0
        is_over = False

        async def ask_always() -> None:
            while not is_over:
                assert await ask(group, 2.0) == 4.0

        load = [task(ask_always()) for _ in range(16)]
        await soon(lambda: group.num_replicas == 2, CLUSTER_S)
        is_over = True
        await asyncio.gather(*load)
        await soon(lambda: group.num_replicas == 0, CLUSTER_S)
        assert group.outage is None
        # It waits for a cold start.
        assert await ask(group, 3.0) == 6.0


def test_deployment_scales_by_load_and_to_zero(config: ReplicaConfig) -> None:
    _check_scaling(config)


@in_loop
async def _check_refused_version(config: ReplicaConfig) -> None:
    from ray import serve

    from extensions.ray.ingress.ingress import deployed

    async with deployed_group(config, 1) as (group, counts):
        there = deployed(serve.get_deployment_handle(NAME, "adder"))
        with pytest.raises(InvalidModel):
            await open_group(there, SETTINGS, counts, "2", str(config.settings.cache_dir / "absent.onnx"), 1)
        assert await ask(group, 1.0) == 2.0


def test_cluster_without_gpu_reserves_none(config: ReplicaConfig) -> None:
    from extensions.ray.deployment import default_gpus

    assert default_gpus(config) == 0.0


def test_absent_version_is_refused(config: ReplicaConfig) -> None:
    _check_refused_version(config)
