"""Async tests: each runs in a fresh loop, must end, and must leave no device thread behind."""

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec

Arguments = ParamSpec("Arguments")


def in_loop(test: Callable[Arguments, Awaitable[None]]) -> Callable[Arguments, None]:
    """Makes a test of an async function."""

    @functools.wraps(test)
    def run(*arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        async def whole() -> None:
            async with asyncio.timeout(20):
                await test(*arguments, **options)

        asyncio.run(whole())
        assert lanes_end()

    return run


def task(coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """Lets a coroutine run beside the test."""
    return asyncio.get_running_loop().create_task(coroutine)


async def soon(condition: Callable[[], bool]) -> None:
    """Returns when the condition holds; a TimeoutError where it does not within 5 s."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - threads that know no loop make it true
            await asyncio.sleep(0.001)


def lanes_end() -> bool:
    """Whether every device thread is gone, or goes within a moment: the loop hears of its end before it has ended."""
    deadline_s = time.monotonic() + 5
    while any(thread.name.startswith("worker-") for thread in threading.enumerate()):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.001)
    return True
