"""The price of a part of a prompt and that of its tokens, learned from steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.scheduling.steps.prompt_prices import PromptPrices


def prices_of(*steps: tuple[int, int, float]) -> PromptPrices:
    """Return the prices after steps of (parts, tokens, seconds)."""
    prices = PromptPrices(0.2, 4.0)
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
    assert PromptPrices(0.2, 4.0).fitting_tokens(1.0) == 0


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4096), st.floats(1e-6, 100)), min_size=1, max_size=20))
def test_prices_positive_for_any_measurements(steps: list[tuple[int, int, float]]) -> None:
    prices = prices_of(*steps)
    assert prices.part_s >= 0
    assert prices.token_s is not None
    assert prices.token_s > 0
