"""Learn the cost of a batch on this device from the worker's timings."""

from dataclasses import dataclass

# A shape's own figure follows what is measured with this weight for the newest.
_NEWEST_WEIGHT = 0.2
# One run that took many times what was expected (a page fault, a neighbour on the core) counts as this many times it.
_OUTLIER_FACTOR = 3.0
# The curve is fitted again after this many more runs; it moves slowly, and a fit costs about 100 µs.
_RUNS_PER_FIT = 16
# Nothing is held to be faster than this: the fit divides by the squares of times.
_LEAST_S = 1e-9
_RUNS_TO_DOUBLE = 2
_RUNS_PER_TRIAL = 32
# Before anything is known to the contrary, this part of a single row's time is held for the cost of starting a run.
_PRIOR_START_SHARE = 0.3
_MIN_START_SHARE = 0.01


@dataclass(slots=True)
class _Shape:
    tokens: int
    length: int
    seconds: float
    runs: int


# Weight, the features of the four terms, seconds.
_Observation = tuple[float, tuple[float, float, float, float], float]


class CostModel:
    """Seconds of a batch of t = rows · length tokens: start + per_token · t + per_pair · t · length + per_crowd · t².

    The terms are what a run costs whatever is in it, its linear layers, attention, and that a large batch's activations
    leave the caches (measured with MiniLM on one core: a row of 160 tokens takes a quarter longer among 32 than among
    four). A model without a sequence has one length throughout. Every shape that ran keeps a moving average; the curve
    is their least-squares fit by relative error, no term below zero.
    """

    def __init__(self) -> None:
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._runs_to_fit = 0
        self._runs = 0
        self._most_rows = 1
        self._runs_at_most = 0
        self.start_s = 0.0
        self.per_token_s = 0.0
        self.per_pair_s = 0.0
        self.per_crowd_s = 0.0

    @property
    def most_rows(self) -> int:
        """How many rows the next batch may have, for what is to be learned: twice as many as have run twice, so that a
        large batch is no leap in the dark; and of many batches one is small, so that the cost of a start stays known.
        """
        if self._runs % _RUNS_PER_TRIAL == 0:
            return 1 << (self._runs // _RUNS_PER_TRIAL % 3)
        return self._most_rows

    def seconds(self, rows: int, length: int) -> float:
        """The expected time of a batch of `rows`, padded to `length`; 0 while nothing is known."""
        tokens = rows * length
        return self.start_s + (self.per_token_s + self.per_pair_s * length + self.per_crowd_s * tokens) * tokens

    def observe(self, rows: int, length: int, seconds: float) -> None:
        """Learns from a batch that ran."""
        self._runs += 1
        key = (_bucket(rows), _bucket(length))
        seconds = max(seconds, _LEAST_S)
        shape = self._shapes.get(key)
        if rows >= self._most_rows:
            self._runs_at_most += 1
            if self._runs_at_most == _RUNS_TO_DOUBLE:
                self._most_rows, self._runs_at_most = 2 * rows, 0
        if shape is None:
            self._shapes[key] = _Shape(rows * length, length, seconds, 1)
            self._runs_to_fit = 0
        else:
            seen = min(seconds, shape.seconds * _OUTLIER_FACTOR)
            weight = max(_NEWEST_WEIGHT, 1 / (shape.runs + 1))
            shape.seconds += weight * (seen - shape.seconds)
            shape.tokens += round(weight * (rows * length - shape.tokens))
            shape.length += round(weight * (length - shape.length))
            shape.runs += 1
        self._runs_to_fit -= 1
        if self._runs_to_fit <= 0:
            self._runs_to_fit = _RUNS_PER_FIT
            self._fit()

    def _fit(self) -> None:
        """Weighted least squares on relative errors; a term that comes out negative is left out and the rest fitted."""
        cheapest_s = min(shape.seconds for shape in self._shapes.values())
        # The prior has the weight of a twentieth of a shape.
        rows: list[_Observation] = [(0.05, (1.0, 0.0, 0.0, 0.0), _PRIOR_START_SHARE * cheapest_s)]
        for shape in self._shapes.values():
            tokens = float(shape.tokens)
            features = (1.0, tokens, tokens * shape.length, tokens * tokens)
            rows.append((min(shape.runs, 8) / 8, features, shape.seconds))
        # One length tells pairs from tokens as little as one or two sizes tell a crowd from them: what cannot be told
        # is held for linear, or the first runs would look as if batching never paid, and it would never be tried.
        active = [0, 1]
        active += [2] if len({shape.length for shape in self._shapes.values()}) > 1 else []
        active += [3] if len({rows for rows, _ in self._shapes}) > 2 else []
        terms = _solve(rows, active)
        while min(terms.values()) < 0.0 and len(active) > 1:
            active.remove(min(terms, key=terms.__getitem__))
            terms = _solve(rows, active)
        self.start_s = max(terms.get(0, 0.0), _MIN_START_SHARE * cheapest_s)
        self.per_token_s = max(0.0, terms.get(1, 0.0))
        self.per_pair_s = max(0.0, terms.get(2, 0.0))
        self.per_crowd_s = max(0.0, terms.get(3, 0.0))


def _bucket(count: int) -> int:
    """Counts up to 8 by themselves, above in steps of about an eighth."""
    if count <= 8:
        return count
    shift = count.bit_length() - 4
    return (count >> shift) << shift


def _solve(rows: list[_Observation], active: list[int]) -> dict[int, float]:
    """Normal equations of Σ weight · ((Σ term · feature - seconds) / seconds)², by elimination with pivots."""
    scale = [max(abs(features[i]) for _, features, _ in rows) or 1.0 for i in active]
    size = len(active)
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for weight, features, seconds in rows:
        relative = weight / (seconds * seconds)
        scaled = [features[i] / s for i, s in zip(active, scale, strict=True)]
        for i in range(size):
            for j in range(size):
                matrix[i][j] += relative * scaled[i] * scaled[j]
            matrix[i][size] += relative * scaled[i] * seconds
    for i in range(size):
        matrix[i][i] *= 1 + 1e-9  # shapes that all lie on one line leave a direction open
        pivot = max(range(i, size), key=lambda row: abs(matrix[row][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if not matrix[i][i]:
            continue
        for row in range(i + 1, size):
            factor = matrix[row][i] / matrix[i][i]
            for column in range(i, size + 1):
                matrix[row][column] -= factor * matrix[i][column]
    solution = [0.0] * size
    for i in reversed(range(size)):
        rest = matrix[i][size] - sum(matrix[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = rest / matrix[i][i] if matrix[i][i] else 0.0
    return {term: value / s for term, value, s in zip(active, solution, scale, strict=True)}
