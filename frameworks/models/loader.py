"""Load models in threads, one at a time: estimate their memory, load and measure them."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from frameworks.devices import Device, DeviceManager, ModelNeeds
from frameworks.engine.loading import load_instances
from frameworks.models.files_state import FilesState, files_state
from frameworks.models.turns import Turns
from frameworks.models.version import ModelVersion
from frameworks.runtime import LoadedModel, Registry
from memory.allocator import give_back_freed_memory
from memory.garbage import collect, freeze

# Loads run one at a time. Only one model then needs extra memory for reading, and the measurement is its own.
LOADER_THREADS = 1


@dataclass(frozen=True, slots=True)
class Loaded:
    """The instances of a model, warmed up, their measured bytes, and the state of the files before they were read.

    `load_s`: seconds of the load, with its warm-up, without the wait for other loads.
    """

    instances: LoadedModel
    memory_bytes: int
    load_s: float
    warm_up_s: float
    files: FilesState

    def close(self) -> None:
        for instance in self.instances:
            instance.close()


class Loader:
    """Own the registries of the frameworks, and the threads that call them."""

    def __init__(self, registries: dict[str, Callable[[], Registry]], devices: DeviceManager) -> None:
        """`registries`: framework → function that creates its registry, called once, at the first load."""
        self._make_registry = registries
        self._registries: dict[str, Registry] = {}
        self._registries_lock = threading.Lock()
        self._devices = devices
        self._threads = ThreadPoolExecutor(LOADER_THREADS, thread_name_prefix="loader")
        self._turns = Turns()
        self._num_unloads = 0
        self._prepared: set[tuple[str, str]] = set()

    async def needs(self, version: ModelVersion, goes_first: Callable[[], bool] = lambda: False) -> ModelNeeds:
        """Return what the version needs of a device. `goes_first`: as of `load`. Raises InvalidModel."""
        async with self._turns.turn(goes_first):
            return await asyncio.wrap_future(self._threads.submit(self._needs, version))

    async def load(
        self, version: ModelVersion, device: Device, goes_first: Callable[[], bool] = lambda: False
    ) -> Loaded:
        """Load a version on a device. Raises InvalidModel, OutOfMemory, and errors of libraries on damaged files.

        `goes_first`: whether this load is the next of those that wait. A thread cannot be stopped: after a cancellation
        the loaded instances are closed.
        """
        async with self._turns.turn(goes_first):
            loading = self._threads.submit(self._load_in_own_thread, version, device)
            try:
                return await asyncio.wrap_future(loading)
            except asyncio.CancelledError:
                loading.add_done_callback(_close_unused)
                raise

    async def reclaim_memory(self) -> None:
        """Return the memory of a closed model to the system."""
        self._num_unloads += 1
        await asyncio.to_thread(_reclaim_memory)

    def close(self) -> None:
        """Start no more loads; do not wait for the current one."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _needs(self, version: ModelVersion) -> ModelNeeds:
        return self._registry(version.model.framework).needs(version.model.entry, version.path)

    def _load_in_own_thread(self, version: ModelVersion, device: Device) -> Loaded:
        """Load in a thread that ends with the load, and with it the OpenMP threads of the load.

        With more threads than CPUs, OpenMP puts the threads of every model to sleep at each barrier. The steps of a
        language model would take two to three times as long.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="load") as thread:
            return thread.submit(self._load, version, device).result()

    def _load(self, version: ModelVersion, device: Device) -> Loaded:
        registry = self._registry(version.model.framework)
        if (version.model.framework, device.id) not in self._prepared:
            registry.prepare(device)
            self._prepared.add((version.model.framework, device.id))
        num_unloads = self._num_unloads
        files = files_state(version.path)
        loaded = load_instances(registry, version.model.entry, version.path, device, self._devices)
        instances, taken = loaded.instances, loaded.growth_bytes
        if self._num_unloads != num_unloads:
            # Another model released memory meanwhile, so the difference is too small.
            taken = version.memory_bytes
        memory_bytes = max(instances[0].spec.memory_bytes, taken)
        return Loaded(instances, memory_bytes, loaded.load_s, loaded.warm_up_s, files)

    def _registry(self, framework: str) -> Registry:
        """Return the registry of a framework. The first call imports the framework, so it runs in a loader thread."""
        with self._registries_lock:
            if framework not in self._registries:
                self._registries[framework] = self._make_registry[framework]()
                # A framework has up to 200,000 permanent objects. Each collection would scan them, and stop the event
                # loop for 35 ms.
                freeze()
            return self._registries[framework]


def _reclaim_memory() -> None:
    """Collect the cycles of a closed model (frameworks are frozen, so this is quick), then return free pages."""
    collect()
    give_back_freed_memory()


def _close_unused(loading: "Future[Loaded]") -> None:
    if not loading.cancelled() and loading.exception() is None:
        loading.result().close()
