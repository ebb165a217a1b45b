"""Check, while the server is idle, that all leased memory was returned: a leak is found where it starts."""

import asyncio
from collections.abc import Callable

import structlog

from memory.garbage import collect

log = structlog.get_logger(__name__)

_INTERVAL_S = 5.0


class IntegrityMonitor:
    """Runs integrity checks. `failures`: number of checks that failed. Owned by the event loop."""

    def __init__(self, is_idle: Callable[[], bool], checks: list[Callable[[], None]]) -> None:
        """`checks`: called only while `is_idle()`; raise AssertionError with the reason."""
        self._is_idle = is_idle
        self._checks = checks
        self.failures = 0

    async def run(self) -> None:
        """Run all checks every five seconds."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self.check_if_idle()

    def check_if_idle(self) -> None:
        """Run all checks, unless a request is in progress."""
        if self._is_idle():
            for check in self._checks:
                self.check(check)

    def check(self, check: Callable[[], None]) -> None:
        """Run one check, idle or not. Log a failure as an error: it is a bug of the server, never of a caller."""
        try:
            _check_twice(check)
        except AssertionError as error:
            self.failures += 1
            log.error("integrity check failed", reason=str(error))


def _check_twice(check: Callable[[], None]) -> None:
    """Run a check again after a garbage collection: memory in a reference cycle is not leaked."""
    try:
        check()
    except AssertionError:
        collect()
        check()
