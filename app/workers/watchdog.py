"""Kill a worker whose event loop is blocked: orders, drains and counts would wait for it."""

import asyncio
from collections.abc import Callable

import structlog

from app.workers.messages import CheckLoop, LoopRuns
from frameworks.core.channel.messages import ChannelLost
from frameworks.models.replicas.control import ControlLink, Workers

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0
MAX_MISSED = 60
"""Checks in a row without an answer, after which a worker is ended."""


class Watchdog:
    """Ask each worker at intervals whether its loop runs. Owned by the event loop.

    It counts its own intervals, not the time: a machine that is suspended loses no worker.
    """

    def __init__(
        self,
        workers: Workers,
        kill: Callable[[int], None],
        interval_s: float = INTERVAL_S,
        max_missed: int = MAX_MISSED,
    ) -> None:
        """`kill(number)`: ends a worker, which is replaced then."""
        self._workers = workers
        self._kill = kill
        self._interval_s = interval_s
        self._max_missed = max_missed
        self._missed: dict[ControlLink, int] = {}
        """By worker whose answer is awaited."""

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            for link in list(self._workers.links.values()):
                self._check(link)

    def _check(self, link: ControlLink) -> None:
        missed = self._missed.get(link)
        if missed is None:
            self._missed[link] = 0
            link.start(self._ask(link))
            return
        self._missed[link] = missed + 1
        if missed + 1 == self._max_missed:
            log.error("worker is ended: its event loop is blocked", worker=link.number, checks=self._max_missed)
            self._kill(link.number)

    async def _ask(self, link: ControlLink) -> None:
        try:
            await link.ask(CheckLoop)
        except ChannelLost:
            pass
        finally:
            self._missed.pop(link, None)


def answer_checks(link: ControlLink) -> None:
    """Answer the checks in a worker."""
    link.answer(CheckLoop, _answer)


async def _answer(check: CheckLoop) -> LoopRuns:
    return LoopRuns(check.id)
