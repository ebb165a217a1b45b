"""Add up the counts of all workers in the supervisor: /metrics, /models and statistics are one view of the server."""

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from app.observability.process_counts import ProcessCounts
from app.observability.tallies import RequestTallies
from app.observability.visible_counts import Sum
from app.workers.messages import CollectTallies, ForgetModel, Tallies, TalliesChanged, TalliesReport
from app.workers.tallies.tallies import SERIES, WorkerTallies
from frameworks.core.channel.messages import ChannelError
from frameworks.core.errors import RoundhouseError
from frameworks.models.replicas.control import ControlLink, Workers
from frameworks.models.versions.slot import ModelSlot
from memory.host import bytes_together

COLLECT_S = 1.0
"""How long a refresh waits for a worker, whose last report is used then."""


class MergedTallies(RequestTallies):
    """The counts of the server as of the last refresh. Owned by the event loop.

    A counter never decreases. The counts of lost workers are kept by number. Floats are added in the order of numbers,
    because another order changes the last digit of their sum. Only `forget` drops counts.
    """

    def __init__(
        self,
        workers: Workers,
        own: RequestTallies,
        own_process: Callable[[], ProcessCounts],
        collect_s: float = COLLECT_S,
    ) -> None:
        """`own`, `own_process`: of the supervisor."""
        super().__init__()
        self._own = own
        self._own_process = own_process
        self._collect_s = collect_s
        self._own_report = _Report()
        self._reports: dict[ControlLink, _Report] = {}
        self._kept: dict[int, _Report] = {}
        """Those of lost workers, by number."""
        self._has_changed = False
        self._total = WorkerTallies()
        self._process = ProcessCounts()
        self._forgets = itertools.count(1)
        self._lock = asyncio.Lock()
        self._collections = itertools.count(1)
        self._last_collection = 0
        self._last_complete = 0
        workers.on_connect(self._connect)
        workers.on_joined(self._join)
        workers.on_left(self._keep)

    async def refresh(self) -> None:
        """Collect the counts of all workers, at most COLLECT_S. Calls that wait share one collection."""
        before = self._last_collection
        async with self._lock:
            if self._last_complete > before:  # it began after this call
                return
            number = self._last_collection = next(self._collections)
            async with asyncio.TaskGroup() as group:
                for link in self._reports:
                    group.create_task(self._collect(link))
            self._merge()
            self._last_complete = number

    def process_counts(self) -> ProcessCounts:
        """Return the counts of all processes, except those of requests."""
        return self._process

    def memory_bytes(self) -> int:
        """Return the memory that the supervisor and its workers take together. Any thread may call it."""
        return bytes_together([os.getpid(), *(link.pid for link in tuple(self._reports) if link.pid)])

    def requests_of(self, slot: ModelSlot, tenant: str) -> tuple[int, int]:
        """Override RequestTallies."""
        return self._total.held.get((slot.name, tenant), (0, 0))

    def requests_by_tenant(self, slot: ModelSlot) -> dict[str, tuple[int, int]]:
        """Override RequestTallies."""
        return {tenant: held for (model, tenant), held in self._total.held.items() if model == slot.name}

    def forget(self, model: str) -> None:
        """Drop the counts of a deleted model in all processes, also in reports that are on the way."""
        super().forget(model)
        self._own.forget(model)
        self._total.forget(model)
        number = next(self._forgets)
        for kept in self._kept.values():
            kept.tallies().forget(model)
        for link, report in self._reports.items():
            report.forget(model, number)
            link.send(ForgetModel(number, model))

    async def _collect(self, link: ControlLink) -> None:
        try:
            async with asyncio.timeout(self._collect_s):
                reply = await link.ask(CollectTallies)
        except (TimeoutError, ChannelError, RoundhouseError, RuntimeError):  # logged by the worker
            return
        if isinstance(reply, Tallies):
            self._receive(link, reply.report)

    def _connect(self, link: ControlLink) -> None:
        link.handle(TalliesChanged, partial(self._changed, link))

    def _changed(self, link: ControlLink, message: TalliesChanged) -> None:
        self._receive(link, message.report)

    def _join(self, link: ControlLink) -> None:
        self._reports.setdefault(link, _Report())

    def _receive(self, link: ControlLink, report: TalliesReport) -> None:
        """Store a report. The first one may arrive before `_join`, none after `_keep`."""
        if link in self._reports or not link.lost.done():
            self._has_changed |= self._reports.setdefault(link, _Report()).receive(report)

    def _keep(self, link: ControlLink) -> None:
        report = self._reports.pop(link, None)
        if report is not None:
            self._kept.setdefault(link.number, _Report()).keep(report)
            self._has_changed = True

    def _merge(self) -> None:
        own = WorkerTallies.read(self._own, ()).encode()
        self._has_changed |= self._own_report.receive(TalliesReport(own, self._own_process(), 0))
        groups = [[self._own_report], *self._groups()]
        process = [_sum([each.process for each in group], ProcessCounts) for group in groups]
        self._process = _sum(process, ProcessCounts)
        if self._has_changed:
            tallies = [_sum([each.tallies() for each in group], WorkerTallies) for group in groups]
            self._total = _sum(tallies, WorkerTallies)
            for name in SERIES:
                _replace(getattr(self, name), getattr(self._total, name))
            self.inflight = self._total.inflight
            self._has_changed = False

    def _groups(self) -> list[list["_Report"]]:
        """Return the reports of the workers with each number, in the order of numbers and of starts."""
        groups = {number: [kept] for number, kept in self._kept.items()}
        for link, report in self._reports.items():
            groups.setdefault(link.number, []).append(report)
        return [groups[number] for number in sorted(groups)]


class _Report:
    """The last report of a worker, or the counters that are kept of lost ones. `process`: of that report."""

    def __init__(self) -> None:
        self.process = ProcessCounts()
        self._content = WorkerTallies().encode()
        self._decoded: WorkerTallies | None = None
        # Models that the worker had not forgotten at this report, by the number of the ForgetModel.
        self._forgets: dict[str, int] = {}

    def receive(self, report: TalliesReport) -> bool:
        """Replace the report. Returns whether the counts of requests have changed."""
        self.process = report.process
        left = {name: number for name, number in self._forgets.items() if number > report.forgotten}
        if (report.content, left) == (self._content, self._forgets):
            return False
        self._content, self._forgets, self._decoded = report.content, left, None
        return True

    def keep(self, ended: "_Report") -> None:
        """Add the counters of a lost worker, without its gauges."""
        tallies = self.tallies()
        tallies.merge(ended.tallies())
        tallies.drop_gauges()
        self.process.merge(ended.process)
        self.process.drop_gauges()

    def forget(self, model: str, number: int) -> None:
        """Drop the counts of a deleted model from this report, and from later ones until the worker has done so."""
        self._forgets[model] = number
        if self._decoded is not None:
            self._decoded.forget(model)

    def tallies(self) -> WorkerTallies:
        """Return the counts. Most reports are replaced before they are read, so this decodes them."""
        if self._decoded is None:
            self._decoded = WorkerTallies.decode(self._content)
            for model in self._forgets:
                self._decoded.forget(model)
        return self._decoded


def _sum(parts: Sequence[Sum], new: type[Sum]) -> Sum:
    """Return the sum of the parts, or the only one itself."""
    if len(parts) == 1:
        return parts[0]
    total = new()
    for part in parts:
        total.merge(part)
    return total


def _replace(own: dict[Any, Any], new: dict[Any, Any]) -> None:
    """Set all items of a dictionary. Its keys keep their order, and with it the sums over them their last digit."""
    for key in own.keys() - new.keys():
        del own[key]
    dict.update(own, new)
