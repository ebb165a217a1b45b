"""Add up the outcomes of requests, in memory that does not grow with their number."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from extensions.load_test.results.histogram import DurationHistogram

MAX_POINTS = 240
"""Points of the course over time. Beyond it, neighbours are merged and the interval is doubled."""

_FIRST_INTERVAL_S = 0.25
_MAX_TIMINGS = 12
_MAX_FAILURE_KINDS = 50
_TIMING = re.compile(r"([A-Za-z][\w-]{0,31}) *; *dur=(\d{1,9}(?:\.\d{1,9})?)")
_MAX_TIMING_CHARACTERS = 2048
_OTHER = (0, "other")


@dataclass(slots=True)
class Outcome:
    """One request. `code`: "" for a success. Times: seconds on the clock of the run; `planned_s`: of the send.

    `message`: that of the error, without characters that would control a terminal.
    """

    planned_s: float
    done_s: float
    status: int = 0
    code: str = ""
    server_timing: str = ""
    first_token_s: float | None = None
    last_token_s: float = 0.0
    tokens: int | None = None
    message: str = ""


@dataclass(slots=True)
class Point:
    """Requests that completed in one interval."""

    succeeded: int = 0
    failed: int = 0
    latency: DurationHistogram = field(default_factory=DurationHistogram)

    def add(self, other: "Point") -> None:
        """Merge another interval into this one."""
        self.succeeded += other.succeeded
        self.failed += other.failed
        self.latency.add(other.latency)


class Course:
    """Results over time, in intervals of equal length."""

    def __init__(self) -> None:
        self.interval_s = _FIRST_INTERVAL_S
        self.points: list[Point] = []

    def at(self, after_s: float) -> Point:
        """Return the interval that many seconds after the start."""
        while after_s >= self.interval_s * MAX_POINTS:
            self._halve()
        index = max(0, int(after_s / self.interval_s))
        while len(self.points) <= index:
            self.points.append(Point())
        return self.points[index]

    def _halve(self) -> None:
        for first, second in zip(self.points[::2], self.points[1::2], strict=False):
            first.add(second)
        self.points = self.points[::2]
        self.interval_s *= 2


class Tally:
    """Totals since `start_s`; outcomes of requests that were planned before it are ignored."""

    def __init__(self, start_s: float, cpu_s: Callable[[], float]) -> None:
        """`cpu_s`: CPU time of this process."""
        self._cpu_s = cpu_s
        self._cpu_at_start_s = cpu_s()
        self.start_s = start_s
        self.last_s = start_s
        """When the last request completed."""
        self.not_sent = 0
        """Planned requests for which no connection was free until the end."""
        self.failed = 0
        self.tokens = 0
        self.latency = DurationHistogram()
        """Of requests that succeeded."""
        self.first_token = DurationHistogram()
        self.per_token = DurationHistogram()
        self.lateness = DurationHistogram()
        """Of the load generator's own timers."""
        self.server_timings: dict[str, DurationHistogram] = {}
        self.failures: Counter[tuple[int, str]] = Counter()
        self.messages: dict[tuple[int, str], str] = {}
        """Message of the first failure of each kind."""
        self.course = Course()

    @property
    def succeeded(self) -> int:
        """Number of requests with a complete response without an error."""
        return self.latency.count

    @property
    def elapsed_s(self) -> float:
        """Seconds until the last response."""
        return self.last_s - self.start_s

    @property
    def per_second(self) -> float:
        """Responses without an error per second."""
        return self.succeeded / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second, of all requests together."""
        return self.tokens / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def cpu_part(self, now_s: float) -> float:
        """Return the part of one core that the load generator used since the start."""
        wall_s = now_s - self.start_s
        return (self._cpu_s() - self._cpu_at_start_s) / wall_s if wall_s > 0 else 0.0

    def record(self, outcome: Outcome) -> None:
        """Add one outcome."""
        if outcome.planned_s < self.start_s:
            return
        self.last_s = max(self.last_s, outcome.done_s)
        point = self.course.at(outcome.done_s - self.start_s)
        if outcome.code:
            self.failed += 1
            point.failed += 1
            kind = (outcome.status, outcome.code)
            if kind not in self.failures and len(self.failures) >= _MAX_FAILURE_KINDS:
                kind = _OTHER
            self.failures[kind] += 1
            self.messages.setdefault(kind, outcome.message)
            return
        latency_s = outcome.done_s - outcome.planned_s
        self.latency.record(latency_s)
        point.succeeded += 1
        point.latency.record(latency_s)
        self._record_tokens(outcome)
        if outcome.server_timing:
            self._record_timings(outcome.server_timing)

    def _record_tokens(self, outcome: Outcome) -> None:
        if outcome.tokens is not None:
            self.tokens += outcome.tokens
        if outcome.first_token_s is None:
            return
        self.first_token.record(outcome.first_token_s - outcome.planned_s)
        if outcome.tokens is not None and outcome.tokens > 1:
            self.per_token.record((outcome.last_token_s - outcome.first_token_s) / (outcome.tokens - 1))

    def _record_timings(self, header: str) -> None:
        for name, milliseconds in _TIMING.findall(header[:_MAX_TIMING_CHARACTERS]):
            timing = self.server_timings.get(name)
            if timing is None:
                if len(self.server_timings) == _MAX_TIMINGS:
                    continue
                timing = self.server_timings[name] = DurationHistogram()
            timing.record(float(milliseconds) / 1e3)
