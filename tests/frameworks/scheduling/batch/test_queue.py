"""The queue of one tenant; test_fair_queue.py compares it with a plain list in any order."""

import weakref

from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.fairness import TenantShare
from frameworks.core.tenants import DEFAULT_TENANT
from frameworks.scheduling.batch.queue import QueueEntry, RequestQueue

AGEING_S = 0.5
SHARE = TenantShare(DEFAULT_TENANT)


def entry(rows: int = 1, length: int = 1, group: str = "a") -> QueueEntry:
    return QueueEntry(None, SHARE, rows, length, group)


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
