"""Pass work from the threads of calls to the event loop and wake the threads, many at a time."""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from frameworks.core.tenants import Tenant
from frameworks.scheduling.byte_limit import ByteLimit

_yield_cpu = getattr(os, "sched_yield", partial(time.sleep, 0))


class LoopBridge:
    """Run the handlers of calls on the event loop. One per server; the event loop owns the tasks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, byte_limit_of: Callable[[Tenant], ByteLimit]) -> None:
        """`byte_limit_of`: returns the limit that counts a tenant's responses that are not sent."""
        self.byte_limit_of = byte_limit_of
        self._loop = loop
        self._callbacks: deque[Callable[[], object]] = deque()
        self._is_scheduled = False
        self._had_many = False
        self._to_wake: list[threading.Lock] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Schedule a callback on the event loop, in the order of the calls. Thread-safe; it must not raise.

        Raises RuntimeError if the loop is closed.
        """
        self._callbacks.append(callback)
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._run_callbacks)
            except RuntimeError:
                self._is_scheduled = False
                raise

    def wake_soon(self, lock: threading.Lock) -> None:
        """Wake the thread that waits to acquire `lock`. Call it on the loop only; only the loop releases such locks."""
        if not self._to_wake:
            self._loop.call_soon(self._wake_threads)
        self._to_wake.append(lock)

    def start(
        self, handler: Coroutine[Any, Any, Any], on_done: Callable[[asyncio.Task[Any]], None]
    ) -> asyncio.Task[Any]:
        """Run a handler in a task. `on_done` is called at its end, however it ended, and must call `finish`."""
        task = self._loop.create_task(handler)
        self._tasks.add(task)
        task.add_done_callback(on_done)
        return task

    def finish(self, task: asyncio.Task[Any]) -> None:
        """Forget a task that has ended."""
        self._tasks.discard(task)

    def cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def wait_finished(self, timeout_s: float) -> int:
        """Wait until all tasks have ended; return how many still run after `timeout_s`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        return len(self._tasks)

    def _run_callbacks(self) -> None:
        # The first thread wakes the loop while other threads are about to call. On one core, each of them would be
        # served alone, with thread switches in between: up to twice the CPU. So the loop lets them run first. For a
        # single caller it does not: where other processes keep the core busy, they would run for some milliseconds.
        if self._had_many or len(self._callbacks) > 1:
            _yield_cpu()
        # Threads that call from here on wake the loop again, so the flag must change before the count is taken.
        self._is_scheduled = False
        count = len(self._callbacks)
        self._had_many = count > 1
        for _ in range(count):
            self._callbacks.popleft()()

    def _wake_threads(self) -> None:
        locks, self._to_wake = self._to_wake, []
        for lock in locks:
            # A free lock was woken twice in this iteration, or its thread does not wait and will see the change.
            if lock.locked():
                lock.release()
