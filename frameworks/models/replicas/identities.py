"""Make the models of a worker from what the supervisor publishes."""

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from frameworks.core.settings.entries import Isolation
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.engine.threads import EngineThreads
from frameworks.models.replicas.messages import ModelState
from frameworks.models.versions.identity import ModelIdentity, batch_limits
from frameworks.models.versions.slot import ModelSlot
from frameworks.runtime import ModelEntry
from frameworks.scheduling.device_clock import SharedDevices
from frameworks.scheduling.shared_limits import SharedLimits


@dataclass(frozen=True, slots=True)
class Identities:
    """The settings of the server, and what the models of the worker share."""

    performance: PerformanceSettings
    scheduling: SchedulingSettings
    devices: SharedDevices
    threads: EngineThreads
    shared_limits: SharedLimits | None = None

    def slot_of(self, published: ModelState) -> ModelSlot:
        """Return a new slot; its versions follow."""
        entry: ModelEntry = pickle.loads(published.entry)  # noqa: S301 - a worker trusts its supervisor
        identity = ModelIdentity(
            published.framework,
            entry,
            batch_limits(entry, self.performance),
            self.scheduling.ageing_ms / 1000,
            cast(Isolation, published.isolation),
            self.devices,
            self.threads,
            row=None if self.shared_limits is None else self.shared_limits.model(published.counters),
        )
        found = {version.version: Path(os.fsdecode(version.path)) for version in published.versions}
        return ModelSlot(identity, Path(os.fsdecode(published.path)), found)
