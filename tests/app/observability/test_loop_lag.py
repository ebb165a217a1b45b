"""Lag of the event loop."""

import asyncio
import time
from bisect import bisect_left

from app.observability.background import background_task
from app.observability.loop_lag import LoopLagMonitor
from app.observability.tallies import SECONDS_BUCKETS, Histogram


def at_least(lag: Histogram, seconds: float) -> int:
    """Return the number of timers that were at least so late."""
    return sum(lag.counts[bisect_left(SECONDS_BUCKETS, seconds) + 1 :])


def test_monitor_measures_blocked_loop() -> None:
    async def run() -> tuple[Histogram, int]:
        monitor = LoopLagMonitor(lambda: True)
        async with background_task(monitor.run()):
            await asyncio.sleep(0.03)
            before = at_least(monitor.lag_seconds, 0.025)
            time.sleep(0.06)  # noqa: ASYNC251 - blocks the loop on purpose
            await asyncio.sleep(0.02)
            return monitor.lag_seconds, before

    lag, before = asyncio.run(run())
    assert at_least(lag, 0.025) > before
    assert lag.total >= 0.045


def test_monitor_of_idle_loop_fires_rarely() -> None:
    async def run() -> tuple[int, int]:
        loop, now_s = asyncio.get_running_loop(), 0.0
        loop.time = lambda: now_s  # type: ignore[method-assign]
        idle, busy = LoopLagMonitor(lambda: False), LoopLagMonitor(lambda: True)
        async with background_task(idle.run()), background_task(busy.run()):
            await loop_iterations()
            for _ in range(30):
                now_s += 0.01
                await loop_iterations()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        seen = sum(busy.lag_seconds.counts)
        now_s += 0.03
        await loop_iterations()
        assert sum(busy.lag_seconds.counts) == seen
        return sum(idle.lag_seconds.counts), seen

    assert asyncio.run(run()) == (1, 30)


async def loop_iterations() -> None:
    """Let the tasks run whose timers are due."""
    for _ in range(5):
        await asyncio.sleep(0)
