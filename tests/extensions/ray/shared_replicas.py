"""Replicas that models share, in the loop of the test, and a manager that is their ingress."""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from extensions.ray.config import GroupConfig, ReplicaConfig
from extensions.ray.handshake import Address
from extensions.ray.ingress.group_startup import Deployed
from extensions.ray.ingress.loaded_versions import LoadedVersions
from extensions.ray.ingress.starter import RayStarter
from extensions.ray.replica.hosted_models import HostedModels
from extensions.ray.replica.listener import ReplicaListener
from extensions.ray.running_replicas import RunningReplicas
from frameworks.core.devices import DeviceManager
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.engine.registries import RegistrySettings
from frameworks.engine.threads import EngineThreads
from frameworks.manager import MLFrameworkManager
from frameworks.models.residency.loader import Loader
from frameworks.types import Batch, ModelSpec, TensorBatch, Value
from tests.extensions.ray.replicas import NODE, SECRET
from tests.frameworks.models.sized_registry import SizedRegistry
from tests.support.batch_models import DoublingModel
from tests.support.engine_hosts import SETTINGS, ArrayModel
from tests.support.fake_probe import GIB, FakeProbe
from tests.support.loops import HANGS_AFTER_S, settle, soon
from tests.support.managing import opened, permit


class FactorModel(ArrayModel):
    """Rows [n, 1] times the number of the model: that of its name in the alphabet."""

    def __init__(self, registry: "ArrayRegistry", name: str, size_bytes: int) -> None:
        super().__init__(registry.behaviour, runs_by_shape=False)
        self.spec: ModelSpec = replace(self.spec, memory_bytes=size_bytes)
        self._registry = registry
        self._name = name

    def infer(self, batch: Batch) -> dict[str, Value]:
        assert not self.is_closed, "called after close"
        assert isinstance(batch, TensorBatch)
        x = batch.inputs["x"]
        assert isinstance(x, np.ndarray)
        super().infer(batch)
        return {"y": x * factor_of(self._name)}

    def close(self) -> None:
        super().close()
        self._registry.held_bytes -= self.spec.memory_bytes


class ArrayRegistry(SizedRegistry):
    """The registry of one replica. `most_bytes`: of all models that were loaded at the same time."""

    held_bytes = 0
    most_bytes = 0

    def make(self, name: str, size_bytes: int) -> DoublingModel:
        self.held_bytes += size_bytes
        self.most_bytes = max(self.most_bytes, self.held_bytes)
        return FactorModel(self, name, size_bytes)


def factor_of(name: str) -> float:
    """Return the number that a model multiplies with."""
    return float(ord(name[0]) - ord("a") + 2)


class SharedReplica:
    """A replica of a group."""

    def __init__(self, name: str, config: GroupConfig, registry: ArrayRegistry) -> None:
        self.registry = registry
        self.threads = EngineThreads()
        loader = Loader({"onnx": lambda: registry}, DeviceManager(FakeProbe()))
        self.models = HostedModels(config, self.threads, loader)
        self.listener = ReplicaListener(SECRET, self.models.accept)
        self._name = name
        self.address: Address

    async def open(self) -> None:
        await self.models.open()
        self.address = Address(self._name, NODE, "127.0.0.1", await self.listener.open("127.0.0.1"), SECRET)

    @property
    def loaded(self) -> set[str]:
        """Names of the models that are loaded."""
        return {each.managed.model.name for each in self.models.all if each.managed.is_ready}

    def die(self) -> None:
        """End all connections for versions at once. It is no longer published then."""
        for version in self.models.all:
            for client in list(version.clients):
                client.channel.fail("the replica died")

    def close(self) -> None:
        self.listener.close()
        self.models.close()
        self.threads.close()


class SharedCluster:
    """Replicas of a group, and the set that Serve would publish."""

    def __init__(self, config: GroupConfig, behaviour: Any) -> None:
        self.config = config
        self.running = RunningReplicas()
        self.replicas: list[SharedReplica] = []
        self._behaviour = behaviour
        self._numbers = itertools.count()

    async def start(self, config: GroupConfig | None = None, **sizes: int) -> SharedReplica:
        """Start a replica, and publish it. `sizes`: of models that do not have 1 GiB."""
        registry = ArrayRegistry(self._behaviour)
        registry.sizes = sizes
        replica = SharedReplica(f"r{next(self._numbers)}", config or self.config, registry)
        await replica.open()
        running = [each for each in self.replicas if each.address.replica in self.running.addresses]
        self.replicas.append(replica)
        self.publish(*running, replica)
        return replica

    def publish(self, *replicas: SharedReplica) -> None:
        """Publish the running replicas."""
        self.running.publish({each.address.replica: each.address for each in replicas})

    def close(self) -> None:
        """End all replicas."""
        for replica in self.replicas:
            replica.close()

    @property
    def loads(self) -> list[str]:
        """The loads of all replicas."""
        return [name for replica in self.replicas for name in replica.registry.loads]

    @property
    def evictions(self) -> int:
        """The evictions of all replicas."""
        return sum(replica.models.residency.ledger.evictions.total() for replica in self.replicas)

    @asynccontextmanager
    async def ingress(self) -> AsyncIterator[MLFrameworkManager]:
        """Run a manager with the models of the group. No connection for a version is left after the block."""
        loaded_versions = LoadedVersions(self.running, "ingress")
        loaded_versions.open()
        deployed = Deployed(self.running, _wake, NODE, loaded_versions=loaded_versions, cold_start_s=HANGS_AFTER_S)
        starter = RayStarter({each.name: deployed for each in self.config.members})
        loader = Loader({}, DeviceManager(FakeProbe()), starter)
        async with MLFrameworkManager(loader, PerformanceSettings(), SchedulingSettings(), HANGS_AFTER_S) as manager:
            starter.attach(manager.residency)
            for member in self.config.members:
                entry = member.entry.model_copy(update={"isolation": "process", "device": "cpu"})
                manager.register("onnx", entry, Path("/absent"))
            yield manager
        loaded_versions.close()
        await settle()


async def _wake() -> None:
    pass


def group_config(names: str, capacity_gib: float, **entry: Any) -> GroupConfig:
    """Return the config of a group with a model for each letter."""
    settings = RegistrySettings(max_model_size=None, cache_dir=Path("/absent"), ageing_ms=1000.0)
    members = tuple(
        ReplicaConfig(
            "onnx",
            OnnxModelEntry(name=name, path=Path("/absent"), load="lazy", **entry),
            replace(SETTINGS, name=name),
            settings,
        )
        for name in names
    )
    return GroupConfig("small", members, settings, int(capacity_gib * GIB), 0.0)


@asynccontextmanager
async def sharing(
    names: str = "abcd", size: int = 2, capacity_gib: float = 2.5, behaviour: Any = None, **entry: Any
) -> AsyncIterator[tuple[SharedCluster, MLFrameworkManager]]:
    """Run replicas with memory for `capacity_gib` models each, and an ingress."""
    there = SharedCluster(group_config(names, capacity_gib, **entry), behaviour)
    async with AsyncExitStack() as stack:
        for _ in range(size):
            await there.start()
        stack.callback(there.close)
        async with there.ingress() as manager:
            yield there, manager
            for replica in there.replicas:
                assert replica.registry.most_bytes <= capacity_gib * GIB
        for replica in there.replicas:
            await soon(lambda replica=replica: not any(each.clients for each in replica.models.all))  # type: ignore[misc]
            replica.models.residency.ledger.check_integrity()
    await settle()


async def ask(manager: MLFrameworkManager, name: str, x: float = 1.0) -> None:
    """Send a request as a protocol does, and check its answer."""
    with permit() as held:
        version = await opened(manager, held, name)
        held.queue(version.model.requests)
        outputs = await version.engine().submit(TensorBatch({"x": np.full((1, 1), x, np.float32)}), begin=held.begin)
    answer = outputs["y"]
    assert isinstance(answer, np.ndarray)
    assert answer.tolist() == [[x * factor_of(name)]]
