"""Measure the seconds since an event, by a clock that may jump."""

from collections.abc import Callable


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
