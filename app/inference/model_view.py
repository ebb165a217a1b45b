"""The models that a principal may use. Any other model is answered as one that does not exist."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.auth.errors import Forbidden
from app.auth.principal import Principal
from frameworks.core.errors import ModelNotFound
from frameworks.core.settings.adapters import AdapterEntry
from frameworks.manager import MLFrameworkManager
from frameworks.models.versions.contract import ServedModels
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.traffic import Share
from frameworks.models.versions.version import ModelVersion
from frameworks.runtime import ModelEntry
from frameworks.scheduling.admission import Permit


class ModelView:
    """The models as one principal sees them. Every handler of a request finds models here, never at the manager."""

    __slots__ = ("_models", "principal")

    def __init__(self, models: ServedModels, principal: Principal) -> None:
        self._models = models
        self.principal = principal

    @property
    def slots(self) -> list[ModelSlot]:
        """The visible models, in order of registration."""
        principal, slots = self.principal, self._models.slots
        return slots if principal.sees_all else [slot for slot in slots if principal.may_use(slot.name)]

    def get(self, name: str) -> ModelSlot | None:
        """Return a model by its name or an alias; None for an unknown name.

        The name of the model has to match the patterns of the principal; an alias gives no access.
        """
        slot = self._models.slots_by_name.get(name)
        # Also for an unknown name, so that a hidden one takes as long.
        may_use = self.principal.may_use(name if slot is None else slot.name)
        return slot if may_use else None

    def may_use(self, name: str) -> bool:
        """Whether the principal may use a model of the settings, registered or not. `name`: also an alias."""
        slot = self._models.slots_by_name.get(name)
        return self.principal.may_use(name if slot is None else slot.name)

    def slot(self, name: str) -> ModelSlot:
        """Return a model by its name or an alias. Raises ModelNotFound, which lists similar names of visible models."""
        slot = self.get(name)
        if slot is None:
            raise self._not_found(name)
        return slot

    async def wait_for(self, version: ModelVersion, permit: Permit) -> None:
        """Load a version of a visible model for a request; see `ModelResidency.wait_for`."""
        await self._models.wait_for(version, permit)

    def _not_found(self, name: str) -> ModelNotFound:
        return ModelNotFound(name, [known for slot in self.slots for known in slot.names])


class ManagedModelView(ModelView):
    """A view whose principal also changes the models. Only the process that manages the models has it."""

    __slots__ = ("_manager",)

    def __init__(self, manager: MLFrameworkManager, principal: Principal) -> None:
        super().__init__(manager, principal)
        self._manager = manager

    async def load(self, name: str, version: str | None = None) -> ModelSlot:
        """Load a model; see `MLFrameworkManager.load`."""
        with self._visible(name):
            return await self._manager.load(name, version)

    async def unload(self, name: str, version: str | None = None, drain_timeout_s: float | None = None) -> ModelSlot:
        """Unload a model; see `MLFrameworkManager.unload`."""
        with self._visible(name):
            return await self._manager.unload(name, version, drain_timeout_s)

    async def rollback(self, name: str) -> ModelSlot:
        """Activate the version that was active before; see `MLFrameworkManager.rollback`."""
        with self._visible(name):
            return await self._manager.rollback(name)

    async def split(self, name: str, kind: str, share: Share | None) -> ModelSlot:
        """Give a version a share of the traffic; see `MLFrameworkManager.split`."""
        with self._visible(name):
            return await self._manager.split(name, kind, share)

    async def remove(self, name: str) -> None:
        """Unload a model and forget its name; see `MLFrameworkManager.remove`."""
        with self._visible(name):
            await self._manager.remove(name)

    async def add_adapter(self, name: str, adapter: AdapterEntry) -> ModelSlot:
        """Load an adapter into a model; see `MLFrameworkManager.add_adapter`."""
        with self._visible(name):
            return await self._manager.add_adapter(name, adapter)

    async def remove_adapter(self, name: str, adapter: str) -> None:
        """Unload an adapter; see `MLFrameworkManager.remove_adapter`."""
        with self._visible(name):
            await self._manager.remove_adapter(name, adapter)

    async def add(self, framework: str, entry: ModelEntry, path: Path) -> ModelSlot:
        """Register a model; see `MLFrameworkManager.add`. Raises as `check_may_register`."""
        self.check_may_register(entry)
        with self._visible(entry.name, is_new=True):
            return await self._manager.add(framework, entry, path)

    def check_may_register(self, entry: ModelEntry) -> None:
        """Raise Forbidden for a name or an alias outside the patterns, registered or not."""
        for index, name in enumerate(entry.names):
            if not self.principal.may_use(name):
                field = "name" if index == 0 else f"aliases[{index - 1}]"
                raise Forbidden(
                    f'{field}: expected a name that the patterns of the key allow, got "{name}"; choose another one'
                )

    @contextmanager
    def _visible(self, name: str, is_new: bool = False) -> Iterator[None]:
        """Raise ModelNotFound for a name that is not visible, or not registered any more when the block runs."""
        if not is_new:
            self.slot(name)
        try:
            yield
        except ModelNotFound:
            # The manager's error lists the names of all models.
            raise self._not_found(name) from None
