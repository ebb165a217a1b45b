"""Back off from what fails again and again: delays that grow with the failures in a row, by a clock that may jump."""

import time
from collections.abc import Callable, Sequence

MODEL_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""After the first failure in a row, the second …: of a load, or of a process that loads a model."""

STABLE_S = 60.0
"""Time of service after which a crash counts as the first one in a row."""

_MIN_RETRY_AFTER_S = 1.0


def delay_after(failures: int, delays_s: Sequence[float] = MODEL_DELAYS_S) -> float:
    """Return the seconds until the next try. `failures`: in a row; at most the last of `delays_s` is returned."""
    return delays_s[min(failures, len(delays_s)) - 1] if failures else 0.0


class Elapsed:
    """Seconds since an event. A clock that is set back starts the time again, so that no wait grows."""

    __slots__ = ("_clock", "_start_s")

    def __init__(self, clock: Callable[[], float]) -> None:
        """The event is now."""
        self._clock = clock
        self._start_s = clock()

    def seconds(self) -> float:
        """Return the seconds since the event, never below 0."""
        now_s = self._clock()
        self._start_s = min(self._start_s, now_s)
        return now_s - self._start_s


class RestartBackoff:
    """Delays between the crashes of a process and its next starts. A start that fails is a crash too."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        delays_s: Sequence[float] = MODEL_DELAYS_S,
        stable_s: float = STABLE_S,
    ) -> None:
        """`clock`: seconds; it may jump. `stable_s`: service after which a crash counts as the first one in a row."""
        self._clock = clock
        self._delays_s = delays_s
        self._stable_s = stable_s
        self._serving: Elapsed | None = None
        self._down: Elapsed | None = None
        self.crashes = 0
        """Crashes in a row."""

    @property
    def expects_restart_soon(self) -> bool:
        """Whether requests may wait for the next start: only after the first crash in a row."""
        return self.crashes == 1

    @property
    def delay_s(self) -> float:
        """The delay of the start after the last crash; 0.0 before the first crash."""
        return delay_after(self.crashes, self._delays_s)

    def serves(self) -> None:
        """Note that the process accepts requests."""
        self._serving, self._down = Elapsed(self._clock), None

    def crashed(self) -> None:
        """Note that the process ended, or that its start failed."""
        if self._serving is not None and self._serving.seconds() >= self._stable_s:
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
