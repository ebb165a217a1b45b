"""A request within the scheduler: its rows, who waits for them, and what has been answered of them so far."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from frameworks.batches.rows import BatchSignature, Part, ResultAssembler
from frameworks.scheduling.batch.ceiling import CeilingState
from frameworks.scheduling.batch.queue import QueueEntry
from frameworks.scheduling.batch.worker import BatchResult, fail
from frameworks.types import Batch


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """How many batches of how many rows have run, and how many did not fit and were halved. `seconds`: how long those
    of so many rows computed, all together.
    """

    sizes: Counter[int] = field(default_factory=Counter)
    split: Counter[int] = field(default_factory=Counter)
    seconds: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))

    def ran(self, rows: int, compute_s: float) -> None:
        """Counts a batch that was computed."""
        self.sizes[rows] += 1
        self.seconds[rows] += compute_s

    @classmethod
    def total(cls, counts: "Iterable[BatchCounts]") -> "BatchCounts":
        """All of them together, as they stand now."""
        total = cls()
        for each in counts:
            total.merge(each)
        return total

    def merge(self, other: "BatchCounts") -> None:
        """Adds those of another version, as they stand now."""
        self.sizes.update(other.sizes)
        self.split.update(other.split)
        for rows, seconds in other.seconds.items():
            self.seconds[rows] += seconds


class Progress:
    """How far a request is that goes through the line.

    `backlog`: parts that are not in the line yet. `missing`: how many are not answered. `queue_s` is below zero until
    the first of them is.
    """

    __slots__ = ("backlog", "compute_s", "joined", "missing", "queue_s", "waiting")

    def __init__(self, missing: int, backlog: Iterator[Part], rows: int) -> None:
        self.missing = missing
        self.backlog = backlog
        self.waiting: set[QueueEntry] = set()
        self.joined = ResultAssembler(rows)
        self.queue_s = -1.0
        self.compute_s = 0.0


class Request:
    """One caller's rows, and the future that the caller waits for. `begin` is called when something of it runs."""

    __slots__ = ("arrived_s", "batch", "begin", "future", "priority", "progress", "signature")

    def __init__(
        self,
        batch: Batch,
        signature: BatchSignature,
        priority: int,
        begin: Callable[[], None],
        future: "asyncio.Future[BatchResult]",
    ) -> None:
        self.batch = batch
        self.signature = signature
        self.priority = priority
        self.begin = begin
        self.future = future
        self.arrived_s = time.perf_counter()
        self.progress: Progress | None = None

    def fail(self, error: BaseException) -> None:
        """Hands an error to the caller, if it still waits."""
        fail(self.future, error)


class BatchItem:
    """One part in a batch, whose it is, and how far that request is.

    `ceiling_before`: of a part that was in a batch which was split, the ceiling as it was before.
    """

    __slots__ = ("ceiling_before", "part", "progress", "request")

    def __init__(self, request: Request, progress: Progress, part: Part) -> None:
        self.request = request
        self.progress = progress
        self.part = part
        self.ceiling_before: CeilingState | None = None


def whole(request: Request) -> BatchItem:
    """A request that goes to the line in one part, of which nothing stands there yet."""
    signature = request.signature
    request.progress = Progress(1, iter(()), signature.rows)
    return BatchItem(request, request.progress, Part(request.batch, 0, signature.rows, signature.length))
