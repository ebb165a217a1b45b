"""The queue compared with a plain list: same order, same neighbours, no entry lost or repeated."""

import weakref

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from frameworks.fairness import TenantShare
from frameworks.scheduling.batch.queue import QueueEntry, RequestQueue
from frameworks.tenants import DEFAULT_TENANT

AGEING_S = 0.5
SHARE = TenantShare(DEFAULT_TENANT)
groups = st.sampled_from(["a", "b"])


def entry(rows: int = 1, length: int = 1, group: str = "a") -> QueueEntry:
    return QueueEntry(None, SHARE, rows, length, group)


class QueueMachine(RuleBasedStateMachine):
    """Add and remove in any order with a monotonic clock."""

    added: "Bundle[QueueEntry]" = Bundle("added")

    def __init__(self) -> None:
        super().__init__()
        self.queue = RequestQueue(AGEING_S)
        self.waiting: list[tuple[float, int, QueueEntry]] = []
        self.now_s = 0.0
        self.serial = 0

    @rule(
        target=added,
        rows=st.integers(0, 5),
        length=st.integers(1, 6),
        group=groups,
        priority=st.integers(0, 9),
        later_s=st.sampled_from([0.0, 0.25, 0.5, 3.0]),
        times=st.sampled_from([1, 1, 2, 100]),
    )
    def add(
        self, rows: int, length: int, group: str, priority: int, later_s: float, times: int
    ) -> MultipleResults[QueueEntry]:
        self.now_s += later_s
        entries = [entry(rows, length, group) for _ in range(times)]
        for one in entries:
            self.queue.add(one, priority, self.now_s)
            self.waiting.append((self.now_s + priority * AGEING_S, self.serial, one))
            self.serial += 1
        return multiple(*entries)

    @rule(one=consumes(added))
    def remove(self, one: QueueEntry) -> None:
        self.queue.remove(one)
        self.queue.remove(one)  # a second call has no effect
        self.waiting = [entry for entry in self.waiting if entry[2] is not one]

    @rule(keep=st.integers(0, 3))
    def remove_many(self, keep: int) -> None:
        for _, _, one in self.waiting[keep:]:
            self.queue.remove(one)
        del self.waiting[keep:]

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        for _ in range(count):
            if (head := self.queue.head()) is not None:
                self.queue.remove(head)
                self.waiting = [entry for entry in self.waiting if entry[2] is not head]

    @invariant()
    def head_is_first_in_order(self) -> None:
        first = min(self.waiting, key=lambda entry: entry[:2])[2] if self.waiting else None
        assert self.queue.head() is first

    @invariant()
    def counts_match(self) -> None:
        assert self.queue.entries == len(self.waiting)
        assert self.queue.rows == sum(one.rows for _, _, one in self.waiting)

    @invariant()
    def removed_entries_are_bounded(self) -> None:
        assert len(self.queue._by_order) <= max(64, 2 * self.queue.entries) + 1

    @invariant()
    def neighbours_match_group_by_length(self) -> None:
        head = self.queue.head()
        if head is None:
            return
        shorter, longer = list(self.queue.shorter(head)), list(self.queue.longer(head))
        rest = [entry for entry in self.waiting if entry[2].group == head.group and entry[2] is not head]
        ordered = sorted(rest, key=lambda entry: (entry[2].length, *entry[:2]))
        assert longer == [entry[2] for entry in ordered if entry[2].length >= head.length]
        below = sorted(rest, key=lambda entry: (-entry[2].length, *entry[:2]))
        assert shorter == [entry[2] for entry in below if entry[2].length < head.length]


QueueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestQueue = QueueMachine.TestCase


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 9)), max_size=40), st.floats(0.01, 10))
def test_entries_follow_priority_and_arrival(arrivals: list[tuple[float, int]], ageing_s: float) -> None:
    queue = RequestQueue(ageing_s)
    entries = [entry() for _ in arrivals]
    for one, (now_s, priority) in zip(entries, arrivals, strict=True):
        queue.add(one, priority, now_s)
    removed: list[QueueEntry] = []
    while (head := queue.head()) is not None:
        queue.remove(head)
        removed.append(head)
    orders = [now_s + priority * ageing_s for now_s, priority in arrivals]
    assert removed == [entries[i] for i in sorted(range(len(entries)), key=lambda i: (orders[i], i))]
    assert (queue.entries, queue.rows) == (0, 0)


def test_priority_level_equals_one_ageing_time() -> None:
    queue = RequestQueue(ageing_s=1.0)
    old, urgent, late = entry(), entry(), entry()
    queue.add(old, 9, now_s=0.0)
    queue.add(urgent, 1, now_s=7.5)
    queue.add(late, 1, now_s=8.5)
    order = []
    while (head := queue.head()) is not None:
        queue.remove(head)
        order.append(head)
    assert order == [urgent, old, late]


def test_nearest_lengths_keep_queue_order() -> None:
    queue = RequestQueue(1.0)
    head, *others = [entry(length=5), *(entry(length=length) for length in (3, 3, 4, 4, 5, 6, 6))]
    for one in (head, *others):
        queue.add(one, 5, now_s=0.0)
    three, three_later, four, four_later, five, six, six_later = others
    assert list(queue.shorter(head)) == [four, four_later, three, three_later]
    assert list(queue.longer(head)) == [five, six, six_later]


def test_removed_entries_are_not_referenced() -> None:
    """An entry holds tensors and results, and the queue may be idle for hours."""
    queue = RequestQueue(AGEING_S)
    first, second = entry(), entry()
    for each in (first, second):
        queue.add(each, 5, 0.0)
    queue.remove(second)
    reference = weakref.ref(second)
    del second, each
    assert reference() is None
    assert queue.head() is first
