"""Name the states of a version, note its failed loads, and when a request may retry them. Pure: takes the clock."""

from collections.abc import Callable
from enum import StrEnum

from frameworks.core.backoff import delay_after
from frameworks.core.errors import ModelFailed, OutOfMemory, RoundhouseError


class ModelState(StrEnum):
    """The state of a version, as /models and /health show it."""

    REGISTERED = "registered"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    UNLOADED = "unloaded"
    FAILED = "failed"


class LoadFailures:
    """The failures of a version since its last successful load. `last`: the error; None after another load."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds that never jump, as time.monotonic."""
        self._clock = clock
        self._failures = 0
        self._retry_at_s = 0.0
        self.last: RoundhouseError | None = None

    @property
    def retry_in_s(self) -> float:
        """Seconds until a request may retry the load."""
        return max(0.0, self._retry_at_s - self._clock())

    def record(self, failure: RoundhouseError) -> None:
        """Note a failure; each one in a row makes the time until the next retry longer."""
        self.last = failure
        self._failures += 1
        self._retry_at_s = self._clock() + delay_after(self._failures)

    def follow(self, failure: RoundhouseError | None, retry_in_s: float) -> None:
        """Take over the last failure, and the seconds until its retry, of the process that decides the loads."""
        self.last, self._retry_at_s = failure, self._clock() + retry_in_s

    def clear(self) -> None:
        """Forget all failures."""
        self.last, self._failures = None, 0

    def check_retry(self, model: str, reason: str | None, public_reason: str | None) -> None:
        """Raise ModelFailed or OutOfMemory while a request may not retry the load. `reason`: of the failed state."""
        left_s = self.retry_in_s
        if left_s > 0:
            retry = f"its load is retried in {left_s:.1f} s, or by POST /models/{model}/load"
            message, public = (f'model "{model}" failed: {each}; {retry}' for each in (reason, public_reason))
            if isinstance(self.last, OutOfMemory):
                raise OutOfMemory(message, public)
            raise ModelFailed(message, left_s, public)
