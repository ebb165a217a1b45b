"""Estimate what a step costs, to bound the prompt tokens that are computed beside decoding sequences. Pure."""

# A step with prompt tokens may take so many times as long as the decodes alone.
_MAX_SLOWDOWN = 2.6
# Every step computes at least so many prompt tokens: without any, a prompt would never be measured, nor start.
MIN_PROMPT_TOKENS = 16
_NEWEST_SHARE = 0.2
# A step that the machine delayed says nothing of the next.
_MAX_OUTLIER = 4.0


class StepCost:
    """Learn from past steps: seconds by number of decodes (in powers of two), and seconds of each prompt token."""

    def __init__(self, max_prompt_tokens: int) -> None:
        """`max_prompt_tokens`: upper bound for one step, whatever it costs."""
        self._max_prompt_tokens = max_prompt_tokens
        self._texts_s: dict[int, float] = {}
        self._prompt_token_s: float | None = None

    def max_prompt_tokens(self, texts: int) -> int:
        """Return how many prompt tokens may be computed beside `texts` decodes."""
        if texts == 0:
            return self._max_prompt_tokens
        without_s = self._seconds(texts)
        if without_s is None or self._prompt_token_s is None:
            return MIN_PROMPT_TOKENS
        fitting = int((_MAX_SLOWDOWN - 1) * without_s / self._prompt_token_s)
        return max(MIN_PROMPT_TOKENS, min(self._max_prompt_tokens, fitting))

    def prompt_token_cost(self, texts: int) -> float:
        """Return the cost of a prompt token beside `texts` decodes, if each decode costs 1; 1 before measurements."""
        texts = max(1, texts)
        without_s = self._seconds(texts)
        if without_s is None or self._prompt_token_s is None:
            return 1.0
        return min(1.0, self._prompt_token_s * texts / without_s)

    def learn(self, texts: int, prompt_tokens: int, seconds: float) -> None:
        """Record a step of `texts` decodes and `prompt_tokens` that took `seconds`."""
        if seconds <= 0:
            return  # the clock did not advance: such a step would make the quotients infinite
        if prompt_tokens == 0:
            bucket = texts.bit_length()
            self._texts_s[bucket] = _moving_average(self._texts_s.get(bucket), seconds)
            return
        without_s = (self._seconds(texts) or 0.0) if texts else 0.0
        # A step of few tokens is mostly fixed cost, which further tokens do not add.
        if texts or prompt_tokens >= MIN_PROMPT_TOKENS:
            each_s = max(seconds - without_s, 0.02 * seconds) / prompt_tokens
            self._prompt_token_s = _moving_average(self._prompt_token_s, each_s)

    def _seconds(self, texts: int) -> float | None:
        """Return the seconds of a step of so many decodes alone, or of the nearest number that was measured."""
        if not self._texts_s:
            return None
        bucket = texts.bit_length()
        return self._texts_s[min(self._texts_s, key=lambda seen: (abs(seen - bucket), seen))]


def _moving_average(before: float | None, seen: float) -> float:
    if before is None:
        return seen
    return before + _NEWEST_SHARE * (min(seen, before * _MAX_OUTLIER) - before)
