"""Run a coroutine as a task for the duration of a block."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def background_task(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run `work` as a task within the block; cancel it at the end and wait until it has ended."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
