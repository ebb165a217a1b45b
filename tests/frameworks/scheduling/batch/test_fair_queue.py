"""The queue of several tenants compared with plain lists: order and neighbours in each tenant, first tenant first."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from frameworks.core.fairness import FairClock, TenantShare
from frameworks.core.tenants import Tenant
from frameworks.scheduling.batch.batcher import BatchLimits, next_batch
from frameworks.scheduling.batch.fair_queue import FairQueue
from frameworks.scheduling.batch.queue import QueueEntry, RequestQueue
from tests.frameworks.scheduling.batch.costs import cost_of_terms

AGEING_S = 0.5
TENANTS = (Tenant("a", 1.0), Tenant("b", 3.0), Tenant("c", 0.5))
LAW = cost_of_terms(start_s=1.0, per_token_s=1e-3)

tenants = st.sampled_from(TENANTS)


class FairQueueMachine(RuleBasedStateMachine):
    """Add, cancel and run entries in any order with a monotonic clock."""

    added: "Bundle[QueueEntry]" = Bundle("added")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FairClock()
        self.queue = FairQueue(AGEING_S, self.clock)
        self.waiting: dict[TenantShare, list[tuple[float, int, QueueEntry]]] = {
            self.clock.share(tenant): [] for tenant in TENANTS
        }
        self.now_s = 0.0
        self.serial = 0

    @rule(
        target=added,
        tenant=tenants,
        rows=st.sampled_from([1, 1, 2, 5]),
        length=st.integers(1, 6) | st.integers(1, 200),
        group=st.sampled_from("aab"),
        priority=st.integers(0, 9),
        later_s=st.sampled_from([0.0, 0.25, 0.5, 3.0]),
        times=st.sampled_from([1, 1, 2, 100]),
    )
    def add(
        self, *, tenant: Tenant, rows: int, length: int, group: str, priority: int, later_s: float, times: int
    ) -> MultipleResults[QueueEntry]:
        self.now_s += later_s
        share = self.clock.share(tenant)
        entries = [QueueEntry(None, share, rows, length, group) for _ in range(times)]
        for entry in entries:
            self.serial += 1
            self.queue.add(entry, priority, self.now_s)
            self.waiting[share].append((self.now_s + priority * AGEING_S, self.serial, entry))
        return multiple(*entries)

    @rule(entry=consumes(added))
    def cancel(self, entry: QueueEntry) -> None:
        self.queue.remove(entry)
        self.queue.remove(entry)  # a second call has no effect
        self._drop({entry})

    @rule(tenant=tenants, keep=st.integers(0, 3))
    def cancel_many(self, tenant: Tenant, keep: int) -> None:
        cancelled = {entry for _, _, entry in self.waiting[self.clock.share(tenant)][keep:]}
        for entry in cancelled:
            self.queue.remove(entry)
        self._drop(cancelled)

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        for _ in range(count):
            if (head := self.queue.head()) is not None:
                self.queue.remove(head)
                self._drop({head})

    @precondition(lambda self: self.queue.entries > 0)
    @rule(max_rows=st.integers(1, 8), may_fill=st.booleans())
    def run(self, max_rows: int, may_fill: bool) -> None:
        first = self.queue.first()
        assert first is not None
        plan = next_batch(self.queue, LAW, BatchLimits(max_rows), lambda _: may_fill)
        assert plan is not None
        chosen = set(plan.entries)
        assert len(chosen) == len(plan.entries)
        assert plan.rows == sum(entry.rows for entry in chosen)
        assert plan.rows <= max_rows or len(chosen) == 1
        assert plan.entries[0].share is first
        assert {entry.group for entry in chosen} == {plan.entries[0].group}
        if not may_fill:
            assert {entry.share for entry in chosen} == {first}
        elif not plan.is_full:
            self._check_conserves_work(plan.entries[0], plan.length, max_rows - plan.rows, chosen)
        costs = dict.fromkeys({entry.share for entry in chosen}, 0.0)
        for entry in chosen:
            costs[entry.share] += LAW.seconds(plan.rows, plan.length) * entry.rows / plan.rows
        self.clock.start(costs)
        for entry in plan.entries:
            self.queue.remove(entry)
        self.clock.finish(costs, costs)
        self._drop(chosen)

    @invariant()
    def head_is_first_of_first_tenant(self) -> None:
        backlogged = {share: waiting for share, waiting in self.waiting.items() if waiting}
        if not backlogged:
            assert (self.queue.first(), self.queue.head()) == (None, None)
            return
        share = self.queue.first()
        assert share is not None
        assert (share.time, share.last_run) == min((each.time, each.last_run) for each in backlogged)
        assert self.queue.head() is min(backlogged[share], key=lambda each: each[:2])[2]

    @invariant()
    def counts_match(self) -> None:
        assert self.queue.entries == sum(map(len, self.waiting.values()))
        assert self.queue.num_tenants == self.clock.num_active == sum(map(bool, self.waiting.values()))
        head = self.queue.head()
        if head is not None:
            entries = [entry for waiting in self.waiting.values() for _, _, entry in waiting]
            assert self.queue.group_size(head) == sum(entry.group == head.group for entry in entries)

    @invariant()
    def queue_of_tenant_matches_list(self) -> None:
        for share, waiting in self.waiting.items():
            if (queue := self.queue._queues.get(share)) is None:
                assert not waiting
                continue
            assert (queue.entries, queue.rows) == (len(waiting), sum(entry.rows for _, _, entry in waiting))
            assert len(queue._by_order) <= max(64, 2 * queue.entries) + 1
            head = min(waiting, key=lambda each: each[:2])[2] if waiting else None
            assert queue.head() is head
            if head is not None:
                self._check_neighbours(queue, head, waiting)

    def _check_neighbours(
        self, queue: RequestQueue, head: QueueEntry, waiting: list[tuple[float, int, QueueEntry]]
    ) -> None:
        """The entries of its group are in the order of their distance in length, then in that of the queue."""
        rest = [each for each in waiting if each[2].group == head.group and each[2] is not head]
        above = sorted(rest, key=lambda each: (each[2].length, *each[:2]))
        assert list(queue.longer(head)) == [entry for *_, entry in above if entry.length >= head.length]
        below = sorted(rest, key=lambda each: (-each[2].length, *each[:2]))
        assert list(queue.shorter(head)) == [entry for *_, entry in below if entry.length < head.length]

    def _check_conserves_work(self, head: QueueEntry, length: float, room: int, chosen: set[QueueEntry]) -> None:
        """No entry of the same length that fits the room in the batch is left out."""
        left = [entry for waiting in self.waiting.values() for _, _, entry in waiting if entry not in chosen]
        assert not any(entry.group == head.group and entry.length == length and entry.rows <= room for entry in left)

    def _drop(self, entries: set[QueueEntry]) -> None:
        for share, waiting in self.waiting.items():
            self.waiting[share] = [each for each in waiting if each[2] not in entries]


FairQueueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestFairQueue = FairQueueMachine.TestCase


@given(st.lists(st.sampled_from([0.5, 1.0, 3.0, 8.0]), min_size=2, max_size=4), st.integers(2, 64))
def test_batch_is_divided_by_weight(weights: list[float], max_rows: int) -> None:
    clock = FairClock()
    queue = FairQueue(AGEING_S, clock)
    shares = [clock.share(Tenant(str(i), weight)) for i, weight in enumerate(weights)]
    for i in range(200 * len(shares)):
        queue.add(QueueEntry(None, shares[i % len(shares)], 1, 10, "texts"), 5, now_s=float(i))
    # The cost of a row is constant, so each entry costs the same at any place in the batch.
    plan = next_batch(queue, cost_of_terms(start_s=1e-12, per_token_s=1e-3), BatchLimits(max_rows))
    assert plan is not None
    assert plan.rows == max_rows
    for share in shares:
        # Before its last entry, no tenant was ahead of another one.
        count = sum(entry.share is share for entry in plan.entries)
        others = [sum(entry.share is each for entry in plan.entries) / each.tenant.weight for each in shares]
        assert (count - 1) / share.tenant.weight <= min(others) + 1e-9


def test_only_tenant_with_fitting_entries_fills_batch() -> None:
    clock = FairClock()
    queue = FairQueue(AGEING_S, clock)
    one, other = clock.share(TENANTS[0]), clock.share(TENANTS[1])
    queue.add(QueueEntry("head", one, 1, 10, "texts"), 1, now_s=0.0)
    queue.add(QueueEntry("of another group", one, 1, 10, "other"), 5, now_s=0.0)
    for i in range(20):
        queue.add(QueueEntry(i, other, 1, 10, "texts"), 5, now_s=0.0)
    plan = next_batch(queue, LAW, BatchLimits(8))
    assert plan is not None
    assert [entry.work for entry in plan.entries] == ["head", *range(7)]
