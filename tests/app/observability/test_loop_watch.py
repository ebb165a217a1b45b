"""A loop that is held up is seen, one that is not is not."""

import asyncio
import time
from bisect import bisect_left

from app.observability.loop_watch import LoopWatch
from app.observability.metrics import SECONDS_BUCKETS, Histogram
from app.server.build import running_beside


def at_least(lag: Histogram, seconds: float) -> int:
    """How many ticks were so late."""
    return sum(lag.counts[bisect_left(SECONDS_BUCKETS, seconds) + 1 :])


def test_a_block_of_the_loop_is_seen() -> None:
    async def run() -> tuple[Histogram, int]:
        watch = LoopWatch(lambda: True)
        async with running_beside(watch.watch()):
            await asyncio.sleep(0.03)
            before = at_least(watch.lag_seconds, 0.025)
            time.sleep(0.06)  # noqa: ASYNC251 - what is to be seen
            await asyncio.sleep(0.02)
            return watch.lag_seconds, before

    lag, before = asyncio.run(run())
    assert at_least(lag, 0.025) > before
    assert lag.total >= 0.045


def test_an_idle_loop_is_hardly_woken_and_the_watch_ends() -> None:
    async def run() -> tuple[int, int]:
        idle, busy = LoopWatch(lambda: False), LoopWatch(lambda: True)
        async with running_beside(idle.watch()), running_beside(busy.watch()):
            await asyncio.sleep(0.3)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        seen = sum(busy.lag_seconds.counts)
        await asyncio.sleep(0.03)
        assert sum(busy.lag_seconds.counts) == seen
        return sum(idle.lag_seconds.counts), seen

    ticks_idle, ticks_busy = asyncio.run(run())
    assert ticks_idle in (1, 2)
    assert 5 <= ticks_busy <= 30
