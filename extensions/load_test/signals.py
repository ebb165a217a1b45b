"""End a run at the first signal, and the process at the second."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from extensions.load_test.screen import SHOW_CURSOR

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupting(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call `interrupt` in the event loop at the first SIGINT or SIGTERM; end the process at the second.

    The handlers are those of the process: they work while a terminal or a file blocks the event loop.
    """
    loop = asyncio.get_running_loop()
    is_first = True

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal is_first
        if not is_first:
            _end(number)
        is_first = False
        loop.call_soon_threadsafe(interrupt)

    previous: dict[signal.Signals, Any] = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end(number: int) -> NoReturn:
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), SHOW_CURSOR.encode())
    os._exit(128 + number)
