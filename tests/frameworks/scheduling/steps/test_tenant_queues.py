"""The queue of sequences compared with a plain list, and its comparisons counted."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Sampling
from frameworks.scheduling.steps.sequence import Sequence
from frameworks.scheduling.steps.tenant_queues import WaitingQueue

AGEING_S = 0.5


def waiter_of(order: float, sequence_id: int) -> Sequence:
    return Sequence(SequenceRequest(sequence_id, (1,), 1, Sampling(), priority=5), order)


class QueueMachine(RuleBasedStateMachine):
    """Add, cancel, take and return in any order with a monotonic clock."""

    added: "Bundle[Sequence]" = Bundle("added")
    taken: "Bundle[Sequence]" = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitingQueue()
        self.model: list[Sequence] = []
        self.cancelled: set[int] = set()
        self.now_s = 0.0
        self.next_id = 0

    @rule(
        target=added,
        priority=st.integers(1, 9),
        later_s=st.sampled_from([0.0, 0.25, 0.5, 3.0]),
        times=st.sampled_from([1, 1, 2, 100]),
    )
    def add(self, priority: int, later_s: float, times: int) -> MultipleResults[Sequence]:
        self.now_s += later_s
        new = []
        for _ in range(times):
            self.next_id += 1
            new.append(waiter_of(self.now_s + priority * AGEING_S, self.next_id))
            self.queue.add(new[-1])
        self.model += new
        return multiple(*new)

    @rule(waiter=consumes(added))
    def cancel(self, waiter: Sequence) -> None:
        if waiter in self.model:
            self.model.remove(waiter)
            self.queue.remove(waiter)
            self.cancelled.add(waiter.sequence_id)

    @rule(keep=st.integers(0, 3))
    def cancel_many(self, keep: int) -> None:
        for waiter in self.model[keep:]:
            self.cancel(waiter)

    @rule(target=taken)
    def take(self) -> MultipleResults[Sequence]:
        first = min(self.model, key=lambda each: (each.order, each.sequence_id), default=None)
        assert self.queue.take() is first
        if first is None:
            return multiple()
        assert first.sequence_id not in self.cancelled
        self.model.remove(first)
        return multiple(first)

    @rule(waiter=consumes(taken))
    def give_back(self, waiter: Sequence) -> None:
        """A sequence that was preempted waits again."""
        self.queue.add(waiter)
        self.model.append(waiter)

    @invariant()
    def holds_the_same(self) -> None:
        assert len(self.queue) == len(self.model)
        assert {each.sequence_id for each in self.queue.sequences()} == {each.sequence_id for each in self.model}
        assert all(each in self.queue for each in self.model)

    @invariant()
    def removed_keys_bounded(self) -> None:
        assert len(self.queue._by_order) <= 2 * len(self.queue)

    def teardown(self) -> None:
        while self.model:
            self.take()
        assert self.queue.take() is None


QueueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestQueue = QueueMachine.TestCase


class CountedOrder(float):
    """An order that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        CountedOrder.compared += 1
        return float(self) < float(other)

    def __eq__(self, other: object) -> bool:
        CountedOrder.compared += 1
        return float(self) == other

    __hash__ = float.__hash__


def test_cancelled_sequences_cost_few_comparisons() -> None:
    """2,048 sequences are cancelled in two orders; searching or sorting for each would take millions."""
    for step in (1, -1):
        queue = WaitingQueue()
        waiting = [waiter_of(CountedOrder(i // 128), i) for i in range(2048)]
        CountedOrder.compared = 0
        for waiter in waiting:
            queue.add(waiter)
        for waiter in waiting[::step]:
            queue.remove(waiter)
        assert queue.take() is None
        assert CountedOrder.compared < 40 * len(waiting)
