"""Detect an engine process that hangs: poll it for the duration of its longest run, with a deadline."""

import asyncio
import time
from collections.abc import Callable

from frameworks.engine.process.link import Link
from frameworks.engine.process.wire.messages import Ping, Pong

HANG = "hang"


class HangWatch:
    """Ends a process whose run takes longer than `max_batch_seconds`. Owned by the event loop.

    A run may hold the interpreter's lock of the process, which then answers nothing. So the answers have the same limit
    as the runs.
    """

    def __init__(self, link: Link, max_batch_seconds: float, is_busy: Callable[[], bool]) -> None:
        """`is_busy`: whether the process has requests."""
        self._link = link
        self._max_s = max_batch_seconds
        self._is_busy = is_busy
        self._loop = asyncio.get_running_loop()
        self._number = 0
        # When the unanswered question was sent; None if it was answered.
        self._asked_s: float | None = None
        self._timer = self._loop.call_later(self._period_s, self._look)

    @property
    def _period_s(self) -> float:
        return min(1.0, self._max_s / 4)

    def answered(self, message: Pong) -> None:
        """Note the answer of the process."""
        if message.number == self._number:
            self._asked_s = None
        self._check(message.running_s)

    def close(self) -> None:
        """Ask no more."""
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(self._period_s, self._look)
        now_s = time.monotonic()
        if self._asked_s is not None:
            self._check(now_s - self._asked_s)
        elif self._is_busy():
            self._number += 1
            self._asked_s = now_s
            self._link.send(Ping(self._number))

    def _check(self, seconds: float) -> None:
        if seconds > self._max_s:
            self.close()
            self._link.kill(HANG, f"a run took longer than max_batch_seconds ({self._max_s:g} s)")
