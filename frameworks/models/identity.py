"""Hold the state that all versions of a model share."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from frameworks.runtime import ModelEntry
from frameworks.scheduling.admission import RequestLimit
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.device_clock import SharedDevices
from frameworks.scheduling.steps.counts import StepCounts


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The batches of one version over all its loads, or the steps of a generating one."""

    batches: BatchCounts = field(default_factory=BatchCounts)
    generated: StepCounts = field(default_factory=StepCounts)


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The settings and counts that all versions of a model share.

    `ageing_s`: a waiting request gains a priority level after so many seconds. `devices`: the clocks of the devices and
    the pool for large batches, which all models share.
    """

    framework: str
    entry: ModelEntry
    limits: BatchLimits
    ageing_s: float
    devices: SharedDevices = field(default_factory=SharedDevices)
    name: str = field(init=False)
    requests: RequestLimit = field(init=False)
    loads: Counter[str] = field(default_factory=Counter)
    """Number of loads by version, including versions whose files have changed since."""
    runs: defaultdict[str, RunCounts] = field(default_factory=lambda: defaultdict(RunCounts))
    """By version, as `loads`: a counter that restarted at zero would look like a restart of the server."""

    def __post_init__(self) -> None:
        entry = self.entry
        limit = RequestLimit(f'model "{entry.name}"', entry.max_queue_size, entry.max_concurrent_requests)
        object.__setattr__(self, "name", entry.name)
        object.__setattr__(self, "requests", limit)
