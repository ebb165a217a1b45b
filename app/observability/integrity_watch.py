"""Looks, whenever nothing is under way, whether what was lent has come back: a leak is found where it begins."""

import asyncio
import gc
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

_EVERY_S = 5.0


class IntegrityWatch:
    """`failures` counts the looks that found something wrong. Owned by the event loop."""

    def __init__(self, is_idle: Callable[[], bool], checks: list[Callable[[], None]]) -> None:
        """`checks` raise AssertionError with what is wrong; they are called only while `is_idle()`."""
        self._is_idle = is_idle
        self._checks = checks
        self.failures = 0

    async def watch(self) -> None:
        """Looks every five seconds."""
        while True:
            await asyncio.sleep(_EVERY_S)
            self.look()

    def look(self) -> None:
        """One look. What is wrong is logged as an error: nothing a caller did can cause it."""
        if not self._is_idle():
            return
        for check in self._checks:
            self.look_at(check)

    def look_at(self, check: Callable[[], None]) -> None:
        """One check, whatever is under way."""
        try:
            _after_collection(check)
        except AssertionError as error:
            self.failures += 1
            log.error("integrity check failed", reason=str(error))


def _after_collection(check: Callable[[], None]) -> None:
    """What only the collector would find is nobody's fault; it is seldom asked for that."""
    try:
        check()
    except AssertionError:
        gc.collect()
        check()
