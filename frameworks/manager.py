"""The turntable: turns a name to its model; loads, swaps, rolls back and unloads; owns the slots."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from frameworks.devices import DeviceManager
from frameworks.errors import (
    InvalidInput,
    ModelExists,
    ModelNotFound,
    NoRoomNow,
    RoundhouseError,
    VersionNotFound,
)
from frameworks.models.loader import Loader
from frameworks.models.residency import ModelResidency
from frameworks.models.rollout import Rollout
from frameworks.models.slot import ModelSlot
from frameworks.models.traffic import Share
from frameworks.models.version import ModelState, ModelVersion
from frameworks.models.version_folders import find_versions
from frameworks.models.watcher import FolderWatcher
from frameworks.runtime import ModelEntry, Registry
from frameworks.scheduling.admission import Permit
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.settings import PerformanceSettings, SchedulingSettings
from memory.budget import Budget
from memory.pooled_arrays import PooledArrays

log = structlog.get_logger(__name__)


class MLFrameworkManager:
    """Holds every registered model. Used inside `async with`; leaving it drains and unloads them all."""

    def __init__(
        self,
        registries: dict[str, Callable[[], Registry]],
        devices: DeviceManager,
        performance: PerformanceSettings,
        scheduling: SchedulingSettings,
        drain_timeout_s: float,
        max_model_bytes: int | None = None,
        arrays: PooledArrays | None = None,
    ) -> None:
        """`registries`: per framework how to make its registry, called once, when its first model is loaded.

        `max_model_bytes`: that all models together may take on each device; None: 80 % of what it has free when the
        manager is entered. `arrays`: for large batches.
        """
        self.devices = devices
        self._arrays = arrays
        self._performance = performance
        self._scheduling = scheduling
        self._drain_timeout_s = drain_timeout_s
        self._max_model_bytes = max_model_bytes
        self._slots: dict[str, ModelSlot] = {}
        self._loader = Loader(registries, devices)
        self.residency = ModelResidency(self._loader, devices)
        self.when_unloaded = self.residency.when_unloaded
        self._turnover = Rollout(self.residency)
        self._folders = FolderWatcher(self.refresh)
        self._is_open = False

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
        """Takes a model's name; nothing of its files is read yet. `path` is absolute. Raises ModelExists."""
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
            arrays=self._arrays,
        )
        self._slots[entry.name] = slot
        if self._is_open:
            self._folders.follow(slot)
        return slot

    async def wait_for(self, version: ModelVersion, permit: Permit) -> None:
        """Brings in a version for a request; see `ModelResidency.wait_for`."""
        await self.residency.wait_for(version, permit)

    async def load(self, name: str, version: str | None = None) -> ModelSlot:
        """Loads and warms up a model, or one version of it beside the one that serves, and turns the traffic over.

        Without `version`: what the entry's version_policy has served, a version that appeared since included; returns
        at once if all that is ready. If the new version fails, the old one goes on serving. The order is carried out
        also if who gave it goes away.

        Raises ModelNotFound, VersionNotFound, Draining, InvalidModel or OutOfMemory; after the last two that version is
        `failed` with the reason.
        """
        return await self.residency.finish(self._load(self.slot(name), version))

    async def _load(self, slot: ModelSlot, version: str | None) -> ModelSlot:
        async with slot.change:
            await self._look(slot)
            if version is not None:
                await self._turnover.serve(slot, slot.find(version))
                return slot
            served = [slot.versions[each] for each in slot.served]
            if slot.entry.version_policy == "latest" and served[-1].loads:
                served = [slot.active]  # also after a way back: what has been loaded before is not new
            failure: RoundhouseError | None = None
            for each in served:
                try:
                    await self._turnover.serve(slot, each)
                except RoundhouseError as error:
                    failure = failure or error
            if failure is not None:
                raise failure
        return slot

    async def rollback(self, name: str) -> ModelSlot:
        """Turns the traffic back to the version that answered before. Raises as `load`; VersionNotFound where there is
        none.
        """
        return await self.residency.finish(self._roll_back(self.slot(name)))

    async def _roll_back(self, slot: ModelSlot) -> ModelSlot:
        async with slot.change:
            await self._look(slot)
            if slot.previous is None:
                raise VersionNotFound(slot.name, "before", slot.versions)
            back = slot.find(slot.previous.version)
            await self._turnover.switch_to(slot, back)
        return slot

    async def split(self, name: str, kind: str, share: Share | None) -> ModelSlot:
        """Gives a version a share of the traffic, beside the active one. `kind`: `canary`, whose answers the callers
        get, or `shadow`, whose answers are only compared. None ends it.

        Raises as `load`, and InvalidInput for the active version.
        """
        return await self.residency.finish(self._split(self.slot(name), kind, share))

    async def _split(self, slot: ModelSlot, kind: str, share: Share | None) -> ModelSlot:
        async with slot.change:
            await self._look(slot)
            before = slot.canary if kind == "canary" else slot.shadow
            if share is not None:
                version = slot.find(share.version)
                if version is slot.active:
                    raise InvalidInput(kind, f'version "{share.version}" answers already; name another one')
                await self.residency.load(version, beside=slot.active)
            if kind == "canary":
                slot.canary = share
            else:
                slot.shadow = share
            if before is not None and before.version in slot.versions:
                await self._turnover.retire_unless_kept(slot, slot.versions[before.version])
        return slot

    async def refresh(self, name: str, changed: frozenset[str]) -> None:
        """Files of these versions have changed: what is loaded of them is loaded anew beside itself, and a version that
        has appeared is loaded and turned to. What was ordered out stays out. Raises as `load`.
        """
        slot = self.slot(name)
        async with slot.change:
            new = await self._look(slot)
            if slot.active.state is ModelState.UNLOADED:
                return
            for each in [each for each in slot.served if each in new or each in changed]:
                await self._turnover.take_in(slot, slot.versions[each])

    async def unload(self, name: str, version: str | None = None) -> ModelSlot:
        """Answers what is in flight, then unloads a model, or one version of it.

        Raises ModelNotFound, VersionNotFound.
        """
        slot = self.slot(name)
        async with slot.change:
            await self._look(slot)
            going = [slot.find(version)] if version is not None else list(slot.versions.values())
            for each in going:
                for share in (slot.canary, slot.shadow):
                    if share is not None and share.version == each.version:
                        slot.end(share)
            await asyncio.gather(*(self.residency.unload(each) for each in going))
            self._turnover.choose_another(slot)
        log.info("model unloaded", model=name, versions=[each.version for each in going])
        return slot

    async def remove(self, name: str) -> None:
        """Unloads a model and forgets its name. Raises ModelNotFound."""
        slot = await self.unload(name)
        if self._slots.get(name) is slot:
            del self._slots[name]
            await self._folders.leave(name)

    async def add(self, framework: str, entry: ModelEntry, path: Path) -> ModelSlot:
        """Registers and, unless its entry says `lazy`, loads; a model that cannot be loaded is not kept.

        Raises ModelExists, InvalidModel or OutOfMemory.
        """
        slot = self.register(framework, entry, path)
        if entry.load == "lazy":
            return slot
        try:
            await self.load(entry.name)
        except asyncio.CancelledError:
            raise  # its load goes on
        except BaseException:
            if self._slots.get(entry.name) is slot:
                del self._slots[entry.name]
            for version in slot.versions.values():
                await self.residency.retire(version)
            raise
        return slot

    async def load_registered(self) -> None:
        """Loads every start-up model that is registered; a failure is logged and shown, and the others go on.

        None leaves for another: what has no room any more is loaded when it is asked for.
        """
        for slot in self.slots:
            if slot.entry.load == "lazy":
                continue
            for version in slot.served:
                try:
                    await self.residency.load(slot.versions[version], may_evict=False)
                except NoRoomNow as error:
                    log.warning("model is not loaded at start-up", model=slot.name, reason=error.message)
                except RoundhouseError as error:
                    log.error("model failed to load", model=slot.name, version=version, reason=error.message)
                except Exception:
                    log.exception("model failed to load", model=slot.name, version=version)

    async def __aenter__(self) -> Self:
        limits = await asyncio.to_thread(self.devices.memory_limits, self._max_model_bytes)
        self.residency.ledger.budget = Budget(limits)
        self._is_open = True
        for slot in self.slots:
            self._folders.follow(slot)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Lets every model finish what it has, for the drain's time at most, then unloads it."""
        self._is_open = False
        await self._folders.close()
        self.residency.close()
        versions = [version for slot in self.slots for version in slot.versions.values()]
        try:
            async with asyncio.timeout(self._drain_timeout_s):
                await asyncio.gather(*(self.residency.unload(version) for version in versions))
                await self.residency.empty()
        except TimeoutError:
            log.warning(
                "drain timed out", inflight={s.name: s.requests.inflight for s in self.slots if s.requests.inflight}
            )
        message = "the server went down before this was answered"
        await self.residency.abort(message)
        for version in versions:
            version.abort(message)
        self._loader.close()

    async def _look(self, slot: ModelSlot) -> list[str]:
        """Which version folders have appeared since the last look. In a thread: the disk may be slow."""
        self._still_there(slot)
        return slot.take_versions(await asyncio.to_thread(find_versions, slot.path))

    def _still_there(self, slot: ModelSlot) -> None:
        """A caller that waited for its turn may find that the model was deleted meanwhile."""
        if self._slots.get(slot.name) is not slot:
            raise ModelNotFound(slot.name, self._slots)
