"""Define what requests need of the registered models: in the process that manages them, and in a replica."""

from collections.abc import Mapping
from typing import Protocol

from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.version import ModelVersion
from frameworks.scheduling.admission import Permit


class ServedModels(Protocol):
    """Every registered model. Owned by the event loop."""

    @property
    def slots_by_name(self) -> Mapping[str, ModelSlot]:
        """Every model by its name and by each alias. For lookups on the path of every request; `slot` raises the error
        for an unknown name.
        """
        ...

    @property
    def slots(self) -> list[ModelSlot]:
        """Every registered model, in order of registration."""
        ...

    def slot(self, name: str) -> ModelSlot:
        """Return a model by its name or an alias. Raises ModelNotFound, which lists similar names."""
        ...

    async def wait_for(self, version: ModelVersion, permit: Permit) -> None:
        """Load a version for a request; see `ModelResidency.wait_for`."""
        ...


def slot_of(models: ServedModels, name: str) -> ModelSlot | None:
    """Return the model with this own name, for messages about a model; None also for an alias."""
    slot = models.slots_by_name.get(name)
    return slot if slot is not None and slot.name == name else None
