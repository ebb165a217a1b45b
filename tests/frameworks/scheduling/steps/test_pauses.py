"""Decodes pause for a prompt that is complete after one step."""

from frameworks.scheduling.steps.scheduler import StepScheduler
from tests.frameworks.scheduling.steps.stepping import add, parts, run_out, scheduler_of, step

# A decode step takes 20 ms and a prompt token 0.5 ms: 64 tokens fit beside decodes, 120 into a pause.
_STEP_S, _TOKEN_S = 0.020, 0.0005


def scheduler_with_prices(*, blocks: int = 200, max_sequences: int = 8, texts: int = 1) -> StepScheduler:
    """Return a scheduler with known prices and running texts."""
    scheduler = scheduler_of(blocks=blocks, max_sequences=max_sequences, max_num_batched_tokens=512)
    for number in range(texts):
        add(scheduler, number, 3, max_tokens=40)
    step(scheduler)
    for _ in range(30):
        scheduler.cost.learn(texts, 0, _STEP_S)
        scheduler.cost.learn(texts, 100, _STEP_S + 100 * _TOKEN_S)
    return scheduler


def test_prompt_for_one_step_pauses_decodes() -> None:
    scheduler = scheduler_with_prices()
    add(scheduler, 9, 80)
    assert parts(step(scheduler)) == [(9, 0, 80)]
    assert sorted(parts(step(scheduler))) == [(0, 3, 1), (9, 80, 1)]


def test_prompt_that_fits_beside_decodes_pauses_nothing() -> None:
    scheduler = scheduler_with_prices()
    add(scheduler, 9, 60)
    assert sorted(parts(step(scheduler))) == [(0, 3, 1), (9, 0, 60)]


def test_long_prompt_computed_in_parts_beside_decodes() -> None:
    scheduler = scheduler_with_prices()
    add(scheduler, 9, 140)
    assert sorted(parts(step(scheduler))) == [(0, 3, 1), (9, 0, 64)]


def test_decodes_never_pause_twice_in_row() -> None:
    scheduler = scheduler_with_prices()
    add(scheduler, 8, 80)
    add(scheduler, 9, 81)
    assert parts(step(scheduler)) == [(8, 0, 80), (9, 0, 40)]
    assert {number for number, _, _ in parts(step(scheduler))} == {0, 8, 9}


def test_cached_prefix_counts_as_computed() -> None:
    scheduler = scheduler_with_prices()
    prompt = tuple(range(5000, 5120))
    add(scheduler, 8, prompt, max_tokens=1)
    while len(scheduler.running) > 1 or scheduler.stats(0).waiting:
        step(scheduler)
    add(scheduler, 9, (*prompt, 1, 2, 3))
    assert len(parts(step(scheduler))) == 2, "three tokens fit beside the decode"


def test_decodes_continue_without_blocks_for_prompt() -> None:
    scheduler = scheduler_with_prices(blocks=20)
    add(scheduler, 9, 73, max_tokens=5)
    assert parts(step(scheduler)) == [(0, 3, 1)]
    run_out(scheduler)


def test_no_pause_for_prompt_without_blocks() -> None:
    scheduler = scheduler_with_prices(max_sequences=1)
    add(scheduler, 9, 80)
    assert parts(step(scheduler)) == [(0, 3, 1)]
    run_out(scheduler)


def test_scored_prompt_pauses_nothing() -> None:
    scheduler = scheduler_with_prices()
    add(scheduler, 9, 80, prompt_logprobs=0)
    assert (0, 3, 1) in parts(step(scheduler))
