"""A supervisor with real replicas over real sockets, and real engine processes, in one event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from app.workers.messages import messages_to_worker
from frameworks.core.devices import DeviceManager
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.engine.process.client import process_registry
from frameworks.engine.registries import RegistrySettings, registry_factories
from frameworks.manager import MLFrameworkManager
from frameworks.models.replicas.control import ControlLink, Workers
from frameworks.models.replicas.manager import ReplicaManager
from frameworks.models.replicas.publisher import Publisher
from frameworks.models.residency.loader import Loader
from frameworks.models.residency.processes import ProcessStarter
from frameworks.models.versions.slot import ModelSlot
from frameworks.types import TensorBatch
from memory.settings import MemorySettings
from memory.tensor_pool import TensorPool
from tests.support.control_links import connect
from tests.support.fake_probe import FakeProbe
from tests.support.loops import HANGS_AFTER_S, soon
from tests.support.managing import opened, permit
from tests.support.models.onnx_crashes import negated
from tests.support.models.onnx_graphs import save

PERFORMANCE, SCHEDULING = PerformanceSettings(intra_op_threads=1), SchedulingSettings()


class Replica:
    """A worker without a server."""

    def __init__(self, number: int, loader: Loader) -> None:
        self.link = ControlLink(number, messages_to_worker())
        self.models = ReplicaManager(self.link, loader, PERFORMANCE, SCHEDULING)

    async def ask(self, x: int = 1, name: str = "m") -> int:
        """Return -x, as the model does."""
        with permit() as held:
            version = await opened(self.models, held, name)
            held.queue(version.model.requests)
            values = TensorBatch({"x": np.array([x], np.int32)})
            outputs = await version.engine().submit(values, begin=held.begin)
        array = outputs["y"]
        assert isinstance(array, np.ndarray)
        return int(array[0])

    async def die(self) -> None:
        """Lose the connection to the supervisor, and all engines."""
        self.link.close()
        await self.models.close(drain_timeout_s=0)


class Replicated:
    """Models of the graph x → -x, and the workers that answer with them."""

    def __init__(self, folder: Path, num_workers: int) -> None:
        self.folder = folder
        self.num_workers = num_workers
        self.settings = RegistrySettings(
            performance=PERFORMANCE, max_model_size=None, cache_dir=folder, ageing_ms=1000.0
        )
        self.manager = MLFrameworkManager(self._loader(num_workers), PERFORMANCE, SCHEDULING, HANGS_AFTER_S)
        self.workers = Workers()
        self.publisher = Publisher(self.manager, self.manager.residency, self.manager.on_changed, self.workers)
        self.replicas: dict[int, Replica] = {}

    def register(self, name: str = "m", **entry: Any) -> ModelSlot:
        path = save(negated(), self.folder / f"{name}.onnx")
        return self.manager.register("onnx", OnnxModelEntry(name=name, path=path, **entry), path)

    async def join(self, number: int) -> Replica:
        """Connect a worker, and wait until it has the state of all models."""
        replica = self.replicas[number] = Replica(number, self._loader(0))
        await connect(self.workers, replica.link)
        async with asyncio.timeout(HANGS_AFTER_S):
            await replica.models.has_state
        return replica

    async def load(self, name: str = "m") -> ModelSlot:
        slot = await self.manager.load(name)
        await self.publisher.applied()
        return slot

    async def close(self) -> None:
        for replica in self.replicas.values():
            await replica.models.close(HANGS_AFTER_S)
            replica.link.close()
        await soon(lambda: not self.workers.links)

    def _loader(self, num_workers: int) -> Loader:
        devices = DeviceManager(FakeProbe())
        factories = registry_factories(self.settings, devices, TensorPool(MemorySettings()))
        return Loader(factories, devices, ProcessStarter(self.settings), num_workers)


@asynccontextmanager
async def replicated(folder: Path, num_workers: int = 2) -> AsyncIterator[Replicated]:
    """Start a supervisor and workers. After the block no process is left."""
    whole = Replicated(folder, num_workers)
    async with whole.manager:
        for number in range(num_workers):
            await whole.join(number)
        yield whole
        await whole.close()
    await soon(lambda: not process_registry.count())
