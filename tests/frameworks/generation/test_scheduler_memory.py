"""Who gives up blocks when there are none left, and who begins with what is known."""

from frameworks.generation.scheduler import Sequence, StepScheduler
from tests.frameworks.generation.block_memory import BlockMemory
from tests.frameworks.generation.stepping import BLOCK, add, parts, run_out, running, scheduler_of, step


class TestPreemption:
    def test_the_youngest_gives_up_its_blocks_and_later_goes_on(self) -> None:
        scheduler, memory = scheduler_of(blocks=6), BlockMemory(6, BLOCK)
        old = add(scheduler, 0, 8, max_tokens=16)
        young = add(scheduler, 1, 6, max_tokens=10, arrived_s=1.0)
        while scheduler.preemptions == 0:
            step(scheduler, memory)
        assert running(scheduler) == [0]
        assert young.blocks == []
        assert young.computed == 0
        assert young.generated > 0, "what was generated stays"
        while old in scheduler.running:
            step(scheduler, memory)
        generated = young.generated
        plan = step(scheduler, memory)
        assert plan.begun == []
        assert young.generated == generated + 1
        while scheduler.running:
            step(scheduler, memory)
        assert (old.generated, young.generated) == (16, 10)

    def test_it_keeps_its_place_before_those_who_came_later(self) -> None:
        scheduler = scheduler_of(blocks=6)
        add(scheduler, 0, 8, max_tokens=16)
        young = add(scheduler, 1, 8, max_tokens=16, arrived_s=1.0)
        while scheduler.preemptions == 0:
            step(scheduler)
        late = add(scheduler, 2, 2, max_tokens=1, arrived_s=2.0)
        while young not in scheduler.running:
            assert not late.has_begun
            step(scheduler)
        run_out(scheduler)
        assert late.generated == 1

    def test_what_it_gives_up_is_kept_for_it_where_there_is_room(self) -> None:
        scheduler, memory = scheduler_of(blocks=12), BlockMemory(12, BLOCK)
        add(scheduler, 0, 24, max_tokens=24)
        young = add(scheduler, 1, 16, max_tokens=8, arrived_s=1.0)
        while scheduler.preemptions == 0:
            step(scheduler, memory)
        assert scheduler.pool.kept
        while young.generated < 8:
            step(scheduler, memory)

    def test_a_text_is_counted_once_however_often_it_comes_back(self) -> None:
        scheduler = scheduler_of(blocks=6)
        add(scheduler, 0, 8, max_tokens=16)
        add(scheduler, 1, 6, max_tokens=10, arrived_s=1.0)
        run_out(scheduler)
        assert scheduler.preemptions > 0
        assert scheduler.prompt_tokens == 14

    def test_the_one_who_needs_the_block_may_be_the_youngest_itself(self) -> None:
        scheduler = scheduler_of(blocks=5)
        add(scheduler, 0, 8, max_tokens=12)
        add(scheduler, 1, 7, max_tokens=6, arrived_s=1.0)
        while scheduler.preemptions == 0:
            plan = step(scheduler)
        assert parts(plan) == [(0, 9, 1)]
        assert running(scheduler) == [0]
        run_out(scheduler)
        assert scheduler.pool.used == 0

    def test_priorities_say_who_is_young(self) -> None:
        scheduler = scheduler_of(blocks=6)
        add(scheduler, 0, 8, max_tokens=16, priority=9)
        step(scheduler)
        add(scheduler, 1, 8, max_tokens=16, priority=1, arrived_s=1.0)
        while scheduler.preemptions == 0:
            step(scheduler)
        assert running(scheduler) == [1]


class TestPrefixes:
    def test_the_same_beginning_is_waited_for_rather_than_computed_again(self) -> None:
        scheduler, memory = scheduler_of(), BlockMemory(64, BLOCK)
        prompt = tuple(range(11))
        for i in range(4):
            add(scheduler, i, prompt, max_tokens=3)
        assert parts(step(scheduler, memory)) == [(0, 0, 11)]
        plan = step(scheduler, memory)
        assert sorted(parts(plan)) == [(0, 11, 1), (1, 8, 3), (2, 8, 3), (3, 8, 3)]
        assert scheduler.prefix_hit_tokens == 24

    def test_a_stranger_overtakes_those_who_wait_for_a_beginning(self) -> None:
        scheduler = scheduler_of()
        add(scheduler, 0, tuple(range(11)))
        add(scheduler, 1, tuple(range(11)), arrived_s=1.0)
        add(scheduler, 2, 5, arrived_s=2.0)
        assert parts(step(scheduler)) == [(0, 0, 11), (2, 0, 5)]

    def test_who_waits_for_a_beginning_goes_on_when_its_owner_is_gone(self) -> None:
        scheduler = scheduler_of(max_step_tokens=8)
        first = add(scheduler, 0, tuple(range(30)))
        add(scheduler, 1, tuple(range(30)), arrived_s=1.0)
        step(scheduler)
        assert running(scheduler) == [0]
        scheduler.remove(first)
        plan = step(scheduler)
        assert parts(plan) == [(1, 8, 8)]
        assert plan.begun == [(1, 8)]

    def test_what_was_generated_is_known_too(self) -> None:
        """The next turn of a conversation begins with the answer to the last."""
        scheduler, memory = scheduler_of(), BlockMemory(64, BLOCK)
        add(scheduler, 0, (1, 2, 3, 4, 5), max_tokens=5)
        for _ in range(5):
            step(scheduler, memory, token_id=7)
        add(scheduler, 1, (1, 2, 3, 4, 5, 7, 7, 7, 7, 7, 9))
        assert step(scheduler, memory).begun == [(1, 8)]

    def test_the_last_token_is_never_known(self) -> None:
        """It is chosen, and its keys and values are not computed."""
        scheduler, memory = scheduler_of(), BlockMemory(64, BLOCK)
        add(scheduler, 0, (1, 2, 3, 4, 5), max_tokens=3)
        for _ in range(3):
            step(scheduler, memory, token_id=7)
        add(scheduler, 1, (1, 2, 3, 4, 5, 7, 7, 7, 9))
        assert step(scheduler, memory).begun == [(1, 4)]

    def test_nothing_is_known_after_a_step_that_failed(self) -> None:
        scheduler, memory = scheduler_of(), BlockMemory(64, BLOCK)
        prompt = tuple(range(20))
        add(scheduler, 0, prompt, max_tokens=1)
        step(scheduler, memory)
        failing = add(scheduler, 1, (*prompt, 5))
        scheduler.plan()
        scheduler.forget()
        scheduler.remove(failing)
        scheduler.check_integrity()
        add(scheduler, 2, prompt, max_tokens=1)
        assert step(scheduler, memory).begun == [(2, 0)]

    def test_what_is_forgotten_is_not_copied_either(self) -> None:
        scheduler = scheduler_of()
        scheduler.remove(_ran(scheduler, 0))
        assert scheduler.plan().copies
        scheduler.remove(_ran(scheduler, 1))
        scheduler.forget()
        add(scheduler, 2, 5)
        assert scheduler.plan().copies == []

    def test_a_step_that_failed_in_the_middle_is_taken_up_by_nobody(self) -> None:
        scheduler = scheduler_of(max_step_tokens=8)
        failing = add(scheduler, 0, tuple(range(30)))
        step(scheduler)
        scheduler.plan()
        scheduler.forget()
        scheduler.remove(failing)
        add(scheduler, 1, tuple(range(30)))
        assert step(scheduler, BlockMemory(64, BLOCK)).begun == [(1, 0)]


def _ran(scheduler: StepScheduler, sequence_id: int) -> Sequence:
    """A sequence of which some blocks are known."""
    sequence = add(scheduler, sequence_id, 20)
    step(scheduler)
    return sequence
