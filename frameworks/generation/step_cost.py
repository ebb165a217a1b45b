"""What a step costs: how much of a prompt may be computed beside running texts before they are held up. Pure."""

# Beside running texts a step with a part of a prompt may take so many times as long as one without.
_MOST_TIMES = 2.6
# At least so many tokens of a prompt are computed in a step: one that was never begun would wait for ever.
FEWEST_PROMPT_TOKENS = 16
_NEWEST_SHARE = 0.2
# A step that the machine held up says nothing of the next.
_MOST_SURPRISE = 4.0


class StepCost:
    """Learns, from the steps that were, the seconds of a step by the number of texts in it (by powers of two), and
    those of each further token of a prompt.
    """

    def __init__(self, max_prompt_tokens: int) -> None:
        """`max_prompt_tokens`: in one step, whatever it costs."""
        self._max_prompt_tokens = max_prompt_tokens
        self._texts_s: dict[int, float] = {}
        self._prompt_token_s: float | None = None

    def most_prompt_tokens(self, texts: int) -> int:
        """How many tokens of prompts may be computed beside so many texts that run."""
        if texts == 0:
            return self._max_prompt_tokens
        without_s = self._seconds(texts)
        if without_s is None or self._prompt_token_s is None:
            return FEWEST_PROMPT_TOKENS
        fitting = int((_MOST_TIMES - 1) * without_s / self._prompt_token_s)
        return max(FEWEST_PROMPT_TOKENS, min(self._max_prompt_tokens, fitting))

    def learn(self, texts: int, prompt_tokens: int, seconds: float) -> None:
        """A step of so many texts and tokens of prompts took so long."""
        if seconds <= 0:
            return  # the clock has not moved: it says nothing, and what is divided by it would have no end
        if prompt_tokens == 0:
            bucket = texts.bit_length()
            self._texts_s[bucket] = _mixed(self._texts_s.get(bucket), seconds)
            return
        without_s = (self._seconds(texts) or 0.0) if texts else 0.0
        # With few tokens it is mostly what any step costs, and the next tokens cost less.
        if texts or prompt_tokens >= FEWEST_PROMPT_TOKENS:
            each_s = max(seconds - without_s, 0.02 * seconds) / prompt_tokens
            self._prompt_token_s = _mixed(self._prompt_token_s, each_s)

    def _seconds(self, texts: int) -> float | None:
        """Of a step of so many texts alone; of the nearest number that was seen."""
        if not self._texts_s:
            return None
        bucket = texts.bit_length()
        return self._texts_s[min(self._texts_s, key=lambda seen: (abs(seen - bucket), seen))]


def _mixed(before: float | None, seen: float) -> float:
    if before is None:
        return seen
    return before + _NEWEST_SHARE * (min(seen, before * _MOST_SURPRISE) - before)
