"""Plan the send times of an open loop. They do not depend on the responses."""

import random
from collections.abc import Iterator


def steady(per_second: float) -> Iterator[float]:
    """Yield seconds after the start, in equal steps."""
    number = 0
    while True:
        # Multiplied, not added up: a sum of rounded steps would drift.
        yield number / per_second
        number += 1


def poisson(per_second: float, seed: int) -> Iterator[float]:
    """Yield seconds after the start of independent arrivals: exponential gaps with the mean 1 / per_second."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    after_s = 0.0
    while True:
        after_s += draw.expovariate(per_second)
        yield after_s


class Schedule:
    """Hands planned send times out as they fall due. `arrivals`: seconds after the start, ascending."""

    def __init__(self, arrivals: Iterator[float], start_s: float) -> None:
        self._arrivals = arrivals
        self._start_s = start_s
        self.next_s = start_s + next(arrivals)
        """Planned time of the next request, on the clock of `start_s`."""

    def due(self, now_s: float, end_s: float) -> Iterator[float]:
        """Yield the planned times until now that lie before the end, each once."""
        while self.next_s <= now_s and self.next_s < end_s:
            planned_s = self.next_s
            self.next_s = self._start_s + next(self._arrivals)
            yield planned_s
