"""The waiting sequences of each tenant, and the virtual clock that divides a model's steps among tenants. Pure."""

import heapq
from collections.abc import Collection

from frameworks.core.fairness import FairClock, TenantShare
from frameworks.scheduling.steps.sequence import Sequence


class WaitingQueue:
    """Waiting sequences by `order`, then by id: a heap with lazy deletion. A change takes O(log n), amortised.

    A removed sequence stays in the heap until it is first, or until most entries of the heap are removed ones.
    """

    def __init__(self) -> None:
        # The heap names removed sequences by their id only, so they can be freed.
        self._by_order: list[tuple[float, int]] = []
        self._by_id: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.sequence_id in self._by_id

    def add(self, sequence: Sequence) -> None:
        """Add a sequence. One that was removed is not added again; one that was taken may be."""
        self._by_id[sequence.sequence_id] = sequence
        heapq.heappush(self._by_order, (sequence.order, sequence.sequence_id))

    def remove(self, sequence: Sequence) -> None:
        """Remove a queued sequence, which was cancelled."""
        del self._by_id[sequence.sequence_id]
        self._drop_removed()

    def take(self) -> Sequence | None:
        """Remove and return the first sequence; None if the queue is empty."""
        while self._by_order:
            sequence = self._by_id.pop(heapq.heappop(self._by_order)[1], None)
            if sequence is not None:
                self._drop_removed()
                return sequence
        return None

    @property
    def first(self) -> Sequence | None:
        """The first sequence, which stays; None if the queue is empty."""
        while self._by_order:
            sequence = self._by_id.get(self._by_order[0][1])
            if sequence is not None:
                return sequence
            heapq.heappop(self._by_order)
        return None

    def sequences(self) -> list[Sequence]:
        """Return the queued sequences, in no order."""
        return list(self._by_id.values())

    def _drop_removed(self) -> None:
        if len(self._by_order) > 2 * len(self._by_id):
            self._by_order = [key for key in self._by_order if key[1] in self._by_id]
            heapq.heapify(self._by_order)


class TenantQueue:
    """The sequences of one tenant at one model. `share`: its virtual time; queued there are all its sequences.

    `blocked`: the waiting sequence that found too few free blocks, if any. `start_by`: from this virtual time on, no
    other tenant starts a sequence before it.
    """

    __slots__ = ("blocked", "share", "start_by", "waiting")

    def __init__(self, share: TenantShare) -> None:
        self.share = share
        self.waiting = WaitingQueue()
        self.blocked: Sequence | None = None
        self.start_by = 0.0

    @property
    def weight(self) -> float:
        return self.share.tenant.weight

    def block(self, sequence: Sequence) -> None:
        """Note that the sequence waits for blocks. Sets `start_by` to its virtual end time if it started now."""
        if self.blocked is not sequence:
            self.blocked = sequence
            self.start_by = self.share.time + len(sequence.token_ids) / self.weight


class TenantQueues:
    """The queues of the tenants that have sequences; the others are dropped."""

    def __init__(self) -> None:
        self.clock = FairClock()
        """Of the model: each step is charged to its tenants."""
        self._by_name: dict[str, TenantQueue] = {}
        self.num_sequences = 0
        """Number of waiting and running sequences."""

    @property
    def only(self) -> TenantQueue | None:
        """The queue of the only tenant; None if there are several."""
        return next(iter(self._by_name.values())) if len(self._by_name) == 1 else None

    def all(self) -> list[TenantQueue]:
        """Return the queues of all tenants that have sequences."""
        return list(self._by_name.values())

    def of(self, sequence: Sequence) -> TenantQueue:
        """Return the queue of a sequence that was added."""
        return self._by_name[sequence.request.tenant.name]

    def add(self, sequence: Sequence) -> None:
        """Add a new sequence."""
        tenant = sequence.request.tenant
        queue = self._by_name.get(tenant.name)
        if queue is None:
            queue = self._by_name[tenant.name] = TenantQueue(self.clock.share(tenant))
        self.clock.queue(queue.share)
        queue.waiting.add(sequence)
        self.num_sequences += 1

    def forget(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended and is in no waiting queue."""
        queue = self.of(sequence)
        if queue.blocked is sequence:
            queue.blocked = None
        self.clock.unqueue(queue.share)
        self.num_sequences -= 1
        if not queue.share.queued:
            del self._by_name[sequence.request.tenant.name]

    def level(self, limited: Collection[TenantShare]) -> None:
        """Raise the tenants that were fully served to the least time of the `limited` ones, after a charge.

        A tenant that received all that it can use keeps no credit for later. Without limited tenants all times become
        equal.
        """
        all_tenants = [queue.share for queue in self._by_name.values()]
        least = min((share.time for share in limited), default=max((share.time for share in all_tenants), default=0.0))
        for share in all_tenants:
            if share not in limited and share.time < least:
                self.clock.charge(share, (least - share.time) * share.tenant.weight)

    def check_integrity(self) -> None:
        """Raise AssertionError where a waiting sequence holds blocks, or a tenant without sequences is kept."""
        for queue in self._by_name.values():
            waiting = queue.waiting.sequences()
            assert all(not sequence.blocks for sequence in waiting), "a waiting sequence holds blocks"
            assert 0 < queue.share.queued >= len(waiting), "a tenant has no sequences"
