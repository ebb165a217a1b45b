"""Count durations in logarithmic buckets: bounded memory, and quantiles with a relative error of at most 1 %."""

import math
from collections.abc import Iterator

RELATIVE_ERROR = 0.01
"""Maximum relative error of a quantile between MIN_S and MAX_S."""
MIN_S = 1e-7
MAX_S = 1e5

# The middle of a bucket differs from each of its values by the square root of this factor at most.
_GROWTH = (1 + RELATIVE_ERROR) ** 2
_BUCKETS_PER_E = 1 / math.log(_GROWTH)


class DurationHistogram:
    """Durations in seconds. It has at most 1,400 buckets; those without a value take no memory."""

    __slots__ = ("_counts", "count", "max_s", "min_s", "sum_s")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.sum_s = 0.0
        self.min_s = math.inf
        self.max_s = 0.0

    def record(self, seconds: float) -> None:
        """Count one duration. Those below MIN_S and above MAX_S are in the first and the last bucket."""
        self.count += 1
        self.sum_s += seconds
        self.min_s = min(self.min_s, seconds)
        self.max_s = max(self.max_s, seconds)
        bucket = math.floor(math.log(min(max(seconds, MIN_S), MAX_S)) * _BUCKETS_PER_E)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def add(self, other: "DurationHistogram") -> None:
        """Count all durations of another histogram."""
        self.count += other.count
        self.sum_s += other.sum_s
        self.min_s = min(self.min_s, other.min_s)
        self.max_s = max(self.max_s, other.max_s)
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count

    @property
    def mean_s(self) -> float:
        """Exact mean; 0 without a value."""
        return self.sum_s / self.count if self.count else 0.0

    def quantile(self, part: float) -> float:
        """Return the value of the nearest rank, in seconds; 0 without a value. `part`: 0 to 1."""
        rank = max(1, math.ceil(part * self.count))
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                middle_s = math.exp((bucket + 0.5) / _BUCKETS_PER_E)
                return min(max(middle_s, self.min_s), self.max_s)
        return 0.0

    def buckets(self) -> Iterator[tuple[float, float, int]]:
        """Yield lower and upper bound in seconds and the count of each bucket with a value, in ascending order."""
        for bucket in sorted(self._counts):
            yield math.exp(bucket / _BUCKETS_PER_E), math.exp((bucket + 1) / _BUCKETS_PER_E), self._counts[bucket]
