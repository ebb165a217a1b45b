"""The queue of several tenants compared with plain lists: the order in each tenant, and the clock's tenant first."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from frameworks.fairness import FairClock, TenantShare
from frameworks.scheduling.batch.batcher import BatchLimits, next_batch
from frameworks.scheduling.batch.fair_queue import FairQueue
from frameworks.scheduling.batch.queue import QueueEntry
from frameworks.tenants import Tenant
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
        length=st.integers(1, 200),
        group=st.sampled_from("aab"),
        priority=st.integers(1, 9),
        later_s=st.sampled_from([0.0, 0.25, 3.0]),
    )
    def add(self, tenant: Tenant, length: int, group: str, priority: int, later_s: float) -> QueueEntry:
        self.now_s += later_s
        self.serial += 1
        share = self.clock.share(tenant)
        entry = QueueEntry(None, share, 1, length, group)
        self.queue.add(entry, priority, self.now_s)
        self.waiting[share].append((self.now_s + priority * AGEING_S, self.serial, entry))
        return entry

    @rule(entry=consumes(added))
    def cancel(self, entry: QueueEntry) -> None:
        self.queue.remove(entry)
        self.queue.remove(entry)  # a second call has no effect
        self._drop({entry})

    @precondition(lambda self: self.queue.entries > 0)
    @rule(max_rows=st.integers(1, 8), may_fill=st.booleans())
    def run(self, max_rows: int, may_fill: bool) -> None:
        first = self.queue.first()
        assert first is not None
        plan = next_batch(self.queue, LAW, BatchLimits(max_rows), lambda _: may_fill)
        assert plan is not None
        chosen = set(plan.entries)
        assert len(chosen) == len(plan.entries) <= max_rows
        assert plan.entries[0].share is first
        assert {entry.group for entry in chosen} == {plan.entries[0].group}
        if not may_fill:
            assert {entry.share for entry in chosen} == {first}
        elif not plan.is_full:
            self._check_conserves_work(plan.entries[0], plan.length, chosen)
        costs = dict.fromkeys({entry.share for entry in chosen}, 0.0)
        for entry in chosen:
            costs[entry.share] += LAW.seconds(plan.rows, plan.length) / plan.rows
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

    def _check_conserves_work(self, head: QueueEntry, length: int, chosen: set[QueueEntry]) -> None:
        """With room in the batch, no entry of the same length is left out."""
        left = [entry for waiting in self.waiting.values() for _, _, entry in waiting if entry not in chosen]
        assert not any(entry.group == head.group and entry.length == length for entry in left)

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
