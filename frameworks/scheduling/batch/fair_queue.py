"""Queue the requests of one model in fair order: a queue for each tenant, and the choice of the next tenant."""

from collections.abc import Iterable

from frameworks.core.fairness import FairClock, TenantShare
from frameworks.scheduling.batch.queue import QueueEntry, RequestQueue


class FairQueue:
    """Entries of several tenants. Inside a tenant the order is that of RequestQueue.

    A tenant counts as one unit of queued work on the clock while it has entries here.
    """

    def __init__(self, ageing_s: float, clock: FairClock) -> None:
        self._ageing_s = ageing_s
        self._clock = clock
        self._queues: dict[TenantShare, RequestQueue] = {}
        # Those of the tenants with entries.
        self._backlogged: dict[TenantShare, RequestQueue] = {}
        self.entries = 0

    @property
    def shares(self) -> Iterable[TenantShare]:
        """The tenants with entries."""
        return self._backlogged

    @property
    def num_tenants(self) -> int:
        """The number of tenants with entries."""
        return len(self._backlogged)

    def of(self, share: TenantShare) -> RequestQueue:
        """Return the entries of a tenant that has some."""
        return self._backlogged[share]

    def add(self, entry: QueueEntry, priority: int, now_s: float) -> None:
        """Add an entry. `priority`: 1 is first."""
        share = entry.share
        queue = self._backlogged.get(share)
        if queue is None:
            queue = self._begin_backlog(share)
        queue.add(entry, priority, now_s)
        self.entries += 1

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry, which joins a batch or was cancelled. Does nothing if it is not queued."""
        if not entry.is_queued:
            return
        queue = self._backlogged[entry.share]
        queue.remove(entry)
        self.entries -= 1
        if not queue.entries:
            del self._backlogged[entry.share]
            self._clock.unqueue(entry.share)

    def first(self) -> TenantShare | None:
        """Return the tenant whose entry is next; None if the queue is empty."""
        if len(self._backlogged) > 1:
            return self._clock.first(self._backlogged)
        return next(iter(self._backlogged), None)

    def head(self) -> QueueEntry | None:
        """Return the next entry without removing it; None if the queue is empty."""
        share = self.first()
        return None if share is None else self._backlogged[share].head()

    def group_size(self, entry: QueueEntry) -> int:
        """Return the number of queued entries in the group of this one, of all tenants."""
        return sum(queue.group_size(entry) for queue in self._backlogged.values())

    def _begin_backlog(self, share: TenantShare) -> RequestQueue:
        queue = self._queues.get(share)
        if queue is None:
            queue = self._queues[share] = RequestQueue(self._ageing_s)
        self._backlogged[share] = queue
        self._clock.queue(share)
        return queue
