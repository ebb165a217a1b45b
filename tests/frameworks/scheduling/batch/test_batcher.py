"""Batches hold bounds and one signature, cost no more than their parts, and cover every entry."""

from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.fairness import FairClock
from frameworks.core.tenants import DEFAULT_TENANT
from frameworks.scheduling.batch.batcher import BatchLimits, BatchPlan, next_batch
from frameworks.scheduling.batch.cost import CostModel
from frameworks.scheduling.batch.fair_queue import FairQueue
from frameworks.scheduling.batch.queue import QueueEntry
from tests.frameworks.scheduling.batch.costs import cost_of_terms

sizes = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 200), st.sampled_from("ab"), st.integers(1, 9)), min_size=1, max_size=40
)
limits = st.builds(
    BatchLimits, max_rows=st.integers(1, 16), max_tokens=st.none() | st.integers(1, 2000), packs=st.booleans()
)
terms = st.tuples(st.floats(1e-6, 1.0), st.floats(0, 1e-2), st.floats(0, 1e-4), st.just(0.0) | st.floats(0, 1e-4))


def queue_of(*shapes: tuple[int, int, str, int]) -> FairQueue:
    """Return entries of (rows, length, group, priority), one per millisecond."""
    clock = FairClock()
    queue, share = FairQueue(1.0, clock), clock.share(DEFAULT_TENANT)
    for i, (rows, length, group, priority) in enumerate(shapes):
        queue.add(QueueEntry(i, share, rows, length, group), priority, now_s=i / 1000)
    return queue


def plan_of(queue: FairQueue, cost: CostModel, limits: BatchLimits) -> BatchPlan:
    plan = next_batch(queue, cost, limits)
    assert plan is not None
    return plan


def check(plan: BatchPlan, head: QueueEntry | None, limits: BatchLimits) -> None:
    assert plan.entries[0] is head
    assert len({id(entry) for entry in plan.entries}) == len(plan.entries)
    assert len({entry.group for entry in plan.entries}) == 1
    assert plan.rows == sum(entry.rows for entry in plan.entries)
    tokens = sum(entry.rows * entry.length for entry in plan.entries)
    longest = max(entry.length for entry in plan.entries)
    assert plan.length == (tokens / plan.rows if limits.packs and plan.rows else longest)
    if len(plan.entries) > 1:
        assert plan.rows <= limits.max_rows
        assert limits.max_tokens is None or round(plan.rows * plan.length) <= limits.max_tokens


@given(sizes, limits, terms)
def test_batches_hold_bounds_and_cover_every_entry(
    shapes: list[tuple[int, int, str, int]], limits: BatchLimits, terms: tuple[float, float, float, float]
) -> None:
    queue, cost = queue_of(*shapes), cost_of_terms(*terms)
    executed: list[int] = []
    while queue.entries:
        plan = plan_of(queue, cost, limits)
        check(plan, queue.head(), limits)
        apart_s = sum(cost.seconds(entry.rows, entry.length) for entry in plan.entries)
        assert cost.seconds(plan.rows, plan.length) <= apart_s * (1 + 1e-9)
        for entry in plan.entries:
            queue.remove(entry)
            executed.append(entry.work)
    assert sorted(executed) == list(range(len(shapes)))
    assert next_batch(queue, cost, limits) is None


def test_unmeasured_batches_double_their_rows() -> None:
    queue, cost = queue_of(*((1, 10, "a", 5) for _ in range(100))), CostModel()
    sizes = []
    while queue.entries:
        plan = plan_of(queue, cost, BatchLimits(max_rows=32))
        cost.observe(plan.rows, plan.length, 1e-3 + 1e-6 * plan.rows * plan.length)
        sizes.append(plan.rows)
        assert plan.is_full == (queue.entries > plan.rows), "a batch is full unless it empties the queue"
        for entry in plan.entries:
            queue.remove(entry)
    assert sizes == [1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 6]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30))
def test_free_start_avoids_padding(lengths: list[int]) -> None:
    queue, cost = queue_of(*((1, length, "a", 5) for length in lengths)), cost_of_terms(1e-9, 1e-3)
    while queue.entries:
        plan = plan_of(queue, cost, BatchLimits(max_rows=8))
        assert len({entry.length for entry in plan.entries}) == 1
        for entry in plan.entries:
            queue.remove(entry)


@given(st.integers(1, 60), st.integers(1, 16), st.integers(1, 50), terms)
def test_equal_lengths_fill_batch(
    waiting: int, max_rows: int, length: int, terms: tuple[float, float, float, float]
) -> None:
    queue = queue_of(*((1, length, "a", 5) for _ in range(waiting)))
    plan = plan_of(queue, cost_of_terms(*terms[:3]), BatchLimits(max_rows))
    assert [entry.work for entry in plan.entries] == list(range(min(waiting, max_rows)))
    assert plan.is_full == (waiting >= max_rows)


def test_avoidable_padding_is_not_added() -> None:
    """Alone a row of 70 tokens costs more than among rows of 100; with another of 70 it costs less."""
    cost = cost_of_terms(start_s=0.04, per_token_s=1e-3)
    queue = queue_of((1, 100, "a", 1), (1, 70, "a", 5), (1, 70, "a", 5))
    assert cost.seconds(2, 100) < cost.seconds(1, 100) + cost.seconds(1, 70)
    assert [entry.work for entry in plan_of(queue, cost, BatchLimits(max_rows=8)).entries] == [0]
    # A row joins if its padding costs less than half a start.
    queue = queue_of((1, 100, "a", 1), (1, 85, "a", 5), (1, 70, "a", 5))
    assert [entry.work for entry in plan_of(queue, cost, BatchLimits(max_rows=8)).entries] == [0, 1]


def test_costly_start_accepts_padding_of_nearest_lengths() -> None:
    queue = queue_of((1, 10, "a", 1), (1, 100, "a", 5), (1, 9, "a", 5), (1, 12, "a", 5))
    all_entries = plan_of(queue, cost_of_terms(1.0, 1e-3), BatchLimits(max_rows=4))
    assert {entry.work for entry in all_entries.entries} == {0, 1, 2, 3}
    two = plan_of(queue, cost_of_terms(1.0, 1e-3), BatchLimits(max_rows=2))
    assert [entry.length for entry in two.entries] == [10, 9]


def test_entry_beyond_bounds_runs_alone() -> None:
    queue = queue_of((50, 100, "a", 1), (1, 100, "a", 5))
    plan = plan_of(queue, cost_of_terms(1.0, 1e-3), BatchLimits(max_rows=8, max_tokens=200))
    assert [entry.work for entry in plan.entries] == [0]
    assert plan.is_full


def test_token_bound_counts_padding() -> None:
    queue = queue_of((1, 10, "a", 1), *((1, 10, "a", 5) for _ in range(9)))
    assert plan_of(queue, cost_of_terms(1.0, 1e-3), BatchLimits(max_rows=100, max_tokens=45)).rows == 4
    queue = queue_of((1, 10, "a", 1), (1, 23, "a", 5), (1, 22, "a", 5))
    assert [p.work for p in plan_of(queue, cost_of_terms(1.0, 1e-3), BatchLimits(100, max_tokens=45)).entries] == [0, 2]
