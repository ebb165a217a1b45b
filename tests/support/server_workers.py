"""A manager that publishes its models to replicas, all in one event loop, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from app.workers.messages import messages_to_worker
from frameworks.core.devices import DeviceManager
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.manager import MLFrameworkManager
from frameworks.models.replicas.control import ControlLink, Workers
from frameworks.models.replicas.manager import ReplicaManager
from frameworks.models.replicas.publisher import Publisher
from frameworks.models.residency.loader import Loader
from frameworks.runtime import Registry
from tests.support.control_links import connect
from tests.support.fake_probe import FakeProbe
from tests.support.loops import HANGS_AFTER_S

AnyRegistry = TypeVar("AnyRegistry", bound=Registry)


class Replica(Generic[AnyRegistry]):
    """A worker of any supervisor, whose models are loaded here, from its own registry."""

    def __init__(self, number: int, registry: AnyRegistry) -> None:
        self.registry = registry
        self.loader = Loader({"fake": lambda: registry}, DeviceManager(FakeProbe()))
        self.link = ControlLink(number, messages_to_worker())
        self.models = ReplicaManager(self.link, self.loader, PerformanceSettings(), SchedulingSettings())
        self.is_alive = True

    async def end(self, drain_timeout_s: float = HANGS_AFTER_S) -> None:
        self.is_alive = False
        self.link.close()
        await self.models.close(drain_timeout_s)


class ServerWorkers:
    """A supervisor and its workers."""

    def __init__(self, manager: MLFrameworkManager, make_registry: Callable[[], Registry]) -> None:
        self.manager = manager
        self.workers = Workers()
        self.publisher = Publisher(manager, manager.residency, manager.on_changed, self.workers)
        self._make_registry = make_registry
        self.replicas: dict[int, ReplicaManager] = {}
        self.registries: list[Registry] = []
        """Of all workers that were not killed."""
        self._links: dict[int, ControlLink] = {}
        self._registry_of: dict[int, Registry] = {}

    async def join(self, number: int) -> ReplicaManager:
        """Connect a worker, and wait until it has the state of all models."""
        link = self._links[number] = ControlLink(number, messages_to_worker())
        registry = self._registry_of[number] = self._make_registry()
        self.registries.append(registry)
        loader = Loader({"fake": lambda: registry, "onnx": lambda: registry}, DeviceManager(FakeProbe()))
        replica = ReplicaManager(link, loader, PerformanceSettings(max_batch_size=4), SchedulingSettings())
        self.replicas[number] = replica
        await connect(self.workers, link)
        await replica.has_state
        return replica

    async def kill(self, number: int) -> None:
        """End a worker without a drain: its requests fail."""
        self._links.pop(number).close()
        self.registries.remove(self._registry_of[number])
        await self.replicas.pop(number).close(0.0)
        await asyncio.sleep(0)

    async def leave(self, number: int) -> None:
        """End a worker after its requests."""
        await self.replicas[number].close(HANGS_AFTER_S)
        del self.replicas[number]
        self._links.pop(number).close()
        await asyncio.sleep(0)


@asynccontextmanager
async def server_workers(
    manager: MLFrameworkManager, make_registry: Callable[[], Registry], num_workers: int = 2
) -> AsyncIterator[ServerWorkers]:
    """Start a supervisor with workers, whose small models have registries of their own."""
    whole = ServerWorkers(manager, make_registry)
    async with manager:
        for number in range(num_workers):
            await whole.join(number)
        try:
            yield whole
        finally:
            for number in list(whole.replicas):
                await whole.leave(number)
