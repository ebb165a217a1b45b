"""Estimate the seconds of a step, to bound the prompt tokens that are computed beside decodes. Pure."""

# A step with prompt tokens may take this many times as long as the decodes alone.
_MAX_SLOWDOWN = 2.6
# Decodes may pause for the time of this many steps, for a prompt that is then complete.
_MAX_PAUSE = 3.0
# Minimum of prompt tokens in a step: without any, a prompt would never be measured, nor start.
MIN_PROMPT_TOKENS = 16
# A step with a slice of an image may take this many times as long: its slices end between modules only.
_IMAGE_SLOWDOWN = 2.0
# Seconds of an image without decodes beside it: new requests, and the ends of others, wait for so long at most.
_ALONE_S = 0.05
# Of the newest step in the means.
_NEWEST_WEIGHT = 0.2
# A step that the machine delayed does not predict the next one.
_MAX_OUTLIER = 4.0
# Ridge penalty of part_s. Steps with parts of equal lengths do not determine both prices; then token_s has the cost.
_RIDGE = 0.02


class PromptPrices:
    """Learn the seconds of prefill in a step: of each part of a prompt, and of each token.

    Fits seconds = parts · part_s + tokens · token_s by least squares, with exponentially falling weights.
    """

    def __init__(self) -> None:
        # Means over the steps, all relative to the tokens: parts², parts, parts · seconds, seconds.
        self._means = [0.0] * 4
        self.part_s = 0.0
        """Seconds of a part without its tokens."""
        self.token_s: float | None = None
        """Seconds of each token; None before the first measurement."""

    def learn(self, parts: int, tokens: int, seconds: float) -> None:
        """Record `tokens` of `parts` prompts that added `seconds` to a step; all are above 0."""
        if self.token_s is not None:
            seconds = min(seconds, _MAX_OUTLIER * (parts * self.part_s + tokens * self.token_s))
        # Relative to the tokens, so that a long step does not outweigh short ones.
        part, second = parts / tokens, seconds / tokens
        weight = 1.0 if self.token_s is None else _NEWEST_WEIGHT
        for index, value in enumerate((part * part, part, part * second, second)):
            self._means[index] += weight * (value - self._means[index])
        self._solve()

    def fitting_tokens(self, seconds: float) -> int:
        """Return how many tokens of one prompt are computed in `seconds`; 0 before measurements."""
        if self.token_s is None:
            return 0
        return max(0, int((seconds - self.part_s) / self.token_s))

    def _solve(self) -> None:
        squares, parts, part_seconds, seconds = self._means
        determinant = (1 + _RIDGE) * squares - parts * parts
        part_s = (part_seconds - parts * seconds) / determinant if determinant > 0 else 0.0
        token_s = seconds - parts * part_s
        if part_s <= 0 or token_s <= 0:
            part_s, token_s = 0.0, seconds
        self.part_s, self.token_s = part_s, token_s


class StepCost:
    """Learn from past steps: seconds by number of decodes (in powers of two), and the prices of prompts."""

    def __init__(self, max_prompt_tokens: int) -> None:
        """`max_prompt_tokens`: upper bound for one step, whatever it costs."""
        self._max_prompt_tokens = max_prompt_tokens
        self._decode_s: dict[int, float] = {}
        self._prompts = PromptPrices()

    def max_prompt_tokens(self, decodes: int) -> int:
        """Return how many prompt tokens may be computed beside so many decodes."""
        if decodes == 0:
            return self._max_prompt_tokens
        fitting = self._fitting(decodes, _MAX_SLOWDOWN - 1)
        return max(MIN_PROMPT_TOKENS, min(self._max_prompt_tokens, fitting))

    def max_tokens_in_pause(self, decodes: int) -> int:
        """Return how many tokens a prompt may have that is computed in one step, while so many decodes pause."""
        return min(self._max_prompt_tokens, self._fitting(decodes, _MAX_PAUSE))

    def image_seconds(self, decodes: int) -> float:
        """Return for how long an image may be computed beside so many decodes. A step then takes at most
        _IMAGE_SLOWDOWN times as long as the decodes alone; without any, until the queue is looked at again.
        """
        alone_s = self.seconds_of(decodes) if decodes else None
        return _ALONE_S if alone_s is None else (_IMAGE_SLOWDOWN - 1) * alone_s

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
