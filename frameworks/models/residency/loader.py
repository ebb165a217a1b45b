"""Load models in threads, one at a time: estimate their memory, load and measure them."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from frameworks.core import progress
from frameworks.core.devices import Device, DeviceManager, ModelNeeds
from frameworks.engine.contract import Engine
from frameworks.engine.loading import load_instances
from frameworks.engine.local import start_local_engine
from frameworks.models.residency.load_lock import LoadLock
from frameworks.models.residency.processes import ProcessStarter, Starter
from frameworks.models.residency.small_models import (
    reason_of_device,
    reason_of_framework,
    reason_of_runs,
    reason_of_size,
    reason_of_state,
)
from frameworks.models.versions.version import ModelVersion
from frameworks.models.versions.version_folders import FilesState, files_state
from frameworks.runtime import LoadedModel, Registry
from frameworks.types import ModelSpec
from memory.allocator import give_back_freed_memory
from memory.garbage import collect, freeze

log = structlog.get_logger(__name__)

# Loads run one at a time. Only one model then needs extra memory for reading, and the measurement is its own.
LOADER_THREADS = 1


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is warmed up: its instances here, or its engine. `num_instances`, and the state of the files
    before they were read. `measured`: the device and the bytes of each process, and of each of its ranks; of a model
    without processes one device and the bytes of all workers.

    `load_s`: seconds of the load, with its warm-up, without the wait for other loads. `not_small_because`: why it
    cannot be loaded in every worker; None where it can, or need not.
    """

    model: LoadedModel | Engine
    spec: ModelSpec
    num_instances: int
    measured: tuple[tuple[Device, int], ...]
    load_s: float
    warm_up_s: float
    files: FilesState
    not_small_because: str | None = None

    @property
    def device(self) -> Device:
        """The device, or that of the first process."""
        return self.measured[0][0]

    def start(self, version: ModelVersion) -> Engine:
        """Return the engine that answers requests in this process. Call it in the event loop."""
        if not isinstance(self.model, Sequence):
            return self.model
        model = version.model
        counts, device = model.runs[version.version], model.devices.of(self.spec.device)
        settings = model.settings_of_load(version.version)
        return start_local_engine(settings, self.model, counts, device, model.threads)

    def close(self) -> None:
        """Release a model that is not started. Call it in the event loop."""
        if isinstance(self.model, Sequence):
            close_instances(self.model)
        else:
            self.model.abort("the model is not used")


class CompositeLoader(Protocol):
    """Load the composite models of one framework in this process. Owned by the event loop."""

    async def load(self, version: ModelVersion) -> Engine:
        """Return the engine of a model, which takes no memory. Models that it runs are loaded first.

        Raises InvalidModel, and the errors of a load of these models.
        """
        ...

    def check_at_start(self, version: ModelVersion) -> None:
        """Check that a model can be loaded at the start without a load of the models that it runs.

        Raises EvictionNeeded where one of them is loaded by its first request; ModelFailed or OutOfMemory where one
        failed to load.
        """
        ...

    def close(self) -> None:
        """Start no more work; do not wait for the current one."""
        ...


class Loader:
    """Own the registries of the frameworks, and the threads that call them."""

    def __init__(
        self,
        registries: Mapping[str, Callable[[], Registry]],
        devices: DeviceManager,
        processes: Starter | None = None,
        num_workers: int = 0,
    ) -> None:
        """`registries`: framework → function that creates its registry, called once, at the first load. `processes`:
        starts those of models with isolation "process"; None where no model has it. `num_workers`: workers that load
        small models too; other models then have processes. 0: the requests are answered in this process.
        """
        self._num_workers = num_workers
        self._processes: Starter = processes or ProcessStarter(None)
        self._make_registry = registries
        self._registries: dict[str, Registry] = {}
        self._registries_lock = threading.Lock()
        self.devices = devices
        self.composites: dict[str, CompositeLoader] = {}
        """By framework. Extensions add them before the first load."""
        self._threads = ThreadPoolExecutor(LOADER_THREADS, thread_name_prefix="loader")
        self._lock = LoadLock()
        self._num_unloads = 0
        self._prepared: set[tuple[str, str]] = set()

    async def needs(self, version: ModelVersion, goes_first: Callable[[], bool] = lambda: False) -> ModelNeeds:
        """Return what the version needs of a device. `goes_first`: as of `load`. Raises InvalidModel."""
        async with self._locked(version, goes_first):
            progress.phase("headers of the files")
            reason = reason_of_framework(version.model.framework) or reason_of_state(version.model.entry)
            if version.isolation == "none" and not self._moves(version, reason):
                needs = await asyncio.wrap_future(self._threads.submit(self._needs, version))
                if not self._moves(version, reason_of_size(needs)):
                    return replace(needs, host_bytes=needs.host_bytes * (1 + self._num_workers))
            return await self._processes.needs(version)

    async def load(
        self, version: ModelVersion, devices: Sequence[Device], goes_first: Callable[[], bool] = lambda: False
    ) -> Loaded:
        """Load a version, with a process on each of several devices.

        `goes_first`: whether this load is the next of those that wait. A thread cannot be stopped: after a cancellation
        the loaded instances are closed. Raises InvalidModel, OutOfMemory, and errors of libraries on damaged files.
        """
        if version.model.is_composite:
            return await self._load_composite(version)
        async with self._locked(version, goes_first):
            if version.isolation == "none" and not self._moves(version, reason_of_device(devices[0])):
                loaded = await self._load_here(version, devices[0])
                if not self._moves(version, loaded.not_small_because):
                    return loaded
                loaded.close()
                await self.reclaim_memory()
            return await self._load_in_processes(version, devices)

    def discard(self, version: ModelVersion) -> None:
        """Forget what `needs` has prepared for a load, if no load has used it."""
        self._processes.discard(version)

    async def reclaim_memory(self) -> None:
        """Return the memory of a closed model to the system."""
        self._num_unloads += 1
        await asyncio.to_thread(_reclaim_memory)

    def close(self) -> None:
        """Start no more loads; do not wait for the current one."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._processes.close()
        for composite in self.composites.values():
            composite.close()

    def _locked(self, version: ModelVersion, goes_first: Callable[[], bool]) -> AbstractAsyncContextManager[None]:
        if version.isolation == "process" and not self._processes.loads_one_by_one:
            return nullcontext()
        return self._lock.acquired(goes_first)

    def _moves(self, version: ModelVersion, reason: str | None) -> bool:
        """Whether a version runs in a process of its own from now on. `reason`: why not in every worker."""
        if not self._num_workers or reason is None:
            return False
        version.isolation = "process"
        log.info(
            "model moves to a process of its own, which all workers share",
            model=version.model.name,
            version=version.version,
            reason=reason,
        )
        return True

    async def _load_composite(self, version: ModelVersion) -> Loaded:
        """Load a composite model, without the lock: its models may have to be loaded first."""
        started_s = time.perf_counter()
        engine = await self.composites[version.model.framework].load(version)
        device = Device("cpu", 0, "", 0, 0)
        return Loaded(
            engine, engine.model.spec, 1, ((device, 0),), time.perf_counter() - started_s, 0.0, files=frozenset()
        )

    async def _load_here(self, version: ModelVersion, device: Device) -> Loaded:
        # The thread counts on the work of this load.
        loading = self._threads.submit(copy_context().run, self._load_in_own_thread, version, device)
        try:
            return await asyncio.wrap_future(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(_close_unused)
            raise

    async def _load_in_processes(self, version: ModelVersion, devices: Sequence[Device]) -> Loaded:
        files = await asyncio.to_thread(files_state, version.path)
        progress.phase("engine process")
        engine, started = await self._processes.load(version, devices)
        loaded = [each.loaded for each in started]
        num_ranks = len(devices) // len(loaded)
        return Loaded(
            engine,
            engine.model.spec,
            version.model.entry.instances * len(loaded),
            # The ranks of a process have parts of one size.
            tuple((device, loaded[index // num_ranks].memory_bytes) for index, device in enumerate(devices)),
            sum(each.load_s for each in loaded),
            sum(each.warm_up_s for each in loaded),
            files,
        )

    def _needs(self, version: ModelVersion) -> ModelNeeds:
        return self._registry(version.model.framework).needs(version.model.loaded_entry, version.path)

    def _load_in_own_thread(self, version: ModelVersion, device: Device) -> Loaded:
        """Load in a thread that ends with the load, and with it the OpenMP threads of the load.

        With more threads than CPUs, OpenMP puts the threads of every model to sleep at each barrier. The steps of a
        language model would take two to three times as long.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="load") as thread:
            return thread.submit(copy_context().run, self._load, version, device).result()

    def _load(self, version: ModelVersion, device: Device) -> Loaded:
        progress.phase("importing the framework")
        registry = self._registry(version.model.framework)
        if (version.model.framework, device.id) not in self._prepared:
            registry.prepare(device)
            self._prepared.add((version.model.framework, device.id))
        num_unloads = self._num_unloads
        files = files_state(version.path)
        loaded = load_instances(registry, version.model.loaded_entry, version.path, device, self.devices)
        instances, taken = loaded.instances, loaded.growth_bytes
        if self._num_unloads != num_unloads:
            # Another model released memory meanwhile, so the difference is too small.
            taken = version.memory_bytes // (1 + self._num_workers)
        spec = instances[0].spec
        states = spec.state_bytes if device.memory_id == "cpu" else 0
        memory_bytes = (max(spec.memory_bytes, taken) + states) * (1 + self._num_workers)
        return Loaded(
            instances,
            spec,
            len(instances),
            ((device, memory_bytes),),
            loaded.load_s,
            loaded.warm_up_s,
            files,
            reason_of_runs(instances) if self._num_workers else None,
        )

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


def close_instances(instances: LoadedModel) -> None:
    """Release the instances of a model that is not started."""
    for instance in instances:
        instance.close()


def _close_unused(loading: "Future[Loaded]") -> None:
    if not loading.cancelled() and loading.exception() is None:
        loading.result().close()
