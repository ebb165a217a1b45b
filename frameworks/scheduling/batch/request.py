"""A request within the scheduler: its rows, its future, and its progress through batches."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from frameworks.core.fairness import TenantShare
from frameworks.core.timings import Timings
from frameworks.scheduling.batch.queue import QueueEntry
from frameworks.scheduling.batch.worker import fail
from frameworks.scheduling.merging.rows import BatchSignature, Part, ResultAssembler
from frameworks.types import Batch, Value

Outputs = dict[str, Value]
"""Output name to value."""


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Batches that have run, by number of rows. `split`: batches that did not fit in memory and were halved.

    `seconds`: compute time of all batches with that many rows. `tenant_seconds`: the part of it that each tenant paid,
    by its name.
    """

    sizes: Counter[int] = field(default_factory=Counter)
    split: Counter[int] = field(default_factory=Counter)
    seconds: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    tenant_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def ran(self, rows: int, compute_s: float) -> None:
        """Count a batch that was computed."""
        self.sizes[rows] += 1
        self.seconds[rows] += compute_s

    def charge(self, costs: Mapping[TenantShare, float]) -> None:
        """Count what each tenant paid for a batch, in seconds."""
        for share, seconds in costs.items():
            self.tenant_seconds[share.tenant.name] += seconds

    @classmethod
    def total(cls, counts: "Iterable[BatchCounts]") -> "BatchCounts":
        """Return the sum of all counts as they stand now."""
        total = cls()
        for each in counts:
            total.merge(each)
        return total

    def merge(self, other: "BatchCounts") -> None:
        """Add the counts of another version."""
        self.sizes.update(other.sizes)
        self.split.update(other.split)
        for rows, seconds in other.seconds.items():
            self.seconds[rows] += seconds
        for tenant, seconds in other.tenant_seconds.items():
            self.tenant_seconds[tenant] += seconds


class Progress:
    """The progress of a request that goes through the queue.

    `backlog`: parts that are not queued yet. `num_pending`: parts without a result. `has_run`: whether a part has a
    result. `batch_rows`: as in Timings.
    """

    __slots__ = ("assembler", "backlog", "batch_rows", "has_run", "num_pending", "queued")

    def __init__(self, num_pending: int, backlog: Iterator[Part], rows: int) -> None:
        self.num_pending = num_pending
        self.backlog = backlog
        self.queued: set[QueueEntry] = set()
        self.assembler = ResultAssembler(rows)
        self.has_run = False
        self.batch_rows = 0


@dataclass(slots=True, eq=False)
class Request:
    """The rows of one request, and the future that its caller awaits.

    `share`: of its tenant, on the clock of the device. `begin` is called when a part of it starts to run. `timings`:
    queue and compute seconds are added there.
    """

    batch: Batch
    signature: BatchSignature
    share: TenantShare
    priority: int
    begin: Callable[[], None]
    timings: Timings
    future: "asyncio.Future[Outputs]"
    arrived_s: float = field(default_factory=time.perf_counter)
    progress: Progress | None = None

    def complete(self, outputs: Outputs, progress: Progress) -> None:
        """Resolve the future, unless the caller has cancelled it."""
        if not self.future.done():
            self.timings.batch_rows = max(self.timings.batch_rows, progress.batch_rows)
            self.future.set_result(outputs)

    def fail(self, error: BaseException) -> None:
        """Set the error on the future, unless the caller has cancelled it."""
        fail(self.future, error)
