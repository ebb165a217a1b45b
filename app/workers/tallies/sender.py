"""Report the counts of a worker to the supervisor: when it asks, and every second while they change."""

import asyncio
import time
from collections.abc import Callable

from app.observability.process_counts import ProcessCounts
from app.observability.tallies import RequestTallies
from app.workers.messages import CollectTallies, ForgetModel, Tallies, TalliesChanged, TalliesReport
from app.workers.tallies.tallies import WorkerTallies
from frameworks.replicas.control import ControlLink
from frameworks.replicas.manager import ReplicaManager

_INTERVAL_S = 1.0
# Callers of GET /models may repeat it without a pause: reports take at most this share of the worker's time.
_SHARE = 0.1
_LONGEST_PAUSE_S = 0.1


class TalliesSender:
    """Owned by the worker's event loop."""

    def __init__(
        self,
        link: ControlLink,
        tallies: RequestTallies,
        models: ReplicaManager,
        process_counts: Callable[[], ProcessCounts],
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Register the handlers of the link. `cpu_clock`: CPU time in seconds."""
        self._link = link
        self._tallies = tallies
        self._models = models
        self._process_counts = process_counts
        self._cpu_clock = cpu_clock
        self._sent = b""
        self._forgotten = 0
        self._next_s = 0.0
        link.answer(CollectTallies, self._collect)
        link.handle(ForgetModel, self._forget)

    async def run(self) -> None:
        """Report changes every second until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(_INTERVAL_S)
                self.send_changes()
        finally:
            self.send_changes()

    def send_changes(self) -> None:
        """Report the counts, unless they are those of the last report."""
        before = self._sent
        report = self._report()
        if report.content != before:
            self._link.send(TalliesChanged(report))

    async def _collect(self, request: CollectTallies) -> Tallies:
        await asyncio.sleep(max(0.0, self._next_s - asyncio.get_running_loop().time()))
        return Tallies(request.id, self._report())

    def _report(self) -> TalliesReport:
        started_s = self._cpu_clock()
        self._models.report_uses()
        self._sent = WorkerTallies.read(self._tallies, self._models.slots).encode()
        pause_s = min(_LONGEST_PAUSE_S, (self._cpu_clock() - started_s) / _SHARE)
        self._next_s = asyncio.get_running_loop().time() + pause_s
        return TalliesReport(self._sent, self._process_counts(), self._forgotten)

    def _forget(self, message: ForgetModel) -> None:
        self._tallies.forget(message.name)
        self._forgotten = message.number
