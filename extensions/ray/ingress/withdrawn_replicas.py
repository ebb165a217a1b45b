"""Remember which replicas Serve has withdrawn: no request has crashed them."""

import time
from collections.abc import Callable, Iterable

ANNOUNCED_S = 1.0
"""Minimum age of the report. A connection that ends sooner may have ended first, by a crash of the replica."""
MAX_WITHDRAWN = 1024
"""Limit of the remembered replicas; the oldest is dropped first."""


class WithdrawnReplicas:
    """Owned by the event loop.

    Serve withdraws a replica before it stops it, and when it finds that its node has ended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._withdrawn_s: dict[str, float] = {}

    def note(self, before: Iterable[str], after: Iterable[str]) -> None:
        """Note a change of the running replicas."""
        running = set(after)
        for replica in running:
            self._withdrawn_s.pop(replica, None)
        for replica in before:
            if replica not in running:
                self._withdrawn_s[replica] = self._clock()
        while len(self._withdrawn_s) > MAX_WITHDRAWN:
            del self._withdrawn_s[next(iter(self._withdrawn_s))]

    def is_withdrawn(self, replica: str) -> bool:
        """Whether a replica whose connection ends now was withdrawn some time ago."""
        left_s = self._withdrawn_s.get(replica)
        return left_s is not None and self._clock() - left_s >= ANNOUNCED_S
