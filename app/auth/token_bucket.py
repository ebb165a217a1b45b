"""Rate limits as token buckets: how much may be used in a minute, and how much of it at once."""

import time
from collections.abc import Callable

from memory.shared_pairs import SharedPair

_MINUTE_S = 60.0
_BURST_DIVISOR = 10


class TokenBucket:
    """An amount that refills steadily: `per_minute` in a minute, up to a tenth of that, and at least 1.

    Amounts that were used are charged although the bucket is empty: it then has a debt, which refills first.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        """A full bucket. `clock`: in seconds."""
        self.per_minute = per_minute
        self.burst = max(1.0, per_minute / _BURST_DIVISOR)
        self._clock = clock
        self._seconds_each = _MINUTE_S / per_minute
        # In amounts, not in times: integer amounts add up exactly, also after weeks.
        self._missing = 0.0
        self._since_s = clock()

    def charge(self, amount: float) -> None:
        """Take an amount out of the bucket, also beyond what it has."""
        now_s = self._clock()
        self._missing = self._missing_at(now_s) + amount
        self._since_s = now_s

    def take(self, amount: float) -> float:
        """Charge an amount, after `wait_s` has returned 0.

        Returns 0. If another process has taken the last of it meanwhile, returns the wait, and charges nothing.
        """
        self.charge(amount)
        return 0.0

    def wait_s(self) -> float:
        """Return the seconds until the bucket has 1, if nothing is charged meanwhile; 0 if it has it now."""
        return max(0.0, self._missing_at(self._clock()) + 1.0 - self.burst) * self._seconds_each

    def left(self) -> float:
        """Return the amount in the bucket; 0 while it has a debt."""
        return max(0.0, self.burst - self._missing_at(self._clock()))

    def reset_s(self) -> float:
        """Return the seconds until the bucket is full."""
        return self._missing_at(self._clock()) * self._seconds_each

    def _missing_at(self, now_s: float) -> float:
        """Return the amount that the bucket needs to be full."""
        return max(0.0, self._missing - (now_s - self._since_s) / self._seconds_each)


class SharedTokenBucket(TokenBucket):
    """A bucket that several processes charge. Its amount and the time of that amount are a shared pair.

    Only changes take the pair's lock.
    """

    def __init__(self, per_minute: int, pair: SharedPair, clock: Callable[[], float] = time.monotonic) -> None:
        """`pair`: zeros are a full bucket. `clock`: the same one in all processes."""
        super().__init__(per_minute, clock)
        self._pair = pair

    def charge(self, amount: float) -> None:
        pair = self._pair
        with pair:
            now_s = self._clock()
            pair.write(self._missing_at(now_s) + amount, now_s)

    def take(self, amount: float) -> float:
        pair = self._pair
        with pair:
            if wait_s := self.wait_s():
                return wait_s
            now_s = self._clock()
            pair.write(self._missing_at(now_s) + amount, now_s)
            return 0.0

    def _missing_at(self, now_s: float) -> float:
        missing, since_s = self._pair.read()
        # Another process may have charged it since this one read the clock.
        return max(0.0, missing - max(0.0, now_s - since_s) / self._seconds_each)


def token_bucket(
    pair: SharedPair | None, per_minute: int | None, clock: Callable[[], float] = time.monotonic
) -> TokenBucket | None:
    """Return a bucket of all processes that share the pair, or of this process without one; None without a limit."""
    if not per_minute:
        return None
    return TokenBucket(per_minute, clock) if pair is None else SharedTokenBucket(per_minute, pair, clock)
