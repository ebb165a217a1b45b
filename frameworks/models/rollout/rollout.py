"""Switch a model's traffic between versions: load the new version, activate it, unload the old one."""

import asyncio

import structlog

from frameworks.models.residency.residency import ModelResidency
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.version import ModelVersion
from frameworks.models.versions.version_folders import files_state

log = structlog.get_logger(__name__)


class Rollout:
    """Its methods need the slot's lock. They raise the errors of a load; the old version then continues to serve."""

    def __init__(self, residency: ModelResidency) -> None:
        self._residency = residency

    async def serve(self, slot: ModelSlot, version: ModelVersion) -> None:
        """Load a version and activate it. An older version beside the active one is only loaded.

        A version that is ready is loaded again if its files have changed; the old instances serve until then.
        """
        if not version.is_ready:
            version.fetched = None  # an operator's load lists the source again
        elif (changed := await self._changed_copy(slot, version)) is not None:
            log.info("model files have changed", model=slot.name, version=version.version)
            old, version = version, changed
            await self.switch_to(slot, version, instead_of=old)
        keeps_all = slot.entry.version_policy != "latest"
        older = int(version.version) < int(slot.active.version)
        if keeps_all and older and slot.active.state is not ModelState.UNLOADED and version.version in slot.served:
            await self._residency.load(version, keep=slot.active)
        else:
            await self.switch_to(slot, version)

    async def _changed_copy(self, slot: ModelSlot, version: ModelVersion) -> ModelVersion | None:
        """Return an unloaded copy of a version whose files have changed; None where they are the same.

        None as well where the files are gone: the loaded version is the only copy left.
        """
        copy = _unloaded_copy(slot, version)
        await self._residency.fetch(copy)
        files = await asyncio.to_thread(files_state, copy.path)
        return copy if files and files != version.files else None

    async def switch_to(self, slot: ModelSlot, version: ModelVersion, instead_of: ModelVersion | None = None) -> None:
        """Load a version while the active one serves, then activate it. `instead_of`: default the active version."""
        old = instead_of or slot.active
        if version is old:
            await self._residency.load(version)
            return
        shadow, version = version, _for_callers(slot, version)
        await self._residency.load(version, keep=old if old.is_ready else None)
        if old is slot.active:
            slot.activate(version)
        else:
            slot.replace(version)
        log.info("model version activated", model=slot.name, version=version.version, before=old.version)
        await self.retire_unless_kept(slot, old)
        if shadow is not version:
            await self.retire_unless_kept(slot, shadow)

    async def load_for_share(self, slot: ModelSlot, version: ModelVersion, kind: str) -> None:
        """Load a version beside the active one. `kind`: of its share, `canary` or `shadow`.

        The process of a version that is only a shadow has a low priority, as long as no caller waits for it.
        """
        is_loaded = version.spec is not None
        if kind == "shadow" and not is_loaded:
            version.is_background = version.version not in slot.answering
        elif kind == "canary" and (copy := _for_callers(slot, version)) is not version:
            await self.switch_to(slot, copy, instead_of=version)
            return
        await self._residency.load(version, keep=slot.active)

    async def retire_unless_kept(self, slot: ModelSlot, version: ModelVersion) -> None:
        """Drain and unload a version without traffic. The unload continues if the caller is cancelled."""
        if slot.versions.get(version.version) is not version or not (version is slot.active or slot.is_kept(version)):
            await self._residency.retire(version)

    def replace_unloaded(self, slot: ModelSlot) -> None:
        """Activate the newest ready version where the active one was unloaded."""
        if slot.active.state is ModelState.UNLOADED:
            served = [slot.versions[name] for name in slot.served]
            ready = [each for each in served if each.is_ready and not each.is_background]
            if ready:
                slot.activate(ready[-1])

    async def refresh(self, slot: ModelSlot, version: ModelVersion) -> None:
        """Load a version whose files are new or have changed."""
        newer = int(version.version) > int(slot.active.version)
        if version.spec is not None:
            await self.switch_to(slot, _unloaded_copy(slot, version), instead_of=version)
        elif slot.active.state is ModelState.REGISTERED:
            version.defer_load()
            if newer:
                slot.activate(version)
        elif newer or version is slot.active or slot.entry.version_policy != "latest":
            await self.serve(slot, version)


def _unloaded_copy(slot: ModelSlot, version: ModelVersion) -> ModelVersion:
    return ModelVersion(slot.identity, version.version, version.path)


def _for_callers(slot: ModelSlot, version: ModelVersion) -> ModelVersion:
    """Return the version, or an unloaded copy where its process runs with the low priority of a shadow.

    The priority of a running process cannot be raised without a privilege.
    """
    has_low_priority = version.is_background and version.isolation == "process" and version.model.entry.niceness is None
    if has_low_priority and version.spec is not None:
        return _unloaded_copy(slot, version)
    version.is_background = False
    return version
