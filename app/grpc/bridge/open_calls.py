"""The calls whose handlers run, each in a task of its own."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class OpenCalls:
    """Owned by the event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, handler: Coroutine[Any, Any, Any], done: Callable[[asyncio.Task[Any]], None]) -> asyncio.Task[Any]:
        """Runs a handler. `done` is called when it has ended in whatever way, even if it was cancelled unbegun, and
        calls `end`.
        """
        task = asyncio.get_running_loop().create_task(handler)
        self._tasks.add(task)
        task.add_done_callback(done)
        return task

    def end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)

    def cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def ended(self, timeout_s: float) -> int:
        """Waits for the end of all; how many there still are."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        return len(self._tasks)
