"""How much of a prompt goes beside running texts: what the steps before have taught."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.generation.step_cost import FEWEST_PROMPT_TOKENS, StepCost


def learnt(*steps: tuple[int, int, float], most: int = 512) -> StepCost:
    """From (texts, prompt tokens, seconds)."""
    cost = StepCost(most)
    for step in steps:
        cost.learn(*step)
    return cost


def test_with_no_text_running_all_there_may_be() -> None:
    assert StepCost(512).most_prompt_tokens(0) == 512
    assert learnt((4, 0, 0.01), (4, 100, 9.0)).most_prompt_tokens(0) == 512


def test_before_anything_is_known_the_fewest() -> None:
    assert StepCost(512).most_prompt_tokens(3) == FEWEST_PROMPT_TOKENS
    assert learnt((0, 100, 0.1)).most_prompt_tokens(3) == FEWEST_PROMPT_TOKENS
    assert learnt((3, 0, 0.1)).most_prompt_tokens(3) == FEWEST_PROMPT_TOKENS


def test_a_step_with_a_part_of_a_prompt_takes_at_most_so_much_longer() -> None:
    # 20 ms without, and 0.1 ms for each token of a prompt: 32 ms, 1.6 times as long, are 320 of them.
    cost = learnt((4, 0, 0.020), (4, 100, 0.030))
    assert cost.most_prompt_tokens(4) == pytest.approx(320, abs=1)


def test_prompts_alone_teach_too() -> None:
    cost = learnt((4, 0, 0.020), (0, 100, 0.010))
    assert cost.most_prompt_tokens(4) == pytest.approx(320, abs=1)


def test_a_few_tokens_alone_teach_nothing() -> None:
    """They are mostly what any step costs."""
    cost = learnt((4, 0, 0.020), (0, FEWEST_PROMPT_TOKENS - 1, 0.020))
    assert cost.most_prompt_tokens(4) == FEWEST_PROMPT_TOKENS


def test_never_fewer_than_the_fewest_nor_more_than_the_most() -> None:
    assert learnt((4, 0, 0.001), (4, 100, 1.0)).most_prompt_tokens(4) == FEWEST_PROMPT_TOKENS
    assert learnt((4, 0, 1.0), (4, 100, 1.001), most=300).most_prompt_tokens(4) == 300


def test_numbers_of_texts_are_told_apart_by_powers_of_two() -> None:
    cost = learnt((2, 0, 0.010), (16, 0, 0.040), (0, 100, 0.010), most=1000)
    few, many = cost.most_prompt_tokens(3), cost.most_prompt_tokens(31)
    assert few == pytest.approx(160, abs=1)
    assert many == pytest.approx(640, abs=1)


def test_a_number_that_was_not_seen_is_taken_for_the_nearest() -> None:
    cost = learnt((2, 0, 0.010), (64, 0, 0.040), (0, 100, 0.010))
    assert cost.most_prompt_tokens(4) == cost.most_prompt_tokens(2)
    assert cost.most_prompt_tokens(32) == cost.most_prompt_tokens(64)


def test_one_step_that_the_machine_held_up_says_little() -> None:
    steady = [(4, 0, 0.020), (4, 100, 0.030)]
    cost = learnt(*steady, (4, 0, 10.0))
    assert cost.most_prompt_tokens(4) <= 1.7 * learnt(*steady).most_prompt_tokens(4)


def test_what_changes_is_followed() -> None:
    cost = learnt((4, 0, 0.020), (4, 100, 0.030), *[(4, 0, 0.040)] * 30, most=1000)
    assert cost.most_prompt_tokens(4) == pytest.approx(640, abs=6)


def test_a_part_that_seemed_to_cost_nothing_does_not_open_the_gate_for_ever() -> None:
    cost = learnt((4, 0, 0.020), (4, 20, 0.019), most=10**6)
    assert cost.most_prompt_tokens(4) < 10**4


def test_a_step_in_which_the_clock_did_not_move_teaches_nothing() -> None:
    steady = [(4, 0, 0.020), (4, 100, 0.030)]
    assert learnt((4, 0, 0.0), (4, 100, 0.0)).most_prompt_tokens(4) == FEWEST_PROMPT_TOKENS
    taught = learnt((4, 0, 0.0), (4, 100, 0.0), *steady, (4, 0, 0.0), (4, 100, 0.0))
    assert taught.most_prompt_tokens(4) == learnt(*steady).most_prompt_tokens(4)


seconds = st.just(0.0) | st.floats(1e-6, 100)
steps = st.tuples(st.integers(0, 64), st.integers(0, 2048), seconds).filter(lambda step: step[0] + step[1])


@given(st.lists(steps, max_size=20), st.integers(FEWEST_PROMPT_TOKENS, 4096), st.integers(0, 64))
def test_whatever_was_seen_prompts_go_on_and_the_bound_holds(
    seen: list[tuple[int, int, float]], most: int, texts: int
) -> None:
    assert FEWEST_PROMPT_TOKENS <= learnt(*seen, most=most).most_prompt_tokens(texts) <= most
