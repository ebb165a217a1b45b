"""Count the requests in flight, and estimate from their completions how fast a queue drains."""

import time
from collections import deque
from collections.abc import Callable

# The drain rate is computed from this many of the latest responses.
_RESPONSES_REMEMBERED = 64
_LONGEST_RETRY_S = 600.0


class RequestsInFlight:
    """The requests of one model, or of the whole server, that are admitted and not answered. Owned by the event loop.

    `own_inflight`: those of this process.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: in seconds."""
        self.own_inflight = 0
        self._clock = clock
        # Time is counted only while requests are in flight: idle hours say nothing about how fast a queue drains.
        self._busy_s = 0.0
        self._busy_since_s = 0.0
        self._completed_at_s: deque[float] = deque([0.0], maxlen=_RESPONSES_REMEMBERED + 1)

    @property
    def inflight(self) -> int:
        """The requests in flight, of all processes that share the count."""
        return self.own_inflight

    def acquire(self) -> None:
        """Count a request in."""
        if not self.own_inflight:
            self._busy_since_s = self._clock()
        self.own_inflight += 1

    def release(self, completed: bool) -> None:
        """Count a request out. `completed`: some of it ran, so it counts towards the drain rate."""
        self.own_inflight -= 1
        if completed or not self.own_inflight:
            now_s = self._clock()
            if completed:
                self._completed_at_s.append(self._busy_s + now_s - self._busy_since_s)
            if not self.own_inflight:
                self._busy_s += now_s - self._busy_since_s

    def seconds_to_drain(self, requests: int) -> float:
        """Return the seconds until `requests` complete at the rate of the latest responses; 1 if none is known.

        The time since the latest response counts too: the estimate for a stalled queue grows.
        """
        responses = len(self._completed_at_s) - 1
        if not responses:
            return 1.0
        now_s = self._busy_s + (self._clock() - self._busy_since_s if self.own_inflight else 0.0)
        return sane_wait_s((now_s - self._completed_at_s[0]) / responses * requests)


def sane_wait_s(wait_s: float) -> float:
    """Return an estimated wait within 1 ms and 10 minutes."""
    return min(_LONGEST_RETRY_S, max(0.001, wait_s))
