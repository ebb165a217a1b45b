"""Token buckets: how much may be used in a minute, and how much of it at once."""

import time
from collections.abc import Callable

_MINUTE_S = 60.0
_BURST_SHARE = 0.1


class TokenBucket:
    """An amount that refills steadily: `per_minute` in a minute, up to a tenth of that, and at least 1.

    Amounts that were used are charged although the bucket is empty: it then has a debt, which refills first. Computed
    as the generic cell rate algorithm (ITU-T I.371): the state is the time at which the bucket is full again.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        """A full bucket. `clock`: in seconds."""
        self.per_minute = per_minute
        self.burst = max(1.0, per_minute * _BURST_SHARE)
        self._clock = clock
        self._seconds_each = _MINUTE_S / per_minute
        self._slack_s = (self.burst - 1.0) * self._seconds_each
        self._full_at_s = clock()

    def charge(self, amount: float) -> None:
        """Take an amount out of the bucket, also beyond what it has."""
        self._full_at_s = max(self._full_at_s, self._clock()) + amount * self._seconds_each

    def wait_s(self) -> float:
        """Return the seconds until the bucket has 1, if nothing is charged meanwhile; 0 if it has it now."""
        wait_s = self._full_at_s - self._clock() - self._slack_s
        return max(0.0, wait_s)

    def left(self) -> float:
        """Return the amount in the bucket; 0 while it has a debt."""
        return max(0.0, self.burst - self.reset_s() / self._seconds_each)

    def reset_s(self) -> float:
        """Return the seconds until the bucket is full."""
        return max(0.0, self._full_at_s - self._clock())
