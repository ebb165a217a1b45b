"""Which sequences release blocks when none are free, and which start from cached blocks."""

from frameworks.scheduling.steps.scheduler import StepScheduler
from frameworks.scheduling.steps.sequence import Sequence
from tests.frameworks.scheduling.steps.block_memory import BlockMemory
from tests.frameworks.scheduling.steps.stepping import BLOCK, add, parts, run_out, running, scheduler_of, step


class TestPreemption:
    def test_youngest_sequence_preempted_and_resumed(self) -> None:
        scheduler, memory = scheduler_of(blocks=6), BlockMemory(6, BLOCK)
        old = add(scheduler, 0, 8, max_tokens=16)
        young = add(scheduler, 1, 6, max_tokens=10, arrived_s=1.0)
        while scheduler.stats(0).preemptions == 0:
            step(scheduler, memory)
        assert running(scheduler) == [0]
        assert young.blocks == []
        assert young.num_computed_tokens == 0
        assert young.num_generated_tokens > 0, "what was generated stays"
        while old in scheduler.running:
            step(scheduler, memory)
        generated = young.num_generated_tokens
        plan = step(scheduler, memory)
        assert plan.begun == []
        assert young.num_generated_tokens == generated + 1
        while scheduler.running:
            step(scheduler, memory)
        assert (old.num_generated_tokens, young.num_generated_tokens) == (16, 10)

    def test_preempted_sequence_keeps_its_order(self) -> None:
        scheduler = scheduler_of(blocks=6)
        add(scheduler, 0, 8, max_tokens=16)
        young = add(scheduler, 1, 8, max_tokens=16, arrived_s=1.0)
        while scheduler.stats(0).preemptions == 0:
            step(scheduler)
        late = add(scheduler, 2, 2, max_tokens=1, arrived_s=2.0)
        while young not in scheduler.running:
            assert not late.has_begun
            step(scheduler)
        run_out(scheduler)
        assert late.num_generated_tokens == 1

    def test_preempted_blocks_stay_cached(self) -> None:
        scheduler, memory = scheduler_of(blocks=12), BlockMemory(12, BLOCK)
        add(scheduler, 0, 24, max_tokens=24)
        young = add(scheduler, 1, 16, max_tokens=8, arrived_s=1.0)
        while scheduler.stats(0).preemptions == 0:
            step(scheduler, memory)
        assert scheduler.pool.num_cached
        while young.num_generated_tokens < 8:
            step(scheduler, memory)

    def test_preempted_prompt_counted_once(self) -> None:
        scheduler = scheduler_of(blocks=6)
        add(scheduler, 0, 8, max_tokens=16)
        add(scheduler, 1, 6, max_tokens=10, arrived_s=1.0)
        run_out(scheduler)
        assert scheduler.stats(0).preemptions > 0
        assert scheduler.stats(0).prompt_tokens == 14

    def test_sequence_needing_block_preempts_itself(self) -> None:
        scheduler = scheduler_of(blocks=5)
        add(scheduler, 0, 8, max_tokens=12)
        add(scheduler, 1, 7, max_tokens=6, arrived_s=1.0)
        while scheduler.stats(0).preemptions == 0:
            plan = step(scheduler)
        assert parts(plan) == [(0, 9, 1)]
        assert running(scheduler) == [0]
        run_out(scheduler)
        assert scheduler.pool.num_used == 0

    def test_lowest_priority_sequence_preempted(self) -> None:
        scheduler = scheduler_of(blocks=6)
        add(scheduler, 0, 8, max_tokens=16, priority=9)
        step(scheduler)
        add(scheduler, 1, 8, max_tokens=16, priority=1, arrived_s=1.0)
        while scheduler.stats(0).preemptions == 0:
            step(scheduler)
        assert running(scheduler) == [1]


class TestPrefixes:
    def test_shared_prefix_computed_once(self) -> None:
        scheduler, memory = scheduler_of(), BlockMemory(64, BLOCK)
        prompt = tuple(range(11))
        for i in range(4):
            add(scheduler, i, prompt, max_tokens=3)
        assert parts(step(scheduler, memory)) == [(0, 0, 11)]
        plan = step(scheduler, memory)
        assert sorted(parts(plan)) == [(0, 11, 1), (1, 8, 3), (2, 8, 3), (3, 8, 3)]
        assert scheduler.stats(0).prefix_hit_tokens == 24

    def test_unrelated_prompt_overtakes_sequences_awaiting_prefix(self) -> None:
        scheduler = scheduler_of()
        add(scheduler, 0, tuple(range(11)))
        add(scheduler, 1, tuple(range(11)), arrived_s=1.0)
        add(scheduler, 2, 5, arrived_s=2.0)
        assert parts(step(scheduler)) == [(0, 0, 11), (2, 0, 5)]

    def test_pending_prefix_taken_over_after_cancellation(self) -> None:
        scheduler = scheduler_of(max_num_batched_tokens=8)
        first = add(scheduler, 0, tuple(range(30)))
        add(scheduler, 1, tuple(range(30)), arrived_s=1.0)
        step(scheduler)
        assert running(scheduler) == [0]
        scheduler.remove(first)
        plan = step(scheduler)
        assert parts(plan) == [(1, 8, 8)]
        assert plan.begun == [(1, 8)]

    def test_generated_tokens_are_cached(self) -> None:
        """The next turn of a conversation begins with the previous response."""
        scheduler, memory = scheduler_of(), BlockMemory(64, BLOCK)
        add(scheduler, 0, (1, 2, 3, 4, 5), max_tokens=5)
        for _ in range(5):
            step(scheduler, memory, token_id=7)
        add(scheduler, 1, (1, 2, 3, 4, 5, 7, 7, 7, 7, 7, 9))
        assert step(scheduler, memory).begun == [(1, 8)]

    def test_last_generated_token_not_cached(self) -> None:
        """It is sampled, but its keys and values are never computed."""
        scheduler, memory = scheduler_of(), BlockMemory(64, BLOCK)
        add(scheduler, 0, (1, 2, 3, 4, 5), max_tokens=3)
        for _ in range(3):
            step(scheduler, memory, token_id=7)
        add(scheduler, 1, (1, 2, 3, 4, 5, 7, 7, 7, 9))
        assert step(scheduler, memory).begun == [(1, 4)]

    def test_failed_step_clears_cache(self) -> None:
        scheduler, memory = scheduler_of(), BlockMemory(64, BLOCK)
        prompt = tuple(range(20))
        add(scheduler, 0, prompt, max_tokens=1)
        step(scheduler, memory)
        failing = add(scheduler, 1, (*prompt, 5))
        scheduler.plan()
        scheduler.clear_cache()
        scheduler.remove(failing)
        scheduler.check_integrity()
        add(scheduler, 2, prompt, max_tokens=1)
        assert step(scheduler, memory).begun == [(2, 0)]

    def test_clear_cache_drops_pending_copies(self) -> None:
        scheduler = scheduler_of()
        scheduler.remove(_ran(scheduler, 0))
        assert scheduler.plan().copies
        scheduler.remove(_ran(scheduler, 1))
        scheduler.clear_cache()
        add(scheduler, 2, 5)
        assert scheduler.plan().copies == []

    def test_interrupted_prefill_is_not_matched(self) -> None:
        scheduler = scheduler_of(max_num_batched_tokens=8)
        failing = add(scheduler, 0, tuple(range(30)))
        step(scheduler)
        scheduler.plan()
        scheduler.clear_cache()
        scheduler.remove(failing)
        add(scheduler, 1, tuple(range(30)))
        assert step(scheduler, BlockMemory(64, BLOCK)).begun == [(1, 0)]


def _ran(scheduler: StepScheduler, sequence_id: int) -> Sequence:
    """Return a sequence with some cached blocks."""
    sequence = add(scheduler, sequence_id, 20)
    step(scheduler)
    return sequence
