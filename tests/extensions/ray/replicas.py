"""Replicas in the loop of the test: real ports, sessions and engines, and a fake of the controller of Serve."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from extensions.ray.config import ReplicaConfig
from extensions.ray.handshake import Address, server_context
from extensions.ray.ingress.group import ReplicaGroup
from extensions.ray.ingress.group_startup import Deployed, open_group
from extensions.ray.replica.hosted_versions import HostedVersions
from extensions.ray.replica.listener import ReplicaListener
from extensions.ray.running_replicas import RunningReplicas
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.engine.contract import EngineSettings, RunCounts
from frameworks.engine.process.host.model_source import HostedModel
from frameworks.engine.registries import RegistrySettings
from frameworks.engine.threads import EngineThreads
from frameworks.scheduling.device_clock import SharedDevice
from frameworks.types import TensorBatch
from tests.support.engine_hosts import SETTINGS, ArrayModel
from tests.support.loops import HANGS_AFTER_S, settle, soon

NODE = "node"
SECRET = "5ec4e7"


class Replica:
    """A replica whose models `make(path)` returns or raises."""

    def __init__(self, name: str, make: Callable[[str], Any], settings: EngineSettings) -> None:
        self.name = name
        self.threads = EngineThreads()
        self.models: list[Any] = []
        self._make = make
        registries = RegistrySettings(max_model_size=None, cache_dir=Path("/absent"), ageing_ms=1000.0)
        config = ReplicaConfig("onnx", OnnxModelEntry(name="m", path=Path("/absent")), settings, registries)
        self.versions = HostedVersions(config, self.threads, self._load)
        self.listener = ReplicaListener(SECRET, self.versions.accept)
        self.address: Address

    async def open(self, node: str = NODE) -> "Replica":
        self.address = Address(
            self.name, node, "127.0.0.1", await self.listener.open("127.0.0.1", server_context()), SECRET
        )
        return self

    @property
    def clients(self) -> list[Any]:
        """The connections of all ingresses."""
        return [client for version in self.versions.all for client in version.clients]

    @property
    def executed(self) -> int:
        """Number of rows that its models have computed."""
        return sum(sum(rows) for model in self.models for rows in model.executed)

    def die(self) -> None:
        """End all connections at once, and answer none."""
        self.listener.close()
        for client in self.clients:
            client.channel.fail("the replica died")

    async def close(self) -> None:
        self.listener.close()
        self.versions.close()
        self.threads.close()

    def _load(self, config: ReplicaConfig, path: Path) -> HostedModel:
        model = self._make(str(path))
        self.models.append(model)
        return HostedModel((model,), SharedDevice(), 5, 0.25, 0.125)


class Cluster:
    """Replicas and the set that Serve would publish."""

    def __init__(self, make: Callable[[str], Any], settings: EngineSettings) -> None:
        self.make = make
        self.settings = settings
        self.running = RunningReplicas()
        self.replicas: dict[str, Replica] = {}
        self.counts = RunCounts()
        self.wakes = 0
        self.on_wake: Callable[[], Any] = lambda: None
        self._names = itertools.count()

    async def start(self, node: str = NODE) -> Replica:
        """Start a replica, and publish it."""
        replica = await Replica(f"r{next(self._names)}", self.make, self.settings).open(node)
        self.replicas[replica.name] = replica
        self.publish(*self.running.addresses.values(), replica.address)
        return replica

    def withdraw(self, replica: Replica) -> None:
        """Publish that a replica leaves."""
        self.publish(*(each for each in self.running.addresses.values() if each.replica != replica.name))

    def publish(self, *addresses: Address) -> None:
        self.running.publish({each.replica: each for each in addresses})

    async def group(self, **options: Any) -> ReplicaGroup:
        """Open the engine of version 1."""
        defaults: dict[str, Any] = {"node": NODE, "cold_start_s": HANGS_AFTER_S, "replaced_s": HANGS_AFTER_S}
        deployed = Deployed(self.running, self._wake, **(defaults | options))
        group, _ = await open_group(deployed, self.settings, self.counts, "1", "files", 1)
        return group

    async def close(self) -> None:
        for replica in self.replicas.values():
            await replica.close()
        # A connection that was just accepted ends in the next rounds of the loop.
        await settle()

    async def _wake(self) -> None:
        self.wakes += 1
        self.on_wake()
        await soon(lambda: bool(self.running.addresses))


@asynccontextmanager
async def cluster(
    size: int = 1, make: Callable[[str], Any] = lambda _: ArrayModel(), settings: EngineSettings = SETTINGS
) -> AsyncIterator[Cluster]:
    """Run replicas in this loop."""
    running = Cluster(make, settings)
    try:
        for _ in range(size):
            await running.start()
        yield running
    finally:
        await running.close()


@asynccontextmanager
async def serving(
    size: int = 1, make: Callable[[str], Any] = lambda _: ArrayModel(), **options: Any
) -> AsyncIterator[tuple[Cluster, ReplicaGroup]]:
    """Run replicas, and an engine that is connected to all of them."""
    async with cluster(size, make) as there:
        group = await there.group(**options)
        await soon(lambda: group.num_replicas == size)
        try:
            yield there, group
            group.check_integrity()
        finally:
            await group.close()


async def ask(group: ReplicaGroup, value: float, columns: int = 1, begin: Callable[[], None] = lambda: None) -> float:
    """Return the answer to a request, which is twice the value. `begin`: called for each of its runs."""
    outputs = await group.submit(TensorBatch({"x": np.full((1, columns), value, np.float32)}), begin=begin)
    answer = outputs["y"]
    assert isinstance(answer, np.ndarray)
    assert answer.shape == (1, columns)
    return float(answer[0, 0])


async def ask_all(group: ReplicaGroup, *values: float) -> list[Any]:
    """Return the answers to requests that are sent together, or their errors."""
    return await asyncio.gather(*(ask(group, each) for each in values), return_exceptions=True)
