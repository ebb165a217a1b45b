"""In a server that tests start: how long the event loop is held, measured by a timer that is due every 5 ms.

A hold is the time that the timer is late, but no more than the CPU time that the whole process used meanwhile. So other
processes on the same cores do not count; a thread of the server that holds the interpreter's lock does.
"""

import asyncio
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

INTERVAL_S = 0.005
FILE_VARIABLE = "TEST_HELD_LOOP_FILE"
"""The environment variable that names the file of a `HeldLoop`."""
_VALUE = struct.Struct("<d")


class HeldLoop:
    """The longest hold, in a file of eight bytes that server and test both map."""

    def __init__(self, file: Path) -> None:
        """Create the file if it is absent."""
        if not file.exists():
            file.write_bytes(_VALUE.pack(0.0))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), _VALUE.size)

    @property
    def longest_s(self) -> float:
        """Seconds."""
        [seconds] = _VALUE.unpack(self._map[:])
        return float(seconds)

    def reset(self) -> None:
        """Forget the longest hold."""
        self._map[:] = _VALUE.pack(0.0)

    async def watch(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        used_s = time.process_time()
        while True:
            due_s = loop.time() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            late_s = loop.time() - due_s
            before_s, used_s = used_s, time.process_time()
            hold_s = min(late_s, used_s - before_s)
            if hold_s > self.longest_s:
                self._map[:] = _VALUE.pack(hold_s)


def watch_loop(file: Path) -> None:
    """Measure in the server that this process becomes, beside its own measurement of the lag."""
    from app.observability.loop_lag import LoopLagMonitor

    held, run = HeldLoop(file), LoopLagMonitor.run

    async def run_both(monitor: LoopLagMonitor) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(held.watch())
            group.create_task(run(monitor))

    LoopLagMonitor.run = run_both  # type: ignore[method-assign,assignment]


def main(serve: Callable[[], int]) -> int:
    """Serve, with the measurement if the environment names its file."""
    if file := os.environ.pop(FILE_VARIABLE, ""):
        watch_loop(Path(file))
    return serve()


if __name__ == "__main__":
    import sys

    from app.cli.commands import main as serve

    sys.exit(main(serve))
