"""Predict the run time of a batch by a cost model that is fitted to the workers' timings."""

from dataclasses import dataclass

# Weight of the newest run in the moving average of its shape.
_NEWEST_WEIGHT = 0.2
# A run that took longer than this many times the average counts as that many times the average. A page fault or a
# host that gives the core to another machine causes such runs.
_OUTLIER_FACTOR = 3.0
# The curve is fitted again after this many runs. It changes slowly, and a fit costs about 100 µs.
_RUNS_PER_FIT = 16
# Lower bound of a measured time: the fit divides by the squares of times.
_MIN_RUN_S = 1e-9
# The largest batch may double after this many runs of its size.
_RUNS_TO_DOUBLE = 2
# One in this many runs is small, so that the cost of a start stays known.
_RUNS_PER_TRIAL = 32
# Until more is measured, this share of the cheapest run counts as the cost of starting a run.
_PRIOR_START_SHARE = 0.3
_MIN_START_SHARE = 0.01


@dataclass(slots=True)
class _Shape:
    """Moving averages of the runs of one shape."""

    tokens: int
    length: int
    seconds: float
    runs: int


# The weight of a shape, the features of the four terms, and the seconds.
_Observation = tuple[float, tuple[float, float, float, float], float]


class CostModel:
    """Expect start + per_token · t + per_pair · t · length + per_square · t² seconds for t = rows · length tokens.

    The terms are the fixed cost of a run, the linear layers, the attention, and activations too large for the caches.
    With MiniLM on one core a row of 160 tokens takes a quarter longer among 32 rows than among four. A model without a
    sequence has a single length. Each shape keeps a moving average of its runs. The curve is the least-squares fit of
    these averages by relative error, with no term below zero.
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
        self.per_square_s = 0.0

    @property
    def most_rows(self) -> int:
        """The most rows that the next batch may have, so that the model can learn.

        It is twice the rows of a size that has run twice: a batch is never much larger than those measured. Every
        _RUNS_PER_TRIAL runs it is small once.
        """
        if self._runs % _RUNS_PER_TRIAL == 0:
            return 1 << (self._runs // _RUNS_PER_TRIAL % 3)
        return self._most_rows

    def seconds(self, rows: int, length: float) -> float:
        """Return the expected seconds of a batch of `rows` of `length`; 0 before the first run."""
        tokens = rows * length
        return self.start_s + (self.per_token_s + self.per_pair_s * length + self.per_square_s * tokens) * tokens

    def observe(self, rows: int, length: float, seconds: float) -> None:
        """Record the seconds of a batch of `rows` of `length` that ran."""
        self._runs += 1
        key = (_bucket(rows), _bucket(round(length)))
        seconds = max(seconds, _MIN_RUN_S)
        shape = self._shapes.get(key)
        if rows >= self._most_rows:
            self._runs_at_most += 1
            if self._runs_at_most == _RUNS_TO_DOUBLE:
                self._most_rows, self._runs_at_most = 2 * rows, 0
        if shape is None:
            self._shapes[key] = _Shape(round(rows * length), round(length), seconds, 1)
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
        """Fit the terms by weighted least squares of relative errors; without those that turn out negative."""
        cheapest_s = min(shape.seconds for shape in self._shapes.values())
        # The prior belief about the start has the weight of a twentieth of a shape.
        rows: list[_Observation] = [(0.05, (1.0, 0.0, 0.0, 0.0), _PRIOR_START_SHARE * cheapest_s)]
        for shape in self._shapes.values():
            tokens = float(shape.tokens)
            features = (1.0, tokens, tokens * shape.length, tokens * tokens)
            rows.append((min(shape.runs, 8) / 8, features, shape.seconds))
        # A single length cannot tell pairs from tokens, and two sizes cannot tell squares from them. Such terms stay 0:
        # otherwise the first runs could suggest that batching never pays, and no batch would be tried.
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
        self.per_square_s = max(0.0, terms.get(3, 0.0))


def _bucket(count: int) -> int:
    """Return counts up to 8 unchanged, and larger ones rounded down in steps of about an eighth."""
    if count <= 8:
        return count
    shift = count.bit_length() - 4
    return (count >> shift) << shift


def _solve(rows: list[_Observation], active: list[int]) -> dict[int, float]:
    """Minimise Σ weight · ((Σ term · feature - seconds) / seconds)²: normal equations, elimination with pivots."""
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
        matrix[i][i] *= 1 + 1e-9  # keeps it regular if all shapes are on one line
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
