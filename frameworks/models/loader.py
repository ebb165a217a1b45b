"""Loads models in threads: reads what they need, makes their instances, warms them up, measures what they take."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from frameworks.devices import Device, DeviceManager, ModelNeeds
from frameworks.models.version import ModelVersion
from frameworks.runtime import LoadedModel, Registry
from memory.allocator import give_back_freed_memory, in_use_bytes
from memory.host import mapped_bytes, resident_bytes

# Loads run one at a time: what a model takes beyond its size while it is read is taken by one only, and what is
# measured is its own.
LOADER_THREADS = 1


@dataclass(frozen=True, slots=True)
class Loaded:
    """Instances that are warmed up, and the bytes that they take, as measured."""

    instances: LoadedModel
    memory_bytes: int
    warm_up_s: float

    def close(self) -> None:
        for instance in self.instances:
            instance.close()


class Loader:
    """Owns the frameworks' registries, and the threads that use them."""

    def __init__(self, registries: dict[str, Callable[[], Registry]], devices: DeviceManager) -> None:
        """`registries`: per framework how to make its registry, called once, when its first model is loaded."""
        self._make_registry = registries
        self._registries: dict[str, Registry] = {}
        self._registries_lock = threading.Lock()
        self._devices = devices
        self._threads = ThreadPoolExecutor(LOADER_THREADS, thread_name_prefix="loader")
        self._departures = 0
        self._prepared: set[tuple[str, str]] = set()

    async def needs(self, version: ModelVersion) -> ModelNeeds:
        """What the version wants of a device. Raises InvalidModel."""
        return await asyncio.wrap_future(self._threads.submit(self._needs, version))

    async def load(self, version: ModelVersion, device: Device) -> Loaded:
        """Raises InvalidModel, OutOfMemory, or what a library raises on files that lie.

        A thread cannot be stopped: what it still brings for a caller that was cancelled is closed.
        """
        loading = self._threads.submit(self._load_apart, version, device)
        try:
            return await asyncio.wrap_future(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(_close_unused)
            raise

    async def tidy(self) -> None:
        """Gives back what a model left behind."""
        self._departures += 1
        await asyncio.to_thread(_give_back_memory)

    def close(self) -> None:
        """Starts nothing more. What runs is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _needs(self, version: ModelVersion) -> ModelNeeds:
        return self._registry(version.model.framework).needs(version.model.entry, version.path)

    def _load_apart(self, version: ModelVersion, device: Device) -> Loaded:
        """In a thread that ends with the load, and with it the OpenMP threads that computed for it. As long as they
        were there, asleep, OpenMP would count more threads than CPUs and put those of every model to sleep at each of
        their barriers, which makes a language model's steps two to three times as long.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="load") as thread:
            return thread.submit(self._load, version, device).result()

    def _load(self, version: ModelVersion, device: Device) -> Loaded:
        registry = self._registry(version.model.framework)
        if (version.model.framework, device.id) not in self._prepared:
            registry.prepare(device)
            self._prepared.add((version.model.framework, device.id))
        departures = self._departures
        before = self._measure(version.path, device)
        instances = registry.load(version.model.entry, version.path, device)
        started_s = time.perf_counter()
        try:
            for instance in instances:
                instance.warm_up()
        except BaseException:
            for instance in instances:
                instance.close()
            raise
        warm_up_s = time.perf_counter() - started_s
        give_back_freed_memory()
        taken = self._measure(version.path, device) - before
        if self._departures != departures:
            # Somebody gave memory back meanwhile: what was seen is less than what was taken.
            taken = version.memory_bytes
        return Loaded(instances, max(instances[0].spec.memory_bytes, taken), warm_up_s)

    def _measure(self, path: Path, device: Device) -> int:
        """Bytes in use, of which only the difference of two looks means something."""
        if device.kind == "cuda":
            return -next((d.free_bytes for d in self._devices.devices() if d.id == device.id), 0)
        in_use = in_use_bytes()
        if in_use is None:
            return resident_bytes()
        return in_use + mapped_bytes(path)

    def _registry(self, framework: str) -> Registry:
        """Made in the loader thread that needs it first: making it imports the framework."""
        with self._registries_lock:
            if framework not in self._registries:
                self._registries[framework] = self._make_registry[framework]()
                # A framework brings up to 200,000 objects that stay for ever. Left in the collector's care they are
                # walked through again and again, 35 ms each time that the loop stands still.
                gc.collect()
                gc.freeze()
            return self._registries[framework]


def _give_back_memory() -> None:
    """What a closed model leaves: first what only the collector finds (frameworks are frozen, so it is quick), then the
    pages that lie free.
    """
    gc.collect()
    give_back_freed_memory()


def _close_unused(loading: "Future[Loaded]") -> None:
    if not loading.cancelled() and loading.exception() is None:
        loading.result().close()
