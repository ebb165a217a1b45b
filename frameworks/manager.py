"""The turntable: turns a name to its model; loads, drains and unloads; owns registries and devices."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from frameworks.devices import DeviceManager
from frameworks.errors import Draining, InvalidModel, ModelExists, ModelNotFound, RoundhouseError
from frameworks.runtime import BatchModel, ModelEntry, Registry
from frameworks.scheduling.batcher import BatchLimits
from frameworks.settings import PerformanceSettings, SchedulingSettings
from frameworks.slot import ModelSlot, ModelState

log = structlog.get_logger(__name__)

# Loads run two at a time at most: more would only contend for the disk and the GIL.
LOADER_THREADS = 2


class MLFrameworkManager:
    """Holds every registered model. Used inside `async with`; leaving it drains and unloads them all."""

    def __init__(
        self,
        registries: dict[str, Callable[[], Registry]],
        devices: DeviceManager,
        performance: PerformanceSettings,
        scheduling: SchedulingSettings,
        drain_timeout_s: float,
    ) -> None:
        """`registries`: per framework how to make its registry, called once, when its first model is loaded."""
        self.devices = devices
        self._make_registry = registries
        self._registries: dict[str, Registry] = {}
        self._registries_lock = threading.Lock()
        self._performance = performance
        self._scheduling = scheduling
        self._drain_timeout_s = drain_timeout_s
        self._slots: dict[str, ModelSlot] = {}
        self._loader = ThreadPoolExecutor(LOADER_THREADS, thread_name_prefix="loader")
        self._is_closing = False
        self._when_unloaded: list[Callable[[str], None]] = []

    def when_unloaded(self, callback: Callable[[str], None]) -> None:
        """`callback(name)` is called whenever a model's instances are gone: the next ones may be of other files."""
        self._when_unloaded.append(callback)

    @property
    def slots(self) -> list[ModelSlot]:
        """Every registered model, in order of registration."""
        return list(self._slots.values())

    def slot(self, name: str) -> ModelSlot:
        """Raises ModelNotFound, which lists near names."""
        try:
            return self._slots[name]
        except KeyError:
            raise ModelNotFound(name, self._slots) from None

    def register(self, framework: str, entry: ModelEntry, path: Path) -> ModelSlot:
        """Takes a model's name; nothing is read yet. `path` is absolute. Raises ModelExists."""
        if entry.name in self._slots:
            raise ModelExists(entry.name)
        slot = ModelSlot(
            framework,
            entry,
            path,
            BatchLimits(
                max_rows=entry.max_batch_size or self._performance.max_batch_size,
                max_tokens=entry.max_batch_tokens,
                max_delay_s=entry.max_queue_delay_ms / 1000,
            ),
            ageing_s=self._scheduling.ageing_ms / 1000,
        )
        self._slots[entry.name] = slot
        return slot

    async def load(self, name: str) -> ModelSlot:
        """Loads and warms up a model; returns at once if it is ready.

        Raises ModelNotFound, Draining, InvalidModel or OutOfMemory; after the last two the model is `failed` with the
        reason.
        """
        slot = self.slot(name)
        async with slot.change:
            self._still_there(slot)
            if slot.state is not ModelState.READY:
                await self._load(slot)
        return slot

    async def unload(self, name: str) -> ModelSlot:
        """Answers what is in flight, then unloads. Raises ModelNotFound."""
        slot = self.slot(name)
        async with slot.change:
            self._still_there(slot)
            await slot.stop()
            self._tell_unloaded(name)
        log.info("model unloaded", model=name)
        return slot

    async def remove(self, name: str) -> None:
        """Unloads a model and forgets its name. Raises ModelNotFound."""
        slot = await self.unload(name)
        if self._slots.get(name) is slot:
            del self._slots[name]

    async def add(self, framework: str, entry: ModelEntry, path: Path) -> ModelSlot:
        """Registers and loads; a model that cannot be loaded is not kept.

        Raises ModelExists, InvalidModel or OutOfMemory.
        """
        slot = self.register(framework, entry, path)
        try:
            await self.load(entry.name)
        except BaseException:
            self._slots.pop(entry.name, None)
            raise
        return slot

    async def load_registered(self) -> None:
        """Loads, at start-up, every model that is registered; a failure is logged and shown, and the others go on."""
        for name in list(self._slots):
            try:
                await self.load(name)
            except RoundhouseError as error:
                log.error("model failed to load", model=name, reason=error.message)
            except Exception:
                log.exception("model failed to load", model=name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Lets every model finish what it has, for the drain's time at most, then unloads it."""
        self._is_closing = True
        try:
            async with asyncio.timeout(self._drain_timeout_s):
                await asyncio.gather(*(_stop_after_load(slot) for slot in self.slots))
        except TimeoutError:
            log.warning(
                "drain timed out", inflight={s.name: s.requests.inflight for s in self.slots if s.requests.inflight}
            )
            for slot in self.slots:
                slot.give_up("the server went down before this was answered")
        self._loader.shutdown(wait=False, cancel_futures=True)

    async def _load(self, slot: ModelSlot) -> None:
        if self._is_closing:
            raise Draining("the server is going down; it loads no more models")
        slot.begin_load()
        self._tell_unloaded(slot.name)
        started_s = time.perf_counter()
        loading = self._loader.submit(self._load_and_warm_up, slot)
        try:
            instances, warm_up_s = await asyncio.wrap_future(loading)
        except RoundhouseError as error:
            slot.fail(error.message)
            raise
        except Exception as error:
            # What a library raises on files that lie is its own affair; the caller gets our word for it.
            log.exception("model failed to load", model=slot.name)
            slot.fail(f"{type(error).__name__}: {error}")
            raise InvalidModel(f'model "{slot.name}" cannot be loaded: {type(error).__name__}: {error}') from error
        except asyncio.CancelledError:
            # A thread cannot be stopped: what it still brings is closed.
            loading.add_done_callback(_close_unused)
            slot.fail("its load was cancelled")
            raise
        if slot.state is not ModelState.LOADING:
            _close(instances)
            raise Draining("the server went down before the model was loaded")
        slot.start(instances, time.perf_counter() - started_s)
        spec = instances[0].spec
        log.info(
            "model ready",
            model=slot.name,
            framework=slot.framework,
            task=spec.task,
            device=spec.device,
            dtype=spec.dtype,
            providers=list(spec.providers) or None,
            memory_bytes=spec.memory_bytes,
            instances=len(instances),
            load_s=round(slot.load_s, 3),
            warm_up_s=round(warm_up_s, 3),
        )

    def _load_and_warm_up(self, slot: ModelSlot) -> tuple[list[BatchModel], float]:
        """In a loader thread."""
        instances = [*self._registry(slot.framework).load(slot.entry, slot.path)]
        started_s = time.perf_counter()
        try:
            for model in instances:
                model.warm_up()
        except BaseException:
            _close(instances)
            raise
        return instances, time.perf_counter() - started_s

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

    def _tell_unloaded(self, name: str) -> None:
        for callback in self._when_unloaded:
            callback(name)

    def _still_there(self, slot: ModelSlot) -> None:
        """A caller that waited for its turn may find that the model was deleted meanwhile."""
        if self._slots.get(slot.name) is not slot:
            raise ModelNotFound(slot.name, self._slots)


async def _stop_after_load(slot: ModelSlot) -> None:
    async with slot.change:
        await slot.stop()


def _close_unused(loading: "Future[tuple[list[BatchModel], float]]") -> None:
    if not loading.cancelled() and loading.exception() is None:
        _close(loading.result()[0])


def _close(instances: list[BatchModel]) -> None:
    for model in instances:
        model.close()
