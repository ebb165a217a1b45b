"""Add adapters to a model, and remove them, while it serves."""

import structlog

from frameworks.core.errors import AdapterExists, AdapterNotFound, InvalidInput, ModelUnloaded
from frameworks.core.settings.adapters import MAX_ADAPTERS, AdapterEntry
from frameworks.engine.local import LocalEngine
from frameworks.models.residency.residency import ModelResidency
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.states import ModelState
from frameworks.models.versions.version import ModelVersion
from frameworks.scheduling.admission import Permit, RequestLimit

log = structlog.get_logger(__name__)


class AdapterChanges:
    """Change the adapters of all loaded versions of a model. Owned by the event loop. Call it with the slot's lock."""

    def __init__(self, residency: ModelResidency) -> None:
        self._residency = residency
        self._limit = RequestLimit("adapters", None, None)

    async def add(self, slot: ModelSlot, adapter: AdapterEntry) -> None:
        """Load an adapter into each loaded version, while texts are generated. Where none is loaded, the active one is
        loaded with it.

        Raises AdapterExists, ModelUnloaded, InvalidInput, InvalidModel, OutOfMemory; the adapter is then forgotten.
        """
        adapters = slot.identity.adapters
        if adapter.name in adapters:
            raise AdapterExists(slot.name, adapter.name)
        if len(adapters) >= MAX_ADAPTERS:
            raise InvalidInput("name", f"expected at most {MAX_ADAPTERS} adapters of a model; delete one first")
        if slot.active.state is ModelState.UNLOADED:
            raise ModelUnloaded(f'model "{slot.name}" was unloaded; POST /models/{slot.name}/load loads it again')
        _check_runs_here(slot)
        loaded = _loaded(slot)
        adapters[adapter.name] = adapter
        changed: list[ModelVersion] = []
        try:
            for version in loaded:
                await self._add_to(version, adapter)
                changed.append(version)
            if not loaded:
                await self._residency.load(slot.active)
        except BaseException:
            del adapters[adapter.name]
            for version in changed:
                await self._remove_from(version, adapter.name)
            raise
        log.info("adapter added", model=slot.name, adapter=adapter.name)

    async def remove(self, slot: ModelSlot, name: str) -> None:
        """Unload an adapter from each loaded version, after the requests that use it.

        Raises AdapterNotFound, InvalidInput.
        """
        adapters = slot.identity.adapters
        if name not in adapters:
            raise AdapterNotFound(slot.name, name, adapters)
        _check_runs_here(slot)
        del adapters[name]
        for version in _loaded(slot):
            await self._remove_from(version, name)
        log.info("adapter removed", model=slot.name, adapter=name)

    async def _add_to(self, version: ModelVersion, adapter: AdapterEntry) -> None:
        engine, spec = version.engine(), version.spec
        assert isinstance(engine, LocalEngine)
        assert spec is not None
        permit = Permit(self._limit)
        # The reference delays an eviction or an unload.
        version.acquire(permit, spec)
        try:
            size_bytes = await engine.adapter_bytes(adapter.path)
            self._residency.ledger.grow(version, size_bytes)
            try:
                await engine.load_adapter(adapter.name, adapter.path)
            except BaseException:
                self._residency.ledger.grow(version, -size_bytes)
                raise
        finally:
            permit.release()

    async def _remove_from(self, version: ModelVersion, name: str) -> None:
        engine = version.engine()
        assert isinstance(engine, LocalEngine)
        freed_bytes = await engine.unload_adapter(name)
        if version.is_ready and version.engine() is engine:  # else it was unloaded meanwhile
            self._residency.ledger.grow(version, -freed_bytes)


def _loaded(slot: ModelSlot) -> list[ModelVersion]:
    return [version for version in slot.versions.values() if version.is_ready]


def _check_runs_here(slot: ModelSlot) -> None:
    if any(version.isolation != "none" for version in slot.versions.values()):
        raise InvalidInput(
            "name",
            f'expected a model in the server\'s own process, got model "{slot.name}" in another one; name the adapter '
            "in its entry, in the config file or in a registration",
        )
