"""Plan the send times of an open loop, and wait for each with a precision of some 0.1 ms."""

import asyncio
import ctypes
import os
import random
import struct
import sys
import time
from collections.abc import Callable, Iterator


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


_CLOCK_MONOTONIC = 1
_NONBLOCK_AND_CLOEXEC = 0o4000 | 0o2000000
_NANOSECONDS = 1_000_000_000
_MIN_WAIT_NS = 1


class Timer:
    """Calls a function at a time of `time.monotonic`. Event loops round waits to milliseconds.

    Uses Linux' timerfd, and elsewhere the event loop's timers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._handle: asyncio.TimerHandle | None = None
        self._library, self._descriptor = _open_timer()
        if self._descriptor is not None:
            loop.add_reader(self._descriptor, self._expire)

    def set(self, at_s: float) -> None:
        """Call at this time; replaces an earlier call of this method."""
        wait_s = at_s - time.monotonic()
        if self._descriptor is not None and self._library is not None:
            wait_ns = max(_MIN_WAIT_NS, int(wait_s * _NANOSECONDS))
            # struct itimerspec: interval, then the first expiration.
            value = struct.pack("qqqq", 0, 0, *divmod(wait_ns, _NANOSECONDS))
            self._library.timerfd_settime(self._descriptor, 0, value, None)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(0.0, wait_s), self._call)

    def close(self) -> None:
        """End the timer without a call."""
        if self._handle is not None:
            self._handle.cancel()
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _expire(self) -> None:
        if self._descriptor is not None:
            try:
                os.read(self._descriptor, 8)
            except BlockingIOError:
                # Set again since it expired.
                return
            self._call()


def _open_timer() -> tuple[ctypes.CDLL | None, int | None]:
    if not sys.platform.startswith("linux"):
        return None, None
    try:
        library = ctypes.CDLL(None, use_errno=True)
        descriptor = library.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_AND_CLOEXEC)
    except (OSError, AttributeError):
        return None, None
    return (library, descriptor) if descriptor >= 0 else (None, None)
