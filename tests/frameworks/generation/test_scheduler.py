"""Who computes what in the next step: who joins, who goes on, who has to wait."""

import pytest

from frameworks.generation.step_cost import FEWEST_PROMPT_TOKENS
from tests.frameworks.generation.block_memory import BlockMemory
from tests.frameworks.generation.stepping import BLOCK, add, parts, running, scheduler_of, step


class TestJoining:
    def test_a_whole_prompt_then_a_token_a_step(self) -> None:
        scheduler = scheduler_of()
        add(scheduler, 0, 6, max_tokens=3)
        assert [parts(step(scheduler)) for _ in range(3)] == [[(0, 0, 6)], [(0, 6, 1)], [(0, 7, 1)]]
        assert not scheduler.running
        assert not scheduler.waiting
        assert parts(scheduler.plan()) == []

    def test_a_sequence_joins_those_that_run_and_tokens_of_texts_come_first(self) -> None:
        scheduler = scheduler_of()
        add(scheduler, 1, 6)
        step(scheduler)
        add(scheduler, 0, 5)
        assert parts(step(scheduler)) == [(1, 6, 1), (0, 0, 5)]
        assert sorted(parts(step(scheduler))) == [(0, 5, 1), (1, 7, 1)]

    def test_who_leaves_makes_room_at_once(self) -> None:
        scheduler = scheduler_of(max_sequences=1)
        first = add(scheduler, 0, 5)
        add(scheduler, 1, 5)
        step(scheduler)
        assert (running(scheduler), scheduler.waiting) == ([0], 1)
        scheduler.remove(first)
        assert parts(step(scheduler)) == [(1, 0, 5)]

    def test_who_waits_can_leave(self) -> None:
        scheduler = scheduler_of(max_sequences=1)
        add(scheduler, 0, 5)
        step(scheduler)
        waiting = [add(scheduler, i, 5) for i in range(1, 6)]
        for sequence in (waiting[0], waiting[3]):
            scheduler.remove(sequence)
        order = []
        while scheduler.running:
            scheduler.remove(scheduler.running[0])
            if scheduler.waiting:
                step(scheduler)
                order += running(scheduler)
        assert order == [2, 3, 5]

    def test_begun_is_told_once_with_what_was_known(self) -> None:
        scheduler = scheduler_of()
        add(scheduler, 0, tuple(range(10)), max_tokens=1)
        assert step(scheduler).begun == [(0, 0)]
        add(scheduler, 1, (*range(9), 77), max_tokens=2)
        assert step(scheduler).begun == [(1, 8)]
        assert step(scheduler).begun == []
        assert (scheduler.prompt_tokens, scheduler.prefix_hit_tokens) == (20, 8)

    def test_in_the_order_of_arrival(self) -> None:
        scheduler = scheduler_of(max_sequences=1)
        for i, arrived_s in enumerate((3.0, 1.0, 2.0)):
            add(scheduler, i, 3, max_tokens=1, arrived_s=arrived_s)
        assert [parts(step(scheduler))[0][0] for _ in range(3)] == [1, 2, 0]

    @pytest.mark.parametrize(("late_s", "first"), [(1.9, "urgent"), (2.1, "patient")])
    def test_a_level_of_priority_is_worth_the_ageing(self, late_s: float, first: str) -> None:
        scheduler = scheduler_of(max_sequences=1, ageing_s=0.5)
        add(scheduler, 0, 3, priority=5, arrived_s=10.0)
        add(scheduler, 1, 3, priority=1, arrived_s=10.0 + late_s)
        step(scheduler)
        assert running(scheduler) == [1 if first == "urgent" else 0]

    def test_nobody_overtakes_the_one_who_finds_no_room(self) -> None:
        """Else a long prompt would wait for ever behind short ones."""
        scheduler = scheduler_of(blocks=8)
        first = add(scheduler, 0, 16)
        step(scheduler)
        add(scheduler, 1, 24, max_tokens=1)
        add(scheduler, 2, 2, max_tokens=1)
        assert parts(step(scheduler)) == [(0, 16, 1)]
        scheduler.remove(first)
        assert parts(step(scheduler))[0] == (1, 0, 24)

    def test_those_that_run_keep_a_block_each_in_reserve(self) -> None:
        scheduler = scheduler_of(blocks=6)
        add(scheduler, 0, 9)
        step(scheduler)
        add(scheduler, 1, 9)
        step(scheduler)
        assert running(scheduler) == [0], "three free blocks would be taken, and the next token would find none"
        add(scheduler, 2, 8, arrived_s=-1.0)
        step(scheduler)
        assert running(scheduler) == [2, 0]

    def test_what_is_kept_gives_way_to_the_one_that_it_is_kept_for(self) -> None:
        """All of the memory is one long prompt's beginning, and another wants all of it."""
        scheduler, memory = scheduler_of(blocks=4), BlockMemory(4, BLOCK)
        prompt = tuple(range(15))
        for i in range(2):
            add(scheduler, i, (*prompt[:12], 90 + i, 91, 92), max_tokens=1)
            step(scheduler, memory)
        assert not scheduler.running
        assert scheduler.pool.used == 0


class TestParts:
    def test_a_prompt_is_computed_in_parts_of_what_a_step_may_take(self) -> None:
        scheduler = scheduler_of(max_step_tokens=10, max_sequences=2)
        add(scheduler, 0, 23, max_tokens=1)
        assert [parts(step(scheduler)) for _ in range(3)] == [[(0, 0, 10)], [(0, 10, 10)], [(0, 20, 3)]]

    def test_beside_running_texts_in_smaller_ones(self) -> None:
        scheduler = scheduler_of(max_step_tokens=200)
        add(scheduler, 0, 5)
        step(scheduler)
        add(scheduler, 1, 100)
        assert parts(step(scheduler)) == [(0, 5, 1), (1, 0, FEWEST_PROMPT_TOKENS)]
        assert parts(step(scheduler)) == [(0, 6, 1), (1, FEWEST_PROMPT_TOKENS, FEWEST_PROMPT_TOKENS)]

    def test_texts_count_among_a_step_s_tokens(self) -> None:
        scheduler = scheduler_of(max_step_tokens=12, max_sequences=6)
        for i in range(5):
            add(scheduler, i, 2)
        step(scheduler)
        add(scheduler, 5, 30, arrived_s=1.0)
        assert parts(step(scheduler))[-1] == (5, 0, 7)

    def test_several_prompts_share_a_step(self) -> None:
        scheduler = scheduler_of(max_step_tokens=10)
        add(scheduler, 0, 7)
        add(scheduler, 1, 7)
        assert parts(step(scheduler)) == [(0, 0, 7), (1, 0, 3)]
        assert parts(step(scheduler)) == [(0, 7, 1), (1, 3, 4)]

    def test_the_older_prompt_is_computed_first(self) -> None:
        scheduler = scheduler_of(max_step_tokens=10)
        add(scheduler, 1, 25, arrived_s=1.0)
        step(scheduler)
        add(scheduler, 0, 12, arrived_s=0.0)
        assert parts(step(scheduler)) == [(1, 10, 10)], "it had no room to join"
        assert parts(step(scheduler)) == [(1, 20, 5), (0, 0, 5)]
        assert parts(step(scheduler))[-1] == (0, 5, 7)

    def test_a_step_is_never_too_small_for_those_that_run(self) -> None:
        scheduler = scheduler_of(max_step_tokens=2, max_sequences=4)
        for i in range(4):
            add(scheduler, i, 1)
        while scheduler.waiting:
            step(scheduler)
        assert len(step(scheduler).parts) == 4


class TestIntegrity:
    def test_a_block_that_nobody_holds_is_told(self) -> None:
        scheduler = scheduler_of()
        sequence = add(scheduler, 0, 9)
        step(scheduler)
        sequence.blocks.pop()
        with pytest.raises(AssertionError, match="blocks were lost"):
            scheduler.check_integrity()

    def test_a_sequence_that_waits_has_no_blocks(self) -> None:
        scheduler = scheduler_of(max_sequences=1)
        add(scheduler, 0, 5)
        step(scheduler)
        waiting = add(scheduler, 1, 5)
        waiting.blocks = [0]
        with pytest.raises(AssertionError, match="a sequence that waits holds blocks"):
            scheduler.check_integrity()
