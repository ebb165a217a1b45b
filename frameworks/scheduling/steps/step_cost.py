"""Estimate the seconds of a step, to bound the prompt tokens that are computed beside decodes. Pure."""

from frameworks.scheduling.steps.prompt_prices import PromptPrices

# A step with prompt tokens may take this many times as long as the decodes alone.
_MAX_SLOWDOWN = 2.6
# Decodes may pause for the time of this many steps, for a prompt that is then complete.
_MAX_PAUSE = 3.0
# Minimum of prompt tokens in a step: without any, a prompt would never be measured, nor start.
MIN_PROMPT_TOKENS = 16
_NEWEST_WEIGHT = 0.2
# A step that the machine delayed does not predict the next one.
_MAX_OUTLIER = 4.0


class StepCost:
    """Learn from past steps: seconds by number of decodes (in powers of two), and the prices of prompts."""

    def __init__(self, max_prompt_tokens: int) -> None:
        """`max_prompt_tokens`: upper bound for one step, whatever it costs."""
        self._max_prompt_tokens = max_prompt_tokens
        self._decode_s: dict[int, float] = {}
        self._prompts = PromptPrices(_NEWEST_WEIGHT, _MAX_OUTLIER)

    def max_prompt_tokens(self, decodes: int) -> int:
        """Return how many prompt tokens may be computed beside so many decodes."""
        if decodes == 0:
            return self._max_prompt_tokens
        fitting = self._fitting(decodes, _MAX_SLOWDOWN - 1)
        return max(MIN_PROMPT_TOKENS, min(self._max_prompt_tokens, fitting))

    def max_tokens_in_pause(self, decodes: int) -> int:
        """Return how many tokens a prompt may have that is computed in one step, while so many decodes pause."""
        return min(self._max_prompt_tokens, self._fitting(decodes, _MAX_PAUSE))

    def prompt_token_cost(self, decodes: int) -> float:
        """Return the cost of a prompt token beside so many decodes, if each decode costs 1; 1 before measurements."""
        decodes = max(1, decodes)
        without_s = self.seconds_of(decodes)
        if without_s is None or self._prompts.token_s is None:
            return 1.0
        return min(1.0, self._prompts.token_s * decodes / without_s)

    def learn(self, decodes: int, prompt_tokens: int, seconds: float, prompts: int = 1) -> None:
        """Record a step of so many decodes, and of `prompt_tokens` tokens of `prompts` prompts, that took `seconds`."""
        if seconds <= 0:
            return  # the clock did not advance: such a step would make the quotients infinite
        if prompt_tokens == 0:
            bucket = decodes.bit_length()
            before_s = self._decode_s.setdefault(bucket, seconds)
            self._decode_s[bucket] += _NEWEST_WEIGHT * (min(seconds, before_s * _MAX_OUTLIER) - before_s)
            return
        without_s = (self.seconds_of(decodes) or 0.0) if decodes else 0.0
        # A step of few tokens is mostly fixed cost, which further tokens do not add.
        if decodes or prompt_tokens >= MIN_PROMPT_TOKENS:
            self._prompts.learn(prompts, prompt_tokens, max(seconds - without_s, 0.02 * seconds))

    def seconds_of(self, decodes: int) -> float | None:
        """Return the seconds of a step of so many decodes alone, or of the nearest number that was measured; None
        before any.
        """
        if not self._decode_s:
            return None
        bucket = decodes.bit_length()
        return self._decode_s[min(self._decode_s, key=lambda seen: (abs(seen - bucket), seen))]

    def _fitting(self, decodes: int, steps: float) -> int:
        """Return how many tokens of one prompt take as long as so many steps of the decodes; 0 before measurements."""
        without_s = self.seconds_of(decodes)
        return 0 if without_s is None else self._prompts.fitting_tokens(steps * without_s)
