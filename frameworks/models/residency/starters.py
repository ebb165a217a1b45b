"""Start versions outside of this process: in engine processes, or in replicas of a cluster."""

from collections.abc import Sequence
from typing import Protocol

from frameworks.core.devices import Device, ModelNeeds
from frameworks.engine.group import EngineGroup
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.process.link import Started
from frameworks.models.versions.version import ModelVersion


class Starter(Protocol):
    """Owned by the event loop."""

    @property
    def takes_turns(self) -> bool:
        """Whether its loads run one at a time: in processes of this machine, which needs memory for each."""
        ...

    async def needs(self, version: ModelVersion) -> ModelNeeds:
        """Return what the version needs of a device here. Raises InvalidModel, and ModelFailed where it was lost."""
        ...

    async def load(
        self, version: ModelVersion, devices: Sequence[Device]
    ) -> tuple[ProcessEngine | EngineGroup, list[Started]]:
        """Load a version; return its engine, and what was started for each device.

        Raises InvalidModel, OutOfMemory, and ModelFailed where it was lost.
        """
        ...

    def discard(self, version: ModelVersion) -> None:
        """Forget what `needs` has prepared for a load."""
        ...

    def close(self) -> None:
        """Forget all that was prepared for loads."""
        ...
