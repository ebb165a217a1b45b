"""Launch processes of `tests.support.engine_child`, and wait for them."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from frameworks.engine.process.client.launch import EngineProcess, LaunchOptions, launch
from frameworks.engine.process.exit_reason import ExitReason
from tests.support.loops import HANGS_AFTER_S

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="wants Linux's /proc")


def options(act: str, **others: Any) -> LaunchOptions:
    """Return options for a process of tests.support.engine_child."""
    named = {"module": "tests.support.engine_child", "environment": {"ENGINE_CHILD": act}} | others
    return LaunchOptions("minilm", **named)


@asynccontextmanager
async def prepared(act: str = "wait_for_end", **others: Any) -> AsyncIterator[EngineProcess]:
    """Launch a process and wait until it is prepared. It has ended and is reaped after the block."""
    process = launch(options(act, **others))
    try:
        with process.connection as connection:
            assert await asyncio.to_thread(connection.recv, 1) == b"r"
            yield process
    finally:
        process.kill("end of the test")
        async with asyncio.timeout(HANGS_AFTER_S):
            await process.wait_ended()
    assert not psutil.pid_exists(process.pid)


async def end_of(act: str, **others: Any) -> ExitReason:
    """Return how a process ends that acts at once."""
    process = launch(options(act, **others))
    with process.connection:
        async with asyncio.timeout(HANGS_AFTER_S):
            return await process.wait_ended()
