"""From the calls' threads to the event loop and back, many at a time."""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

_let_others_run = getattr(os, "sched_yield", partial(time.sleep, 0))


class LoopBridge:
    """One for a server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._work: deque[Callable[[], object]] = deque()
        self._is_woken = False
        self._was_many = False
        self._waiting: list[threading.Lock] = []

    def to_loop(self, work: Callable[[], object]) -> None:
        """Lets the event loop do this soon, in the order in which it is asked. From any thread; `work` never raises.

        Raises RuntimeError if the loop is closed.
        """
        self._work.append(work)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._do_all)
            except RuntimeError:
                self._is_woken = False
                raise

    def wake(self, something: threading.Lock) -> None:
        """Lets the thread go on that waits to acquire this. From the loop only, which alone releases it."""
        if not self._waiting:
            self._loop.call_soon(self._wake_all)
        self._waiting.append(something)

    def _do_all(self) -> None:
        # The first thread to ask has woken the loop while others are about to ask. On one core they would be served one
        # by one, each with changes of threads: that takes up to twice the CPU. A caller who is alone waits for nobody:
        # where other work keeps the core busy, that work would run for some milliseconds first.
        if self._was_many or len(self._work) > 1:
            _let_others_run()
        # From here on whoever asks wakes the loop again: first this, then the count.
        self._is_woken = False
        count = len(self._work)
        self._was_many = count > 1
        for _ in range(count):
            self._work.popleft()()

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for something in waiting:
            # Woken twice in this round, or not waiting at all: then it will find what it is woken for.
            if something.locked():
                something.release()
