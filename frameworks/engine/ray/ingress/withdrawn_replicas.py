"""Remember which replicas Serve has withdrawn: their ends have other causes than their requests."""

import time
from collections.abc import Callable, Iterable

ANNOUNCED_S = 1.0
"""A connection that ends sooner after the report may have ended first: the replica then crashed."""
MAX_DEPARTURES = 1024
"""Limit of the replicas that are remembered; the oldest is forgotten first."""


class WithdrawnReplicas:
    """Owned by the event loop.

    Serve withdraws a replica before it stops it, and when it finds that its node has ended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._left_s: dict[str, float] = {}

    def note(self, before: Iterable[str], after: Iterable[str]) -> None:
        """Note a change of the running replicas."""
        running = set(after)
        for replica in running:
            self._left_s.pop(replica, None)
        for replica in before:
            if replica not in running:
                self._left_s[replica] = self._clock()
        while len(self._left_s) > MAX_DEPARTURES:
            del self._left_s[next(iter(self._left_s))]

    def has_left(self, replica: str) -> bool:
        """Whether a replica whose connection ends now was withdrawn some time ago."""
        left_s = self._left_s.get(replica)
        return left_s is not None and self._clock() - left_s >= ANNOUNCED_S
