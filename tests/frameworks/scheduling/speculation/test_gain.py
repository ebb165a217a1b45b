"""Proposals stop where they cost more than they bring, and are tried again rarely."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from frameworks.scheduling.speculation.gain import ProposalCost, RequestGain


def cost_of(each: float) -> ProposalCost:
    """Return measurements of steps in which a proposed token costs so many decodes."""
    cost = ProposalCost()
    for proposed in (1, 2, 4, 8):
        cost.learn(1, proposed, 1 + each * proposed, 1.0)
    return cost


def steps_with_proposals(right_of: float, cost: ProposalCost, steps: int, most: int = 8) -> tuple[int, float]:
    """Return the tokens and the time of so many steps, in which this share of each proposal is right."""
    gain = RequestGain()
    tokens, seconds = 0, 0.0
    for _ in range(steps):
        wanted = gain.num_wanted(most, 1, cost)
        right = int(wanted * right_of)
        tokens += 1 + right
        seconds += 1 + wanted * cost.of_token(1, max(1, wanted))
        if wanted:
            gain.learn(wanted, right)
    return tokens, seconds


def test_right_proposals_go_on() -> None:
    tokens, seconds = steps_with_proposals(1.0, cost_of(0.1), 100)
    assert tokens / seconds > 4


def test_wrong_proposals_cost_little() -> None:
    tokens, seconds = steps_with_proposals(0.0, cost_of(0.1), 1000)
    assert (tokens, seconds < 1010) == (1000, True)


def test_dear_proposals_stop_though_right() -> None:
    tokens, seconds = steps_with_proposals(1.0, cost_of(1.5), 1000)
    assert tokens / seconds > 0.97


def test_pause_ends_with_trial_of_few_tokens() -> None:
    gain, dear, cheap = RequestGain(), cost_of(2.0), cost_of(0.01)
    assert gain.num_wanted(8, 1, dear) == 0
    wanted = [gain.num_wanted(8, 1, dear) for _ in range(401)]
    assert wanted == [0] * 400 + [2], "a trial of 4 decodes is a hundredth of the time"
    gain.learn(2, 2)
    assert gain.num_wanted(8, 1, cheap) == 8


def test_first_trial_of_long_text_has_no_pause() -> None:
    cost = cost_of(0.2)
    gain = RequestGain(0.0, max_tokens=128)
    assert gain.num_wanted(8, 1, cost) == 2, "0.4 decodes are less than a hundredth of the text"
    gain.learn(2, 2)
    assert gain.num_wanted(8, 1, cost) >= 2


def test_first_trial_happens_once() -> None:
    cost = cost_of(0.2)
    gain = RequestGain(0.0, max_tokens=128)
    assert gain.num_wanted(8, 1, cost) == 2
    gain.learn(2, 0)
    assert [gain.num_wanted(8, 1, cost) for _ in range(40)] == [0] * 40


def test_first_trial_of_short_text_waits() -> None:
    assert RequestGain(0.0, max_tokens=30).num_wanted(8, 1, cost_of(0.2)) == 0


def test_pauses_double() -> None:
    gain, cheap = RequestGain(), cost_of(0.06)
    for _ in range(20):
        gain.learn(8, 0)
    trials = []
    for step in range(1000):
        if gain.num_wanted(8, 1, cheap):
            trials.append(step)
            gain.learn(2, 0)
    pauses = [later - earlier for earlier, later in itertools.pairwise(trials)]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 1.9 * pauses[-2]


@given(st.integers(0, 64), st.integers(1, 64), st.floats(0, 3), st.lists(st.integers(0, 64), max_size=20))
def test_never_more_than_asked(most: int, texts: int, each: float, accepted: list[int]) -> None:
    gain, cost = RequestGain(), cost_of(each)
    for right in accepted:
        wanted = gain.num_wanted(most, texts, cost)
        assert 0 <= wanted <= most
        if wanted:
            gain.learn(wanted, min(right, wanted))


class TestCost:
    def test_unknown_cost_is_zero(self) -> None:
        assert ProposalCost().of_token(4, 8) == 0

    def test_most_similar_step_counts(self) -> None:
        cost = ProposalCost()
        cost.learn(1, 8, 1.8, 1.0)
        cost.learn(16, 8, 1.5, 1.0)
        assert abs(cost.of_token(1, 2) - 0.1) < 1e-9
        assert abs(cost.of_token(20, 8) - 1.0) < 1e-9

    def test_single_slow_step_is_ignored(self) -> None:
        cost = ProposalCost()
        for seconds in (1.4, 1.4, 9.0, 1.4):
            cost.learn(1, 4, seconds, 1.0)
        assert abs(cost.of_token(1, 4) - 0.1) < 1e-9

    def test_standing_clock_teaches_nothing(self) -> None:
        cost = ProposalCost()
        cost.learn(1, 4, 0.0, 0.0)
        assert cost.of_token(1, 4) == 0
