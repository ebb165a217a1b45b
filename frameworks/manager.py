"""Register, load, roll out and unload models by name."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from frameworks.core.errors import (
    Draining,
    EvictionNeeded,
    InvalidInput,
    ModelExists,
    ModelNotFound,
    OutOfMemory,
    RoundhouseError,
    VersionNotFound,
)
from frameworks.core.settings.adapters import AdapterEntry
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.engine.threads import EngineThreads
from frameworks.models.residency.loader import Loader
from frameworks.models.residency.residency import ModelResidency
from frameworks.models.residency.subrequests import SubRequests
from frameworks.models.rollout.adapting import AdapterChanges
from frameworks.models.rollout.rollout import Rollout
from frameworks.models.rollout.watcher import FolderWatcher
from frameworks.models.versions.identity import ModelIdentity, batch_limits
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.traffic import Share
from frameworks.models.versions.version import ModelVersion
from frameworks.models.versions.version_folders import find_versions
from frameworks.runtime import ModelEntry
from frameworks.scheduling.admission import Permit
from frameworks.scheduling.device_clock import SharedDevices
from frameworks.scheduling.shared_limits import SharedLimits
from memory.budget import Budget
from memory.pooled_arrays import PooledArrays
from memory.shared_counters import CounterRow, NoFreeRow

log = structlog.get_logger(__name__)


class MLFrameworkManager:
    """Own every registered model. Used inside `async with`, whose exit drains and unloads all models."""

    def __init__(
        self,
        loader: Loader,
        performance: PerformanceSettings,
        scheduling: SchedulingSettings,
        drain_timeout_s: float,
        max_model_bytes: int | None = None,
        arrays: PooledArrays | None = None,
        shared_limits: SharedLimits | None = None,
    ) -> None:
        """Wire the parts; nothing is loaded yet.

        `max_model_bytes`: limit for all models on each device; None: 80 % of its free memory at entry. `arrays`: pool
        for large batches. `shared_limits`: the counts of all processes; None: this is the only one.
        """
        self.devices = loader.devices
        self._shared_devices = SharedDevices(arrays)
        self._engine_threads = EngineThreads()
        self._performance = performance
        self._scheduling = scheduling
        self._drain_timeout_s = drain_timeout_s
        self._max_model_bytes = max_model_bytes
        self._slots: dict[str, ModelSlot] = {}
        self.slots_by_name: Mapping[str, ModelSlot] = self._slots
        """See `ServedModels`."""
        self._loader = loader
        self.parts = SubRequests(self, scheduling.max_queue_size)
        """Sends the parts of requests to models: the steps of composite models."""
        self.composites = loader.composites
        """Load composite models, by framework."""
        self.residency = ModelResidency(self._loader, self.devices, scheduling.min_residency_s)
        self.on_unloaded = self.residency.on_unloaded
        self._rollout = Rollout(self.residency)
        self._adapters = AdapterChanges(self.residency)
        self._watcher = FolderWatcher(self.refresh)
        self._shared_limits = shared_limits
        self._is_open = False
        self._on_changed: list[Callable[[str], None]] = []

    @property
    def slots(self) -> list[ModelSlot]:
        """Every registered model, in order of registration."""
        return [slot for name, slot in self._slots.items() if name == slot.name]

    def slot(self, name: str) -> ModelSlot:
        """Return a model by its name or an alias. Raises ModelNotFound, which lists similar names."""
        try:
            return self._slots[name]
        except KeyError:
            raise ModelNotFound(name, self._slots) from None

    def register(self, framework: str, entry: ModelEntry, path: Path) -> ModelSlot:
        """Register a model without reading its files. Raises ModelExists, OutOfMemory.

        `path` is absolute; of a model with an address it is its folder in the cache.
        """
        for name in entry.names:
            if name in self._slots:
                raise ModelExists(name)
        identity = ModelIdentity(
            framework,
            entry,
            batch_limits(entry, self._performance),
            self._scheduling.ageing_ms / 1000,
            self._performance.isolation_of(entry),
            self._shared_devices,
            self._engine_threads,
            partial(self._report_changed, entry.name),
            self._new_row(),
        )
        slot = ModelSlot(identity, path)
        self._slots.update(dict.fromkeys(slot.names, slot))
        self._report_changed(entry.name)
        if self._is_open:
            self._watcher.follow(slot)
        return slot

    def on_changed(self, callback: Callable[[str], None]) -> None:
        """Call `callback(model)` after each change of a model that other processes must see, and after its removal."""
        self._on_changed.append(callback)

    async def wait_for(self, version: ModelVersion, permit: Permit) -> None:
        """Load a version for a request; see `ModelResidency.wait_for`."""
        await self.residency.wait_for(version, permit)

    async def load(self, name: str, version: str | None = None) -> ModelSlot:
        """Load and warm up a model, or one version of it while the old one serves, then activate it.

        Without `version`: every version that version_policy selects, including new folders; returns at once if all are
        ready and their files have not changed. If the new version fails, the old one continues to serve. The load
        continues if the caller is cancelled.

        Raises ModelNotFound, VersionNotFound, Draining, InvalidModel or OutOfMemory; after the last two that version is
        `failed` with the reason.
        """
        return await self.residency.run_to_end(self._load(self.slot(name), version))

    async def _load(self, slot: ModelSlot, version: str | None) -> ModelSlot:
        async with slot.lock:
            await self._scan_folder(slot)
            if version is not None:
                await self._rollout.serve(slot, slot.find(version))
                return slot
            served = [slot.versions[each] for each in slot.served]
            if slot.entry.version_policy == "latest" and served[-1].loads:
                served = [slot.active]  # also after a rollback: a version that was loaded before is not new
            failure: RoundhouseError | None = None
            for each in served:
                try:
                    await self._rollout.serve(slot, each)
                except RoundhouseError as error:
                    failure = failure or error
            if failure is not None:
                raise failure
        return slot

    async def rollback(self, name: str) -> ModelSlot:
        """Activate the version that was active before. Raises as `load`; VersionNotFound where there is none."""
        return await self.residency.run_to_end(self._roll_back(self.slot(name)))

    async def _roll_back(self, slot: ModelSlot) -> ModelSlot:
        async with slot.lock:
            await self._scan_folder(slot)
            if slot.previous is None:
                raise VersionNotFound(slot.name, "before", slot.versions)
            back = slot.find(slot.previous.version)
            await self._rollout.switch_to(slot, back)
        return slot

    async def split(self, name: str, kind: str, share: Share | None) -> ModelSlot:
        """Give a version a share of the traffic; None ends the share.

        `kind`: `canary`, whose answers are sent to callers, or `shadow`, whose answers are only compared. Raises as
        `load`, and InvalidInput for the active version.
        """
        return await self.residency.run_to_end(self._split(self.slot(name), kind, share))

    async def _split(self, slot: ModelSlot, kind: str, share: Share | None) -> ModelSlot:
        async with slot.lock:
            await self._scan_folder(slot)
            before = slot.canary if kind == "canary" else slot.shadow
            if share is not None:
                version = slot.find(share.version)
                if slot.has_state:
                    raise InvalidInput(kind, "expected a model without a state, as sequences stay with one version")
                if version is slot.active:
                    raise InvalidInput(kind, f'version "{share.version}" is the active version; name another one')
                await self._rollout.load_for_share(slot, version, kind)
            slot.set_share(kind, share)
            if before is not None and before.version in slot.versions:
                await self._rollout.retire_unless_kept(slot, slot.versions[before.version])
        return slot

    async def refresh(self, name: str, changed: frozenset[str]) -> None:
        """Reload versions whose files have changed while their old instances serve, and load new versions.

        A model that an operator unloaded stays unloaded. Raises as `load`.
        """
        slot = self.slot(name)
        async with slot.lock:
            new = await self._scan_folder(slot)
            if slot.active.state is ModelState.UNLOADED:
                return
            for each in [each for each in slot.served if each in new or each in changed]:
                await self._rollout.refresh(slot, slot.versions[each])

    async def unload(self, name: str, version: str | None = None, drain_timeout_s: float | None = None) -> ModelSlot:
        """Drain and unload a model, or one version of it. A download for its load is cancelled.

        `drain_timeout_s`: seconds after which the requests that are left fail with Draining, also if another command
        drains them; the unload then continues if the caller is cancelled. None: wait for all requests.

        Raises ModelNotFound, VersionNotFound.
        """
        slot = self.slot(name)
        slot.identity.downloads.cancel(version)  # its load holds the slot's lock
        if drain_timeout_s is None:
            await self._unload(slot, version, None)
        else:
            await self.residency.run_to_end(self._unload_within(slot, version, drain_timeout_s))
        return slot

    async def _unload_within(self, slot: ModelSlot, version: str | None, drain_timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + drain_timeout_s
        # Another command that drains the model may hold the slot's lock.
        timer = loop.call_at(deadline_s, self.residency.end_draining, slot.identity, version)
        try:
            await self._unload(slot, version, deadline_s)
        finally:
            timer.cancel()

    async def _unload(self, slot: ModelSlot, version: str | None, deadline_s: float | None) -> None:
        async with slot.lock:
            await self._scan_folder(slot)
            versions = [slot.find(version)] if version is not None else list(slot.versions.values())
            for each in versions:
                for share in (slot.canary, slot.shadow):
                    if share is not None and share.version == each.version:
                        slot.end_share(share)
            await asyncio.gather(*(self.residency.unload(each, deadline_s=deadline_s) for each in versions))
            self._rollout.replace_unloaded(slot)
        log.info("model unloaded", model=slot.name, versions=[each.version for each in versions])

    async def remove(self, name: str) -> None:
        """Unload a model and forget its name. Raises ModelNotFound."""
        slot = await self.unload(name)
        if self._slots.get(slot.name) is slot:
            self._forget(slot)
            await self._watcher.unfollow(slot.name)

    async def add_adapter(self, name: str, adapter: AdapterEntry) -> ModelSlot:
        """Load an adapter into a model while it serves. Its `path` is absolute. The load continues if the caller is
        cancelled.

        Raises ModelNotFound, AdapterExists, ModelUnloaded, InvalidInput, InvalidModel, OutOfMemory.
        """
        return await self.residency.run_to_end(self._add_adapter(self.slot(name), adapter))

    async def _add_adapter(self, slot: ModelSlot, adapter: AdapterEntry) -> ModelSlot:
        async with slot.lock:
            self._check_registered(slot)
            await self._adapters.add(slot, adapter)
        return slot

    async def remove_adapter(self, name: str, adapter: str) -> None:
        """Unload an adapter after the requests that use it. As `add_adapter`; raises AdapterNotFound."""
        await self.residency.run_to_end(self._remove_adapter(self.slot(name), adapter))

    async def _remove_adapter(self, slot: ModelSlot, adapter: str) -> None:
        async with slot.lock:
            self._check_registered(slot)
            await self._adapters.remove(slot, adapter)

    async def add(self, framework: str, entry: ModelEntry, path: Path) -> ModelSlot:
        """Register a model and, unless it is `lazy`, load it; a model that cannot be loaded is removed again.

        Raises ModelExists, InvalidModel or OutOfMemory.
        """
        slot = self.register(framework, entry, path)
        if entry.load == "lazy":
            return slot
        try:
            await self.load(entry.name)
        except asyncio.CancelledError:
            raise  # its load continues
        except BaseException:
            if self._slots.get(entry.name) is slot:
                self._forget(slot)
            for version in slot.versions.values():
                await self.residency.retire(version)
            raise
        return slot

    def _new_row(self) -> CounterRow | None:
        """Return where all processes count the requests of a new model."""
        limits = self._shared_limits
        try:
            return None if limits is None else limits.model(limits.allocate_row())
        except NoFreeRow as error:
            raise OutOfMemory(str(error)) from error

    def _forget(self, slot: ModelSlot) -> None:
        for name in slot.names:
            del self._slots[name]
        self._report_changed(slot.name)
        row = slot.identity.row
        if self._shared_limits is not None and row is not None:
            self._shared_limits.free_row(row.number)

    async def load_registered(self) -> None:
        """Load every start-up model; a failure is logged, and the next model is loaded.

        No model is evicted for another: a model that does not fit is loaded by its first request. Models with an
        address do not wait for the downloads of others.
        """
        slots = [slot for slot in self.slots if slot.entry.load != "lazy" and not slot.identity.is_composite]
        local = [slot for slot in slots if not slot.has_address]
        await asyncio.gather(
            self._load_in_order(local), *(self._load_in_order([slot]) for slot in slots if slot.has_address)
        )
        # After their models, which they would load otherwise.
        await self._load_in_order([slot for slot in self.slots if slot.identity.is_composite])

    async def _load_in_order(self, slots: Iterable[ModelSlot]) -> None:
        for slot in slots:
            for version in slot.served:
                try:
                    await self.residency.load(slot.versions[version], may_evict=False)
                except EvictionNeeded as error:
                    log.warning("model is not loaded at start-up", model=slot.name, reason=error.message)
                except RoundhouseError as error:
                    log.debug("model is not loaded at start-up", model=slot.name, reason=error.message)  # logged above
                except Exception:
                    log.exception("model failed to load", model=slot.name, version=version)

    async def __aenter__(self) -> Self:
        limits = await asyncio.to_thread(self.devices.memory_limits, self._max_model_bytes)
        self.residency.ledger.budget = Budget(limits)
        self._is_open = True
        for slot in self.slots:
            self._watcher.follow(slot)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Drain and unload every model; after the drain timeout abort what remains."""
        self._is_open = False
        await self._watcher.close()
        self.residency.close()
        for slot in self.slots:
            slot.identity.downloads.cancel(None)
        versions = [version for slot in self.slots for version in slot.versions.values()]
        try:
            async with asyncio.timeout(self._drain_timeout_s):
                await asyncio.gather(*(self.residency.unload(version) for version in versions))
                await self.residency.unload_all()
        except TimeoutError:
            log.warning(
                "drain timed out", inflight={s.name: s.requests.inflight for s in self.slots if s.requests.inflight}
            )
        await self.residency.abort(Draining.UNANSWERED)
        for version in versions:
            version.abort(Draining.UNANSWERED)
        self._loader.close()
        self._engine_threads.close()

    async def _scan_folder(self, slot: ModelSlot) -> list[str]:
        """Update the versions from the folder, and return the new ones. In a thread: the disk may be slow."""
        self._check_registered(slot)
        if not slot.has_folders:
            return []
        return slot.update_versions(await asyncio.to_thread(find_versions, slot.path))

    def _report_changed(self, name: str) -> None:
        for callback in self._on_changed:
            callback(name)

    def _check_registered(self, slot: ModelSlot) -> None:
        """Raises ModelNotFound where the model was deleted while the caller waited for its lock."""
        if self._slots.get(slot.name) is not slot:
            raise ModelNotFound(slot.name, self._slots)
