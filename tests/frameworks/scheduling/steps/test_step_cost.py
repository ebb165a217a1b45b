"""The bound of prompt tokens beside decodes, learned from past steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.scheduling.steps.step_cost import MIN_PROMPT_TOKENS, PromptPrices, StepCost


def learned(*steps: tuple[int, int, float], most: int = 512) -> StepCost:
    """Return the cost after steps of (decodes, prompt tokens, seconds)."""
    cost = StepCost(most)
    for step in steps:
        cost.learn(*step)
    return cost


def test_bound_without_decodes_is_maximum() -> None:
    assert StepCost(512).max_prompt_tokens(0) == 512
    assert learned((4, 0, 0.01), (4, 100, 9.0)).max_prompt_tokens(0) == 512


def test_bound_before_measurements_is_minimum() -> None:
    assert StepCost(512).max_prompt_tokens(3) == MIN_PROMPT_TOKENS
    assert learned((0, 100, 0.1)).max_prompt_tokens(3) == MIN_PROMPT_TOKENS
    assert learned((3, 0, 0.1)).max_prompt_tokens(3) == MIN_PROMPT_TOKENS


def test_bound_limits_slowdown_of_decodes() -> None:
    # 20 ms for the decodes and 0.1 ms for each prompt token: 32 ms more, 1.6 times as long again, are 320 tokens.
    cost = learned((4, 0, 0.020), (4, 100, 0.030))
    assert cost.max_prompt_tokens(4) == pytest.approx(320, abs=1)


def test_steps_without_decodes_are_learned() -> None:
    cost = learned((4, 0, 0.020), (0, 100, 0.010))
    assert cost.max_prompt_tokens(4) == pytest.approx(320, abs=1)


def test_short_prompt_alone_not_learned() -> None:
    """Such a step is mostly fixed cost."""
    cost = learned((4, 0, 0.020), (0, MIN_PROMPT_TOKENS - 1, 0.020))
    assert cost.max_prompt_tokens(4) == MIN_PROMPT_TOKENS


def test_bound_between_minimum_and_maximum() -> None:
    assert learned((4, 0, 0.001), (4, 100, 1.0)).max_prompt_tokens(4) == MIN_PROMPT_TOKENS
    assert learned((4, 0, 1.0), (4, 100, 1.001), most=300).max_prompt_tokens(4) == 300


def test_decodes_grouped_by_powers_of_two() -> None:
    cost = learned((2, 0, 0.010), (16, 0, 0.040), (0, 100, 0.010), most=1000)
    few, many = cost.max_prompt_tokens(3), cost.max_prompt_tokens(31)
    assert few == pytest.approx(160, abs=1)
    assert many == pytest.approx(640, abs=1)


def test_unmeasured_batch_size_uses_nearest() -> None:
    cost = learned((2, 0, 0.010), (64, 0, 0.040), (0, 100, 0.010))
    assert cost.max_prompt_tokens(4) == cost.max_prompt_tokens(2)
    assert cost.max_prompt_tokens(32) == cost.max_prompt_tokens(64)


def test_delayed_step_changes_little() -> None:
    steady = [(4, 0, 0.020), (4, 100, 0.030)]
    cost = learned(*steady, (4, 0, 10.0))
    assert cost.max_prompt_tokens(4) <= 1.7 * learned(*steady).max_prompt_tokens(4)


def test_lasting_change_is_followed() -> None:
    cost = learned((4, 0, 0.020), (4, 100, 0.030), *[(4, 0, 0.040)] * 30, most=1000)
    assert cost.max_prompt_tokens(4) == pytest.approx(640, abs=6)


def test_free_prompt_tokens_keep_bound_finite() -> None:
    cost = learned((4, 0, 0.020), (4, 20, 0.019), most=10**6)
    assert cost.max_prompt_tokens(4) < 10**4


def test_step_of_zero_seconds_not_learned() -> None:
    steady = [(4, 0, 0.020), (4, 100, 0.030)]
    assert learned((4, 0, 0.0), (4, 100, 0.0)).max_prompt_tokens(4) == MIN_PROMPT_TOKENS
    taught = learned((4, 0, 0.0), (4, 100, 0.0), *steady, (4, 0, 0.0), (4, 100, 0.0))
    assert taught.max_prompt_tokens(4) == learned(*steady).max_prompt_tokens(4)


def test_pause_bounded_by_steps_of_decodes() -> None:
    # 20 ms for the decodes and 0.1 ms for each prompt token: 60 ms are 600 tokens.
    cost = learned((4, 0, 0.020), (4, 100, 0.030), most=1000)
    assert cost.max_tokens_in_pause(4) == pytest.approx(600, abs=1)
    assert learned((4, 0, 0.020), (4, 100, 0.030), most=300).max_tokens_in_pause(4) == 300


def test_no_pause_before_measurements() -> None:
    assert StepCost(512).max_tokens_in_pause(4) == 0
    assert learned((4, 0, 0.020)).max_tokens_in_pause(4) == 0
    assert learned((0, 100, 0.1)).max_tokens_in_pause(4) == 0


def test_price_of_part_learned_beside_tokens() -> None:
    """10 ms for a part and 0.1 ms for each token: 32 ms are 220 tokens."""
    lengths = [16, 200, 40, 120, 20, 300] * 10
    cost = learned((4, 0, 0.020), *[(4, tokens, 0.030 + 1e-4 * tokens) for tokens in lengths])
    assert cost.max_prompt_tokens(4) == pytest.approx(220, rel=0.1)


seconds = st.just(0.0) | st.floats(1e-6, 100)
steps = st.tuples(st.integers(0, 64), st.integers(0, 2048), seconds).filter(lambda step: step[0] + step[1])


@given(st.lists(steps, max_size=20), st.integers(MIN_PROMPT_TOKENS, 4096), st.integers(0, 64))
def test_bound_holds_for_any_measurements(seen: list[tuple[int, int, float]], most: int, texts: int) -> None:
    cost = learned(*seen, most=most)
    assert MIN_PROMPT_TOKENS <= cost.max_prompt_tokens(texts) <= most
    assert 0 <= cost.max_tokens_in_pause(texts) <= most


def prices_of(*steps: tuple[int, int, float]) -> PromptPrices:
    """Return the prices after steps of (parts, tokens, seconds)."""
    prices = PromptPrices()
    for step in steps:
        prices.learn(*step)
    return prices


def test_equal_lengths_price_tokens_only() -> None:
    prices = prices_of(*[(1, 100, 0.5)] * 20)
    assert prices.part_s == pytest.approx(0, abs=1e-3)
    assert prices.token_s == pytest.approx(0.005, rel=1e-2)


def test_different_lengths_tell_prices_apart() -> None:
    steps = [(1, 20), (2, 400), (1, 64), (3, 48), (1, 256)] * 12
    prices = prices_of(*[(parts, tokens, 0.02 * parts + 0.001 * tokens) for parts, tokens in steps])
    assert prices.part_s == pytest.approx(0.02, rel=0.1)
    assert prices.token_s == pytest.approx(0.001, rel=0.1)


def test_fitting_tokens_pay_part_first() -> None:
    prices = prices_of(*[(1, tokens, 0.02 + 0.001 * tokens) for tokens in [20, 400, 64, 300] * 20])
    assert prices.fitting_tokens(0.12) == pytest.approx(100, rel=0.05)
    assert prices.fitting_tokens(0.001) == 0
    assert PromptPrices().fitting_tokens(1.0) == 0


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4096), st.floats(1e-6, 100)), min_size=1, max_size=20))
def test_prices_positive_for_any_measurements(steps: list[tuple[int, int, float]]) -> None:
    prices = prices_of(*steps)
    assert prices.part_s >= 0
    assert prices.token_s is not None
    assert prices.token_s > 0
