"""Queue the requests of a model with several engine processes: choose the next request and its process."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from frameworks.core.fairness import FairClock, TenantShare
from frameworks.core.tenants import Tenant
from frameworks.engine.process.client.calls import InferCall
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.scheduling.batch.fair_queue import FairQueue
from frameworks.scheduling.batch.queue import QueueEntry


class GroupMember:
    """One engine process of a group. `work`: rows or sequences of the requests that it has; `units`: see Job."""

    __slots__ = ("engine", "has_failed_start", "jobs", "on_left", "units", "work")

    def __init__(self, engine: ProcessEngine) -> None:
        self.engine = engine
        self.jobs: set[Job] = set()
        self.work = 0
        self.units = 0.0
        self.has_failed_start = False
        """Whether the last start of the process has failed."""
        self.on_left: Callable[[], None] | None = None
        """Of a member that gets no further requests: called after its last one."""

    @property
    def is_available(self) -> bool:
        """Whether the process runs further requests now: after a crash it runs its suspects first."""
        engine = self.engine
        return engine.outage is None and not engine.is_dead and not engine.num_suspects


Choose = Callable[[Sequence[GroupMember], int, "Job"], GroupMember | None]
"""Return the member for a request among those with less work than the given capacity; None while none has capacity."""


class Job:
    """A request to a group. Owned by the event loop.

    `size`: its rows or sequences. `future`: of its answer, or of the member that generates its text. `send`: hands it
    to its member. `call`: of a request with one answer, after it was sent. `request`: for the choice of a member, which
    may note there how large the request is, in `units` of any kind.
    """

    __slots__ = (
        "call",
        "costs",
        "entry",
        "future",
        "has_begun",
        "has_moved",
        "member",
        "priority",
        "queued_s",
        "request",
        "send",
        "size",
        "tenant",
        "units",
    )

    def __init__(
        self,
        size: int,
        tenant: Tenant,
        priority: int,
        future: "asyncio.Future[Any]",
        send: Callable[["Job"], None],
        request: Any = None,
    ) -> None:
        self.size = size
        self.tenant = tenant
        self.priority = priority
        self.future = future
        self.send = send
        self.request = request
        self.units = 0.0
        self.queued_s = time.perf_counter()
        self.member: GroupMember | None = None
        self.entry: QueueEntry | None = None
        """Its entry in the queue; None while it is not queued."""
        self.costs: dict[TenantShare, float] = {}
        self.call: InferCall | None = None
        self.has_begun = False
        self.has_moved = False

    def fail(self, error: Exception) -> None:
        """Set the error, unless the request is over."""
        if not self.future.done():
            self.future.set_exception(error)


class GroupQueue:
    """Owned by the event loop. A request is sent to the member with the least work that has capacity for more.

    The next request is that of the tenant with the least time, by priority with ageing, as in the queue of a model in
    one process. A tenant is charged for rows or sequences.
    """

    def __init__(
        self, members: Sequence[GroupMember], capacity: int, ageing_s: float, choose: Choose | None = None
    ) -> None:
        """`members`: may change. `capacity`: a member with so many rows or sequences gets no more. `choose`: None for
        the member with the least work.
        """
        self._members = members
        self._capacity = capacity
        self._choose = choose or least_work
        self._clock = FairClock()
        self._queue = FairQueue(ageing_s, self._clock)

    def __len__(self) -> int:
        return self._queue.entries

    def add(self, job: Job) -> None:
        """Send a request, or queue it until a member has capacity."""
        share = self._clock.share(job.tenant)
        job.costs = {share: float(job.size)}
        if not self._queue.entries and (member := self._choose(self._members, self._capacity, job)) is not None:
            self._clock.queue(share)
            self._start(job, member)
            self._clock.unqueue(share)
            job.send(job)
        else:
            self._enqueue(job, share)

    def end(self, job: Job) -> None:
        """Forget a request that is over: answered, failed or cancelled."""
        if job.member is not None:
            self._leave(job.member, job, job.costs)
            if self._queue.entries:
                self.dispatch()
        elif job.entry is not None:
            self._queue.remove(job.entry)
            job.entry = None

    def take_back(self, jobs: Sequence[Job]) -> None:
        """Queue requests again that did not run at their member, in their old order."""
        for job in jobs:
            if job.member is not None:
                self._leave(job.member, job, {})
                self._enqueue(job, *job.costs)
        self.dispatch()

    def dispatch(self) -> None:
        """Send the requests that members have capacity for."""
        while (head := self._queue.head()) is not None:
            job: Job = head.work
            member = self._choose(self._members, self._capacity, job)
            if member is None:
                return
            # Before the entry is removed: its tenant stays active.
            self._start(job, member)
            self._queue.remove(head)
            job.entry = None
            job.send(job)

    def waiting(self) -> Iterator[Job]:
        """Remove and yield the queued requests, the next one first."""
        while (head := self._queue.head()) is not None:
            self._queue.remove(head)
            job: Job = head.work
            job.entry = None
            yield job

    def check_integrity(self) -> None:
        """Raise AssertionError where a request waits although a member is free, or work is counted wrongly."""
        for member in self._members:
            assert member.work == sum(job.size for job in member.jobs), "the work of a process is counted wrongly"
        has_room = least_work(self._members, self._capacity) is not None
        assert not self._queue.entries or not has_room, "a request waits, and a process is free"
        if not self._queue.entries and not any(member.jobs for member in self._members):
            assert not self._clock.num_active, "a tenant without requests has a place"

    def _enqueue(self, job: Job, share: TenantShare) -> None:
        job.entry = QueueEntry(job, share, job.size, 1, job, may_share=False)
        self._queue.add(job.entry, job.priority, job.queued_s)

    def _start(self, job: Job, member: GroupMember) -> None:
        """Give a request to a member."""
        self._clock.start(job.costs)
        job.member = member
        member.jobs.add(job)
        member.work += job.size
        member.units += job.units

    def _leave(self, member: GroupMember, job: Job, paid: dict[TenantShare, float]) -> None:
        """Take a request from its member. `paid`: the cost that its tenant is charged."""
        job.member = None
        member.jobs.discard(job)
        member.work -= job.size
        member.units -= job.units
        self._clock.finish(job.costs, paid)
        if member.on_left is not None and not member.jobs:
            member.on_left()


def least_work(members: Sequence[GroupMember], capacity: int, _: Job | None = None) -> GroupMember | None:
    """Return the member with the least work; None while none has capacity."""
    best, least = None, capacity
    for member in members:
        if member.work < least and member.is_available:
            best, least = member, member.work
    return best
