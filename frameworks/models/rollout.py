"""Turns a model's traffic from one version to another: the new one is loaded beside the old, which then leaves."""

import structlog

from frameworks.models.residency import ModelResidency
from frameworks.models.slot import ModelSlot
from frameworks.models.version import ModelState, ModelVersion

log = structlog.get_logger(__name__)


class Rollout:
    """Its calls are made with the slot's lock held, and raise what a load raises; then the old version serves on."""

    def __init__(self, residency: ModelResidency) -> None:
        self._residency = residency

    async def serve(self, slot: ModelSlot, version: ModelVersion) -> None:
        """Has a version loaded; it becomes the active one, unless an older one is only to be there as well."""
        keeps_all = slot.entry.version_policy != "latest"
        older = int(version.version) < int(slot.active.version)
        if keeps_all and older and slot.active.state is not ModelState.UNLOADED and version.version in slot.served:
            await self._residency.load(version, beside=slot.active)
        else:
            await self.switch_to(slot, version)

    async def switch_to(self, slot: ModelSlot, version: ModelVersion, instead_of: ModelVersion | None = None) -> None:
        """Loads a version beside the active one, which serves on until then, and turns the traffic over to it."""
        old = instead_of or slot.active
        if version is old:
            await self._residency.load(version)
            return
        await self._residency.load(version, beside=old if old.is_ready else None)
        if old is slot.active:
            slot.turn_over(version)
        else:
            slot.versions[version.version] = version
        log.info("model turned over", model=slot.name, version=version.version, before=old.version)
        await self.retire_unless_kept(slot, old)

    async def retire_unless_kept(self, slot: ModelSlot, version: ModelVersion) -> None:
        """A version that nobody is sent to any more drains and leaves, also if who ordered it goes away meanwhile."""
        if slot.versions.get(version.version) is not version or not (version is slot.active or slot.is_kept(version)):
            await self._residency.retire(version)

    def choose_another(self, slot: ModelSlot) -> None:
        """Where the active version was unloaded and others serve, the newest of them is active."""
        if slot.active.state is ModelState.UNLOADED:
            ready = [slot.versions[name] for name in slot.served if slot.versions[name].is_ready]
            if ready:
                slot.turn_over(ready[-1])

    async def take_in(self, slot: ModelSlot, version: ModelVersion) -> None:
        """A version whose files are new or changed."""
        newer = int(version.version) > int(slot.active.version)
        if version.spec is not None:
            await self.switch_to(slot, ModelVersion(slot.identity, version.version, version.path), instead_of=version)
        elif slot.active.state is ModelState.REGISTERED:
            # It is loaded when it is asked for.
            version.postpone()
            if newer:
                slot.turn_over(version)
        elif newer or version is slot.active or slot.entry.version_policy != "latest":
            await self.serve(slot, version)
