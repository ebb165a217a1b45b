"""How prompts whose log probabilities are requested share steps with others."""

import pytest

from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.scheduling.steps.sequence import StepPlan
from tests.frameworks.scheduling.steps.block_memory import BlockMemory
from tests.frameworks.scheduling.steps.stepping import BLOCK, add, parts, running, scheduler_of, step


def num_scored(plan: StepPlan) -> int:
    return sum(part.num_tokens for part in plan.parts if part.is_scored)


@pytest.mark.parametrize("others", [DEFAULT_TENANT, Tenant("other")])
def test_scored_tokens_of_step_are_bounded(others: Tenant) -> None:
    scheduler = scheduler_of(max_scored_tokens=10)
    for number in range(6):
        add(scheduler, number, 17, 2, prompt_logprobs=1, tenant=DEFAULT_TENANT if number % 2 else others)
    memory = BlockMemory(64, BLOCK)
    scored = []
    while scheduler.running or scheduler.stats(0).waiting:
        plan = step(scheduler, memory)
        assert num_scored(plan) <= 10
        assert all(part.num_tokens for part in plan.parts)
        scored.append(num_scored(plan))
        scheduler.check_integrity()
    # The last token of a prompt is scored only as part of a longer part.
    assert 6 * 16 <= sum(scored) <= 6 * 17


def test_sequence_without_scorable_tokens_does_not_start() -> None:
    scheduler = scheduler_of(max_scored_tokens=4)
    add(scheduler, 1, 9, prompt_logprobs=0)
    add(scheduler, 2, 9, prompt_logprobs=0)
    add(scheduler, 3, 9)
    assert parts(step(scheduler)) == [(1, 0, 4), (3, 0, 9)]
    assert running(scheduler) == [1, 3]


def test_plain_plan_is_not_scored() -> None:
    scheduler = scheduler_of(max_scored_tokens=4)
    add(scheduler, 1, 9)
    plan = scheduler.plan()
    assert not plan.is_scored
    assert [part.num_logits for part in plan.parts] == [1]


def test_cached_prefix_is_scored_again() -> None:
    scheduler = scheduler_of(max_scored_tokens=64)
    prompt = tuple(range(3 * BLOCK))
    add(scheduler, 1, prompt, 1)
    step(scheduler)
    scored = add(scheduler, 2, prompt, 4, prompt_logprobs=0)
    plain = add(scheduler, 3, prompt, 4)
    plan = scheduler.plan()
    assert plan.begun == [(2, 0), (3, 2 * BLOCK)]
    assert [part.num_logits for part in plan.parts] == [3 * BLOCK, 1]
    scheduler.advance(plan)
    assert (scored.num_scored, scored.num_to_score) == (3 * BLOCK - 1, 3 * BLOCK - 1)
    assert plain.num_to_score == 0


def test_preempted_prompt_takes_scored_prefix_from_cache() -> None:
    scheduler = scheduler_of(max_scored_tokens=2 * BLOCK + 1)
    sequence = add(scheduler, 1, 4 * BLOCK, prompt_logprobs=0)
    step(scheduler)
    assert sequence.num_scored == 2 * BLOCK + 1
    scheduler._running.preempt(sequence, scheduler._queues.of(sequence).waiting)
    assert parts(step(scheduler)) == [(1, 2 * BLOCK, 2 * BLOCK)]
    assert sequence.num_scored == sequence.num_to_score
