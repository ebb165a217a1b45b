"""Measure the cost and the gain of proposed tokens, to stop proposing where there is no gain. Pure."""

from collections import deque
from statistics import median_low

# The machine delays some steps; the median of this many steps ignores them.
_REMEMBERED_STEPS = 5
# A smaller measured cost is noise, and so is a smaller gain.
_LEAST_COST, _LEAST_GAIN = 0.02, 1.05
# Factor of the weight of a request's earlier proposals with each later one.
_FADING = 0.8
FIRST_RATE = 2 / 3
"""Assumed acceptance rate before any tokens were proposed."""
_FIRST_WEIGHT = 2.0
_TRIAL_TOKENS = 2
TRIAL_FRACTION = 0.01
"""Trials take at most this part of the time of a text, and of a model."""
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 512


class ProposalCost:
    """The cost of a proposed token in a step, if each decode costs 1: learned from the steps of one model."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], deque[float]] = {}
        self._nearest: dict[tuple[int, int], float] = {}

    def learn(self, decodes: int, proposed: int, seconds: float, plain_s: float) -> None:
        """Record a step of so many decodes with `proposed` further tokens. `plain_s`: what it takes without them."""
        if seconds <= 0 or plain_s <= 0:
            return  # the clock did not advance
        key = decodes.bit_length(), proposed.bit_length()
        costs = self._seen.setdefault(key, deque(maxlen=_REMEMBERED_STEPS))
        costs.append(max(0.0, seconds / plain_s - 1) * decodes / proposed)
        self._nearest.clear()

    def of_token(self, decodes: int, proposed: int) -> float:
        """Return the cost of each of `proposed` tokens beside so many decodes; that of the most similar steps that were
        measured, 0 before any. At least _LEAST_COST afterwards.
        """
        wanted = decodes.bit_length(), proposed.bit_length()
        cost = self._nearest.get(wanted)
        if cost is None:
            cost = self._nearest[wanted] = self._cost_near(wanted)
        return cost

    def of_trial(self, decodes: int) -> float:
        """Return the cost of a trial beside so many decodes."""
        return _TRIAL_TOKENS * self.of_token(decodes, _TRIAL_TOKENS)

    def _cost_near(self, wanted: tuple[int, int]) -> float:
        if not self._seen:
            return 0.0
        nearest = min(self._seen, key=lambda key: (abs(key[0] - wanted[0]), abs(key[1] - wanted[1]), key))
        return max(_LEAST_COST, median_low(self._seen[nearest]))


class RequestGain:
    """How many tokens to propose for one text.

    A token is accepted with a probability that is estimated from earlier ones. While no number of tokens promises a
    gain, nothing is proposed. A few tokens are tried again after a pause, which doubles each time and is so long that
    trials cost little. The first trial of a long text has no pause before it, as texts differ. That of a short one has
    none either, if earlier texts saved its cost: else a cost once measured too high would end all proposals.
    """

    __slots__ = ("_accepted", "_first_trial_limit", "_is_trial", "_next_pause", "_pause", "_rejected")

    def __init__(self, acceptance_rate: float = FIRST_RATE, max_tokens: int = 0, saved: float = 0.0) -> None:
        """`acceptance_rate`: of the proposed tokens of earlier requests. `max_tokens`: of the text. `saved`: unused
        trial time of earlier decodes, in decodes.
        """
        self._first_trial_limit = max(TRIAL_FRACTION * max_tokens, saved)
        self._accepted = _FIRST_WEIGHT * acceptance_rate
        self._rejected = _FIRST_WEIGHT - self._accepted
        self._pause = 0
        self._next_pause = _FIRST_PAUSE
        self._is_trial = False

    @property
    def is_trial(self) -> bool:
        """Whether the proposals of this step are a trial."""
        return self._is_trial and not self._pause

    def num_wanted(self, most: int, decodes: int, cost: ProposalCost, proposing: int = 1) -> int:
        """Return how many tokens to propose in this step, up to `most`.

        `decodes`: of the step, for `proposing` of which tokens are proposed, as far as is known.
        """
        if self._pause:
            self._pause -= 1
            self._is_trial = not self._pause
            return 0
        if self._is_trial:
            return min(most, _TRIAL_TOKENS)
        best = self._best(most, decodes, cost, proposing)
        if best:
            self._next_pause = _FIRST_PAUSE
        else:
            trial_cost = cost.of_trial(decodes)
            if trial_cost < self._first_trial_limit:
                self._is_trial = True
                return min(most, _TRIAL_TOKENS)
            self._pause = min(_LONGEST_PAUSE, max(self._next_pause, int(trial_cost / TRIAL_FRACTION)))
            self._next_pause = min(2 * self._next_pause, _LONGEST_PAUSE)
        return best

    def learn(self, proposed: int, accepted: int) -> None:
        """Record that `accepted` of `proposed` tokens were accepted."""
        self._is_trial = False
        self._first_trial_limit = 0.0
        self._accepted = _FADING * self._accepted + accepted
        self._rejected = _FADING * self._rejected + (accepted < proposed)

    def _best(self, most: int, decodes: int, cost: ProposalCost, proposing: int) -> int:
        """Return the number of proposals with the most tokens per time; 0 if none gives more than without."""
        right = self._accepted / (self._accepted + self._rejected)
        best, best_gain = 0, _LEAST_GAIN
        expected, is_right = 1.0, 1.0
        for count in range(1, most + 1):
            is_right *= right
            expected += is_right
            gain = expected / (1 + count * cost.of_token(decodes, count * proposing))
            if gain > best_gain:
                best, best_gain = count, gain
        return best
