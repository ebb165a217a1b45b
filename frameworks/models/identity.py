"""What all versions of a model have in common."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from frameworks.runtime import ModelEntry
from frameworks.scheduling.admission import RequestLimit
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.steps.worker import StepCounts
from memory.pooled_arrays import PooledArrays


@dataclass(frozen=True, slots=True)
class RunCounts:
    """What has run of one version, in all its loads: the batches, or the steps of one that generates text."""

    batches: BatchCounts = field(default_factory=BatchCounts)
    generated: StepCounts = field(default_factory=StepCounts)


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What all versions of a model have in common. `ageing_s`: after which a waiting request gains a priority level."""

    name: str
    framework: str
    entry: ModelEntry
    limits: BatchLimits
    ageing_s: float
    requests: RequestLimit
    loads: Counter[str]
    """By version, also of those whose files have changed since."""
    arrays: PooledArrays | None = None
    """For large batches; None: numpy's own."""
    runs: defaultdict[str, RunCounts] = field(default_factory=lambda: defaultdict(RunCounts))
    """As `loads`: a counter that begins anew would look like a restart."""
