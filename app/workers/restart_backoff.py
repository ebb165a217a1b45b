"""Back off restarts of a worker that has ended: at once, then after 1 s, 2 s, 4 s, 8 s, 10 s.

A start is a fork that takes about 50 ms, but a worker that is missing costs its share of the server. The delays are
therefore shorter than those of engine processes, which load a model. At the longest delay a worker that ends in every
start takes 0.5 % of a CPU, and its log lines stay few.
"""

import time
from collections.abc import Callable

from frameworks.engine.process.elapsed import Elapsed

MAX_DELAY_S = 10.0
STABLE_S = 10.0
"""Time of service after which an end counts as the first one in a row.

A worker that cannot work ends in its start or in its first requests, long before.
"""


class RestartBackoff:
    """The starts of the workers of one number."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds; it may jump."""
        self._clock = clock
        self._serving: Elapsed | None = None
        self._ends = 0

    def serves(self) -> None:
        """Note that the worker accepts connections."""
        self._serving = Elapsed(self._clock)

    def ended(self) -> float:
        """Note that the worker has ended, or could not be started. Return the delay of the next start in seconds."""
        if self._serving is not None and self._serving.seconds() >= STABLE_S:
            self._ends = 0
        self._serving = None
        self._ends += 1
        return 0.0 if self._ends == 1 else min(MAX_DELAY_S, 2.0 ** min(self._ends - 2, 10))
