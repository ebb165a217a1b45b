"""A supervisor and workers that count, in one event loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from app.auth.principal import Principal
from app.observability.metrics import Observer, RequestRecord
from app.observability.process_counts import ProcessCounts
from app.observability.tallies import Histogram, RequestTallies
from app.workers.messages import messages_to_worker
from app.workers.tallies.merged import MergedTallies
from app.workers.tallies.tallies import TalliesSender, WorkerTallies
from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings
from frameworks.models.replicas.control import ControlLink, Workers
from frameworks.models.replicas.manager import ReplicaManager
from frameworks.models.versions.slot import ModelSlot
from memory.tensor_pool import PoolStats
from tests.support.control_links import connect
from tests.support.loops import HANGS_AFTER_S, soon

STEP_S = 1 / 1024
"""Sums of multiples are exact in any order."""


@dataclass
class FakeSlot:
    """The counts of a model in a worker."""

    name: str
    held: dict[str, tuple[int, int]]

    def requests_by_tenant(self) -> dict[str, tuple[int, int]]:
        return self.held


def observe(
    observer: Observer, steps: int, model: str = "m", tenant: str = "a", status: int = 200, step_s: float = STEP_S
) -> None:
    """Count a request of every kind. `steps`: all its times."""
    version, seconds = "1", steps * step_s
    timings = Timings(seconds, seconds, seconds, seconds, cache_hit=(None, True, False)[steps % 3])
    timings.steps = [("first", 0.0, seconds), ("second", 0.0, 2 * seconds)]
    principal = Principal(Tenant(tenant))
    code = "" if status == 200 else "overloaded"
    record = RequestRecord("id", "POST", "/", seconds, model, version, status, code, timings, principal)
    observer.record_inference(record, 8 * seconds)
    if status == 200:
        observer.generation_metrics(model, tenant).observe_first(seconds)
        observer.generation_metrics(model, tenant).observe_next(seconds)
        observer.cache_hits[model, tenant] += 1
        observer.shadow_outcomes[model, version, "equal"] += 1
    else:
        observer.cache_misses[model, tenant] += 1
        observer.auth_failures["scope"] += 1


def process_of(number: int) -> ProcessCounts:
    """Return counts that differ from those of other numbers."""
    return ProcessCounts(
        Histogram([number] * 17, number * STEP_S),
        number,
        2 * number,
        {"idle": 3 * number},
        {"loaded": number, "failed": 0},
        {"loaded": 0, "failed": number},
        1e9 + number,
        {"cpu": PoolStats(*range(number, number + 7))},
        4 * number,
        5 * number,
        6 * number,
    )


def counted(tallies: RequestTallies, slots: Sequence[FakeSlot] = ()) -> WorkerTallies:
    """Return all counts, to be compared."""
    return WorkerTallies.decode(WorkerTallies.read(tallies, cast(Sequence[ModelSlot], slots)).encode())


class Worker:
    """The worker's end: its counts, and the link that reports them."""

    def __init__(self, number: int, process: ProcessCounts | None = None) -> None:
        self.link = ControlLink(number, messages_to_worker())
        self.observer = Observer("none", 1000)
        self.slots: list[FakeSlot] = []
        self.process = process or ProcessCounts()
        self.uses_reported = 0
        self.sender = TalliesSender(self.link, self.observer, cast(ReplicaManager, self), lambda: self.process)

    def report_uses(self) -> None:
        """As ReplicaManager, which has `slots` too."""
        self.uses_reported += 1


class Supervisor:
    """The supervisor's end, with the workers that have joined it."""

    def __init__(self, collect_s: float = HANGS_AFTER_S, process: ProcessCounts | None = None) -> None:
        self.workers = Workers()
        self.observer = Observer("none", 1000)
        self.process = process or ProcessCounts()
        self.merged = MergedTallies(self.workers, self.observer, lambda: self.process, collect_s)

    async def join(self, worker: Any) -> ControlLink:
        """Connect a worker; return the link at the supervisor."""
        return await connect(self.workers, worker.link)

    async def lose(self, worker: Any) -> None:
        """End a worker, as its death does."""
        worker.link.close()
        ours = self.workers.links[worker.link.number]
        await ours.lost
        await soon(lambda: self.workers.links.get(ours.number) is not ours)

    async def refreshed(self) -> WorkerTallies:
        """Return all counts after a refresh."""
        await self.merged.refresh()
        return counted(self.merged)

    async def close(self) -> None:
        """Close all links."""
        for link in list(self.workers.links.values()):
            link.close()
        await soon(lambda: not self.workers.links)
