"""Which sequences start, decode and wait in a step."""

import pytest

from frameworks.core.tenants import Tenant
from frameworks.scheduling.steps.step_cost import MIN_PROMPT_TOKENS
from tests.frameworks.scheduling.steps.block_memory import BlockMemory
from tests.frameworks.scheduling.steps.stepping import BLOCK, add, parts, running, scheduler_of, step


class TestStart:
    def test_plan_whole_prompt_then_single_tokens(self) -> None:
        scheduler = scheduler_of()
        add(scheduler, 0, 6, max_tokens=3)
        assert [parts(step(scheduler)) for _ in range(3)] == [[(0, 0, 6)], [(0, 6, 1)], [(0, 7, 1)]]
        assert not scheduler.running
        assert not scheduler.stats(0).waiting
        assert parts(scheduler.plan()) == []

    def test_plan_decodes_before_new_prompt(self) -> None:
        scheduler = scheduler_of()
        add(scheduler, 1, 6)
        step(scheduler)
        add(scheduler, 0, 5)
        assert parts(step(scheduler)) == [(1, 6, 1), (0, 0, 5)]
        assert sorted(parts(step(scheduler))) == [(0, 5, 1), (1, 7, 1)]

    def test_decodes_and_prompts_sorted_by_adapter(self) -> None:
        scheduler = scheduler_of()
        for number, adapter_id in enumerate([2, 0, 1, 2]):
            add(scheduler, number, 6, adapter_id=adapter_id)
        assert [each for each, _, _ in parts(step(scheduler))] == [1, 2, 0, 3]
        for number, adapter_id in enumerate([1, 0], 4):
            add(scheduler, number, 6, adapter_id=adapter_id)
        assert [each for each, _, _ in parts(step(scheduler))] == [1, 2, 0, 3, 5, 4]

    def test_removed_sequence_frees_its_blocks_at_once(self) -> None:
        scheduler = scheduler_of(max_sequences=1)
        first = add(scheduler, 0, 5)
        add(scheduler, 1, 5)
        step(scheduler)
        assert (running(scheduler), scheduler.stats(0).waiting) == ([0], 1)
        scheduler.remove(first)
        assert parts(step(scheduler)) == [(1, 0, 5)]

    def test_waiting_sequences_can_be_removed(self) -> None:
        scheduler = scheduler_of(max_sequences=1)
        add(scheduler, 0, 5)
        step(scheduler)
        waiting = [add(scheduler, i, 5) for i in range(1, 6)]
        for sequence in (waiting[0], waiting[3]):
            scheduler.remove(sequence)
        order = []
        while scheduler.running:
            scheduler.remove(scheduler.running[0])
            if scheduler.stats(0).waiting:
                step(scheduler)
                order += running(scheduler)
        assert order == [2, 3, 5]

    def test_begun_reported_once_with_cached_tokens(self) -> None:
        scheduler = scheduler_of()
        add(scheduler, 0, tuple(range(10)), max_tokens=1)
        assert step(scheduler).begun == [(0, 0)]
        add(scheduler, 1, (*range(9), 77), max_tokens=2)
        assert step(scheduler).begun == [(1, 8)]
        assert step(scheduler).begun == []
        assert (scheduler.stats(0).prompt_tokens, scheduler.stats(0).prefix_hit_tokens) == (20, 8)

    def test_sequences_start_in_arrival_order(self) -> None:
        scheduler = scheduler_of(max_sequences=1)
        for i, arrived_s in enumerate((3.0, 1.0, 2.0)):
            add(scheduler, i, 3, max_tokens=1, arrived_s=arrived_s)
        assert [parts(step(scheduler))[0][0] for _ in range(3)] == [1, 2, 0]

    @pytest.mark.parametrize(("late_s", "first"), [(1.9, "urgent"), (2.1, "patient")])
    def test_priority_level_counts_as_ageing_seconds(self, late_s: float, first: str) -> None:
        scheduler = scheduler_of(max_sequences=1, ageing_s=0.5)
        add(scheduler, 0, 3, priority=5, arrived_s=10.0)
        add(scheduler, 1, 3, priority=1, arrived_s=10.0 + late_s)
        step(scheduler)
        assert running(scheduler) == [1 if first == "urgent" else 0]

    def test_prompt_without_blocks_is_not_overtaken(self) -> None:
        """Otherwise a long prompt would wait for ever behind short ones."""
        scheduler = scheduler_of(blocks=8)
        first = add(scheduler, 0, 16)
        step(scheduler)
        add(scheduler, 1, 24, max_tokens=1)
        add(scheduler, 2, 2, max_tokens=1)
        assert parts(step(scheduler)) == [(0, 16, 1)]
        scheduler.remove(first)
        assert parts(step(scheduler))[0] == (1, 0, 24)

    def test_start_reserves_a_block_per_running_sequence(self) -> None:
        scheduler = scheduler_of(blocks=6)
        add(scheduler, 0, 9)
        step(scheduler)
        add(scheduler, 1, 9)
        step(scheduler)
        assert running(scheduler) == [0], "three free blocks would be taken, and the next token would find none"
        add(scheduler, 2, 8, arrived_s=-1.0)
        step(scheduler)
        assert running(scheduler) == [2, 0]

    def test_cached_prefix_evicted_when_prompt_needs_blocks(self) -> None:
        """The cache is full of one long prompt's prefix, and the next prompt needs all of it."""
        scheduler, memory = scheduler_of(blocks=4), BlockMemory(4, BLOCK)
        prompt = tuple(range(15))
        for i in range(2):
            add(scheduler, i, (*prompt[:12], 90 + i, 91, 92), max_tokens=1)
            step(scheduler, memory)
        assert not scheduler.running
        assert scheduler.pool.num_used == 0


class TestPrefillParts:
    def test_long_prompt_split_by_token_budget(self) -> None:
        scheduler = scheduler_of(max_num_batched_tokens=10, max_sequences=2)
        add(scheduler, 0, 23, max_tokens=1)
        assert [parts(step(scheduler)) for _ in range(3)] == [[(0, 0, 10)], [(0, 10, 10)], [(0, 20, 3)]]

    def test_prompt_parts_smaller_beside_decodes(self) -> None:
        scheduler = scheduler_of(max_num_batched_tokens=200)
        add(scheduler, 0, 5)
        step(scheduler)
        add(scheduler, 1, 100)
        assert parts(step(scheduler)) == [(0, 5, 1), (1, 0, MIN_PROMPT_TOKENS)]
        assert parts(step(scheduler)) == [(0, 6, 1), (1, MIN_PROMPT_TOKENS, MIN_PROMPT_TOKENS)]

    def test_decodes_count_toward_token_budget(self) -> None:
        scheduler = scheduler_of(max_num_batched_tokens=12, max_sequences=6)
        for i in range(5):
            add(scheduler, i, 2)
        step(scheduler)
        add(scheduler, 5, 30, arrived_s=1.0)
        assert parts(step(scheduler))[-1] == (5, 0, 7)

    def test_several_prompts_share_one_step(self) -> None:
        scheduler = scheduler_of(max_num_batched_tokens=10)
        add(scheduler, 0, 7)
        add(scheduler, 1, 7)
        assert parts(step(scheduler)) == [(0, 0, 7), (1, 0, 3)]
        assert parts(step(scheduler)) == [(0, 7, 1), (1, 3, 4)]

    def test_older_running_prompt_computed_first(self) -> None:
        scheduler = scheduler_of(max_num_batched_tokens=10)
        add(scheduler, 1, 25, arrived_s=1.0)
        step(scheduler)
        add(scheduler, 0, 12, arrived_s=0.0)
        assert parts(step(scheduler)) == [(1, 10, 10)], "it had no room to join"
        assert parts(step(scheduler)) == [(1, 20, 5), (0, 0, 5)]
        assert parts(step(scheduler))[-1] == (0, 5, 7)

    def test_small_budget_still_covers_all_decodes(self) -> None:
        scheduler = scheduler_of(max_num_batched_tokens=2, max_sequences=4)
        for i in range(4):
            add(scheduler, i, 1)
        while scheduler.stats(0).waiting:
            step(scheduler)
        assert len(step(scheduler).parts) == 4


class TestIntegrity:
    def test_integrity_check_detects_lost_block(self) -> None:
        scheduler = scheduler_of()
        sequence = add(scheduler, 0, 9)
        step(scheduler)
        sequence.blocks.pop()
        with pytest.raises(AssertionError, match="blocks were lost"):
            scheduler.check_integrity()

    def test_integrity_check_rejects_blocks_of_waiting_sequence(self) -> None:
        scheduler = scheduler_of(max_sequences=1)
        add(scheduler, 0, 5)
        step(scheduler)
        waiting = add(scheduler, 1, 5)
        waiting.blocks = [0]
        with pytest.raises(AssertionError, match="a waiting sequence holds blocks"):
            scheduler.check_integrity()


class TestUnreadTokens:
    """Sequences that continue with tokens which the host has not read."""

    def test_token_is_computed_before_it_is_read(self) -> None:
        scheduler = scheduler_of()
        sequence = add(scheduler, 0, 6)
        scheduler.advance(scheduler.plan())
        assert sequence.expect(0)
        plan = scheduler.plan()
        assert parts(plan) == [(0, 6, 1)]
        sequence.receive(77)
        assert plan.parts[0].token_ids == [77]
        assert not sequence.is_unread

    def test_last_token_by_length_is_not_computed(self) -> None:
        scheduler = scheduler_of()
        sequence = add(scheduler, 0, 6, max_tokens=1)
        scheduler.advance(scheduler.plan())
        assert not sequence.expect(0)
        assert parts(scheduler.plan()) == []
        sequence.receive(77)
        assert sequence.token_ids[-1] == 77
        assert sequence.num_generated_tokens == 1

    @pytest.mark.parametrize("tenants", [1, 2])
    def test_preempted_sequence_starts_after_its_token_is_read(self, tenants: int) -> None:
        """Its prefix would be searched for with a token that is none."""
        scheduler = scheduler_of()
        names = [Tenant("red"), Tenant("blue")][:tenants]
        first, *_ = [add(scheduler, number, 6, tenant=tenant) for number, tenant in enumerate(names)]
        first.expect(0)
        assert 0 not in [number for number, _, _ in parts(scheduler.plan())]
        first.receive(77)
        assert 0 in [number for number, _, _ in parts(scheduler.plan())]

    @pytest.mark.parametrize("tenants", [1, 2])
    def test_sequence_at_its_end_has_no_part(self, tenants: int) -> None:
        scheduler = scheduler_of()
        names = [Tenant("red"), Tenant("blue")][:tenants]
        first, *others = [
            add(scheduler, number, 6, max_tokens=1 + number, tenant=tenant) for number, tenant in enumerate(names)
        ]
        scheduler.advance(scheduler.plan())
        for row, sequence in enumerate((first, *others)):
            sequence.expect(row)
        assert parts(scheduler.plan()) == [(other.sequence_id, 6, 1) for other in others]

    def test_prompt_that_leaves_before_its_step_ends(self) -> None:
        scheduler = scheduler_of()
        sequence = add(scheduler, 0, 3 * BLOCK + 1)
        plan = scheduler.plan()
        scheduler.remove(sequence)
        scheduler.advance(plan)
        assert not scheduler.pool._pending
        assert sequence.num_computed_tokens == 0
        scheduler.check_integrity()
