"""Hold the state that all versions of a model share."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from frameworks.core.settings.adapters import AdapterEntry
from frameworks.core.settings.composites import CompositeModelEntry
from frameworks.core.settings.entries import Isolation, TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.engine.contract import EngineSettings, RunCounts
from frameworks.engine.threads import EngineThreads
from frameworks.runtime import ModelEntry
from frameworks.scheduling.admission import RequestLimit
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.scheduling.device_clock import SharedDevices
from frameworks.scheduling.shared_limits import request_limit
from memory.shared_counters import CounterRow

if TYPE_CHECKING:
    from frameworks.sources.store import Progress


@dataclass(frozen=True, slots=True)
class Download:
    """A download that runs. `progress`: written by its thread. `cancel`: ends it; its load fails with Draining."""

    progress: "Progress"
    cancel: Callable[[], object]


@dataclass(slots=True)
class ModelDownloads:
    """Owned by the event loop. The keys are versions."""

    running: dict[str, Download] = field(default_factory=dict)
    received_bytes: Counter[str] = field(default_factory=Counter)
    """Received since the start of the server, also by downloads that failed."""

    def cancel(self, version: str | None) -> None:
        """End the downloads of a version; None: of all."""
        for name, download in list(self.running.items()):
            if version in (None, name):
                download.cancel()


def batch_limits(entry: ModelEntry, performance: PerformanceSettings) -> BatchLimits:
    """Return the limits of the batches of a model."""
    return BatchLimits(
        max_rows=entry.max_batch_size or performance.max_batch_size,
        max_tokens=entry.max_batch_tokens,
        max_delay_s=entry.max_queue_delay_ms / 1000,
    )


def _ignore() -> None:
    pass


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The settings and counts that all versions of a model share.

    `ageing_s`: a waiting request gains a priority level after so many seconds. `isolation`: where it runs. `devices`:
    the clocks of the devices and the pool for large batches, which all models share. `threads`: of all engines in this
    process. `changed`: called after each change of the model that other processes must see.
    `row`: counts the requests of all processes; None: those of this one.
    """

    framework: str
    entry: ModelEntry
    limits: BatchLimits
    ageing_s: float
    isolation: Isolation = "none"
    devices: SharedDevices = field(default_factory=SharedDevices)
    threads: EngineThreads = field(default_factory=EngineThreads)
    changed: Callable[[], None] = _ignore
    row: CounterRow | None = None
    name: str = field(init=False)
    is_composite: bool = field(init=False)
    """Whether it runs other models, which queue its rows by `Engine.answer`. Other models queue them here."""
    requests: RequestLimit = field(init=False)
    loads: Counter[str] = field(default_factory=Counter)
    """Number of loads by version, including versions whose files have changed since."""
    runs: defaultdict[str, RunCounts] = field(default_factory=lambda: defaultdict(RunCounts))
    """By version, as `loads`: a counter that restarted at zero would look like a restart of the server."""
    downloads: ModelDownloads = field(default_factory=ModelDownloads)
    adapters: dict[str, AdapterEntry] = field(init=False)
    """By name: those of the entry, and those that were added since."""

    def __post_init__(self) -> None:
        entry = self.entry
        owner = f'model "{entry.name}"'
        limit = request_limit(self.row, owner, entry.max_queue_size, entry.max_concurrent_requests)
        object.__setattr__(self, "name", entry.name)
        object.__setattr__(self, "is_composite", isinstance(entry, CompositeModelEntry))
        object.__setattr__(self, "requests", limit)
        object.__setattr__(self, "adapters", {each.name: each for each in getattr(entry, "adapters", ())})

    @property
    def loaded_entry(self) -> ModelEntry:
        """The entry with the adapters that the next load has."""
        entry = self.entry
        if not isinstance(entry, TorchModelEntry):
            return entry
        return entry.model_copy(update={"adapters": tuple(self.adapters.values())})

    @property
    def engine_settings(self) -> EngineSettings:
        """How an engine schedules the requests of a version."""
        entry = self.entry
        return EngineSettings(
            self.name, self.limits, self.ageing_s, entry.token_ids is not None, entry.max_batch_seconds
        )

    def settings_of_load(self, version: str) -> EngineSettings:
        """Return the same for another load of a version: an earlier one may have had sequences."""
        # Those of another version too, where requests do not name their version.
        loads = self.loads.total() if self.entry.version_policy == "latest" else self.loads[version]
        return replace(self.engine_settings, is_reloaded=loads > 0)


_numbers = itertools.count(1)


def new_serving_id() -> int:
    """Return the number of another load, unique in this process."""
    return next(_numbers)
