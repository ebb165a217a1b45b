"""Learn the cost of prefill in a step: seconds for each part of a prompt, and for each token. Pure."""

# Ridge penalty of part_s. Steps with parts of equal lengths do not determine both prices; then token_s has the cost.
_RIDGE = 0.02


class PromptPrices:
    """Fit seconds = parts · part_s + tokens · token_s by least squares, with exponentially falling weights."""

    def __init__(self, newest_weight: float, max_outlier: float) -> None:
        """`newest_weight`: of the newest step in the means. `max_outlier`: a step counts as at most this many times
        the expected seconds.
        """
        self._newest_weight = newest_weight
        self._max_outlier = max_outlier
        # Means over the steps, all relative to the tokens: parts², parts, parts · seconds, seconds.
        self._means = [0.0] * 4
        self.part_s = 0.0
        """Seconds of a part without its tokens."""
        self.token_s: float | None = None
        """Seconds of each token; None before the first measurement."""

    def learn(self, parts: int, tokens: int, seconds: float) -> None:
        """Record `tokens` of `parts` prompts that added `seconds` to a step; all are above 0."""
        if self.token_s is not None:
            seconds = min(seconds, self._max_outlier * (parts * self.part_s + tokens * self.token_s))
        # Relative to the tokens, so that a long step does not outweigh short ones.
        part, second = parts / tokens, seconds / tokens
        weight = 1.0 if self.token_s is None else self._newest_weight
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
