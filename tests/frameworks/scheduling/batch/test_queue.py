"""The queue compared with a plain list: same order, same neighbours, no entry lost or repeated."""

import weakref

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from frameworks.scheduling.batch.queue import QueueEntry, RequestQueue

AGEING_S = 0.5
groups = st.sampled_from(["a", "b"])


def entry(rows: int = 1, length: int = 1, group: str = "a") -> QueueEntry:
    return QueueEntry(None, rows, length, group)


class LineMachine(RuleBasedStateMachine):
    """Add and remove in any order with a monotonic clock."""

    added: "Bundle[QueueEntry]" = Bundle("added")

    def __init__(self) -> None:
        super().__init__()
        self.line = RequestQueue(AGEING_S)
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
            self.line.add(one, priority, self.now_s)
            self.waiting.append((self.now_s + priority * AGEING_S, self.serial, one))
            self.serial += 1
        return multiple(*entries)

    @rule(one=consumes(added))
    def remove(self, one: QueueEntry) -> None:
        self.line.remove(one)
        self.line.remove(one)  # again, to no effect
        self.waiting = [entry for entry in self.waiting if entry[2] is not one]

    @rule(keep=st.integers(0, 3))
    def remove_many(self, keep: int) -> None:
        for _, _, one in self.waiting[keep:]:
            self.line.remove(one)
        del self.waiting[keep:]

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        for _ in range(count):
            if (head := self.line.head()) is not None:
                self.line.remove(head)
                self.waiting = [entry for entry in self.waiting if entry[2] is not head]

    @invariant()
    def head_is_the_first_in_order(self) -> None:
        first = min(self.waiting, key=lambda entry: entry[:2])[2] if self.waiting else None
        assert self.line.head() is first

    @invariant()
    def counts_are_right(self) -> None:
        assert self.line.entries == len(self.waiting)
        assert self.line.rows == sum(one.rows for _, _, one in self.waiting)

    @invariant()
    def the_gone_do_not_pile_up(self) -> None:
        assert len(self.line._by_order) <= max(64, 2 * self.line.entries) + 1

    @invariant()
    def neighbours_are_those_of_the_group_by_length(self) -> None:
        head = self.line.head()
        if head is None:
            return
        shorter, longer = list(self.line.shorter(head)), list(self.line.longer(head))
        rest = [entry for entry in self.waiting if entry[2].group == head.group and entry[2] is not head]
        ordered = sorted(rest, key=lambda entry: (entry[2].length, *entry[:2]))
        assert longer == [entry[2] for entry in ordered if entry[2].length >= head.length]
        below = sorted(rest, key=lambda entry: (-entry[2].length, *entry[:2]))
        assert shorter == [entry[2] for entry in below if entry[2].length < head.length]


LineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestLine = LineMachine.TestCase


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 9)), max_size=40), st.floats(0.01, 10))
def test_entries_follow_priority_and_arrival(arrivals: list[tuple[float, int]], ageing_s: float) -> None:
    line = RequestQueue(ageing_s)
    entries = [entry() for _ in arrivals]
    for one, (now_s, priority) in zip(entries, arrivals, strict=True):
        line.add(one, priority, now_s)
    left: list[QueueEntry] = []
    while (head := line.head()) is not None:
        line.remove(head)
        left.append(head)
    orders = [now_s + priority * ageing_s for now_s, priority in arrivals]
    assert left == [entries[i] for i in sorted(range(len(entries)), key=lambda i: (orders[i], i))]
    assert (line.entries, line.rows) == (0, 0)


def test_priority_level_equals_one_ageing_time() -> None:
    line = RequestQueue(ageing_s=1.0)
    old, urgent, late = entry(), entry(), entry()
    line.add(old, 9, now_s=0.0)
    line.add(urgent, 1, now_s=7.5)
    line.add(late, 1, now_s=8.5)
    order = []
    while (head := line.head()) is not None:
        line.remove(head)
        order.append(head)
    assert order == [urgent, old, late]


def test_nearest_lengths_keep_queue_order() -> None:
    line = RequestQueue(1.0)
    head, *others = [entry(length=5), *(entry(length=length) for length in (3, 3, 4, 4, 5, 6, 6))]
    for one in (head, *others):
        line.add(one, 5, now_s=0.0)
    three, three_later, four, four_later, five, six, six_later = others
    assert list(line.shorter(head)) == [four, four_later, three, three_later]
    assert list(line.longer(head)) == [five, six, six_later]


def test_removed_entries_are_not_referenced() -> None:
    """An entry holds tensors and results, and the queue may be idle for hours."""
    line = RequestQueue(AGEING_S)
    first, second = entry(), entry()
    for each in (first, second):
        line.add(each, 5, 0.0)
    line.remove(second)
    gone = weakref.ref(second)
    del second, each
    assert gone() is None
    assert line.head() is first
