"""Whether the event loop is held up: a clock on the loop that notes by how much each of its ticks is late."""

import asyncio
from collections.abc import Callable

from app.observability.metrics import Histogram

# While requests are under way a hold-up of a tick's length is seen for certain, a shorter one now and then; an idle
# process is hardly woken.
_TICK_S = 0.01
_IDLE_TICK_S = 0.25


class LoopWatch:
    """`lag_seconds`: how late the ticks were. Owned by the event loop."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self.lag_seconds = Histogram()

    async def watch(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + (_TICK_S if self._is_busy() else _IDLE_TICK_S)
            await asyncio.sleep(due_s - loop.time())
            self.lag_seconds.observe(max(0.0, loop.time() - due_s))
