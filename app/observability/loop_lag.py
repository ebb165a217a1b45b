"""Measure the lag of the event loop: how late its timers fire."""

import asyncio
from collections.abc import Callable

from app.observability.tallies import Histogram

# With requests in progress, every block of the loop longer than this is seen. An idle process is rarely woken.
_BUSY_INTERVAL_S = 0.01
_IDLE_INTERVAL_S = 0.25


class LoopLagMonitor:
    """Measures the lag. `lag_seconds`: delay of each timer. Owned by the event loop."""

    def __init__(self, inflight: Callable[[], int]) -> None:
        """`inflight`: returns the number of requests in progress."""
        self._inflight = inflight
        self.lag_seconds = Histogram()

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + (_BUSY_INTERVAL_S if self._inflight() else _IDLE_INTERVAL_S)
            await asyncio.sleep(due_s - loop.time())
            self.lag_seconds.observe(max(0.0, loop.time() - due_s))
