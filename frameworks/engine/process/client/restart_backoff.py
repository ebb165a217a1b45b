"""Decide when a process that crashed is started again: after 1 s, 2 s, 4 s … 60 s."""

import time
from collections.abc import Callable

from frameworks.engine.process.elapsed import Elapsed

FIRST_DELAY_S = 1.0
MAX_DELAY_S = 60.0

STABLE_S = 60.0
"""Time of service after which a crash counts as the first one in a row."""

_MIN_RETRY_AFTER_S = 1.0


class RestartPolicy:
    """Delays between the crashes of one model's process and its next starts. A start that fails is a crash too."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, first_delay_s: float = FIRST_DELAY_S) -> None:
        """`clock`: seconds; it may jump. `first_delay_s`: after the first crash; it doubles with each further one."""
        self._clock = clock
        self._first_delay_s = first_delay_s
        self._serving: Elapsed | None = None
        self._down: Elapsed | None = None
        self.crashes = 0
        """Crashes in a row, with less than STABLE_S of service between them."""

    @property
    def expects_restart_soon(self) -> bool:
        """Whether requests may wait for the next start: only after the first crash in a row."""
        return self.crashes == 1

    @property
    def delay_s(self) -> float:
        """The delay of the start after the last crash; 0.0 before the first crash."""
        if not self.crashes:
            return 0.0
        return min(MAX_DELAY_S, self._first_delay_s * 2.0 ** min(self.crashes - 1, 10))

    def serves(self) -> None:
        """Note that the model is loaded and the process accepts requests."""
        self._serving, self._down = Elapsed(self._clock), None

    def crashed(self) -> None:
        """Note that the process ended, or that its start failed."""
        if self._serving is not None and self._serving.seconds() >= STABLE_S:
            self.crashes = 0
        self.crashes += 1
        self._serving, self._down = None, Elapsed(self._clock)

    def start_in_s(self) -> float:
        """Return the seconds until the process is to be started; 0.0 where it may be started now."""
        return 0.0 if self._down is None else max(0.0, self.delay_s - self._down.seconds())

    def retry_after_s(self, load_s: float) -> float:
        """Return the seconds after which a request is likely to be accepted, at least 1.0.

        `load_s`: expected seconds of a start.
        """
        if self._down is None:
            return _MIN_RETRY_AFTER_S
        return max(_MIN_RETRY_AFTER_S, self.delay_s + load_s - self._down.seconds())
