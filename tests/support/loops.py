"""Async tests: each runs in a fresh event loop, must end, and must leave no worker thread behind."""

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec

Arguments = ParamSpec("Arguments")

HANGS_AFTER_S = 60
"""No wait of a test takes as long, on any machine, unless something hangs."""


def in_loop(test: Callable[Arguments, Awaitable[None]]) -> Callable[Arguments, None]:
    """Make a test of an async function."""

    @functools.wraps(test)
    def run(*arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        async def whole() -> None:
            async with asyncio.timeout(10 * HANGS_AFTER_S):
                await test(*arguments, **options)

        asyncio.run(whole())
        assert worker_threads_end()

    return run


def task(coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """Run a coroutine beside the test."""
    return asyncio.get_running_loop().create_task(coroutine)


async def soon(condition: Callable[[], bool], within_s: float = HANGS_AFTER_S) -> None:
    """Wait until the condition holds. Raises TimeoutError after `within_s` seconds."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - threads without a loop make it true
            await asyncio.sleep(0.001)


async def queued(lock: asyncio.Lock, tasks: int = 1) -> None:
    """Wait until so many tasks wait for the lock. A task may need a thread before it does, which `settle` ignores."""
    await soon(lambda: len(lock._waiters or ()) == tasks)


async def settle() -> None:
    """Let the other tasks run until each of them waits for a thread, a timer or an event."""
    for _ in range(100):
        await asyncio.sleep(0)


def pass_time(seconds: float) -> None:
    """Let the clock of the loop jump ahead: timers due by then fire at once, in order.

    A timer of HANGS_AFTER_S that is passed in this way fires neither early nor late on any machine.
    """
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


def worker_threads_end() -> bool:
    """Wait for the end of all worker threads; False where one does not end.

    The loop is notified of a thread's end shortly before it.
    """
    deadline_s = time.monotonic() + HANGS_AFTER_S
    while any(thread.name.startswith("worker-") for thread in threading.enumerate()):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.001)
    return True
