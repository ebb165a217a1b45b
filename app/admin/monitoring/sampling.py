"""Sample the server at intervals, and encode the events of each view once for all its readers."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import structlog

from app.admin.monitoring.event_encoding import (
    describe_model,
    describe_request,
    device_figures,
    event,
    history,
    sample_figures,
)
from app.admin.monitoring.request_log import MOST_FRESH, RequestLog
from app.admin.monitoring.sample_cells import CellReader
from app.admin.monitoring.sample_ring import INTERVAL_S, DeviceBytes, Sample, SampleRing
from app.admin.monitoring.statistics import totals
from app.admin.monitoring.visibility import ViewKey, shows_request, view_key
from app.admin.progress import visible_works
from app.admin.views import Views
from app.auth.principal import ANONYMOUS, Principal
from app.inference.lifecycle import ServerLifecycle
from app.observability.process_use import ProcessMeter
from app.observability.recent_requests import KEPT_REQUESTS, FinishedRequest, unix_offset_s
from app.observability.tallies import RequestTallies
from frameworks.core.devices import Device, DeviceManager
from frameworks.models.residency.ledger import HOST, MemoryLedger
from frameworks.models.versions.slot import ModelSlot

log = structlog.get_logger(__name__)

_MEASURE_S = 10.0
"""Between two measurements of the free memory of devices: a driver may take milliseconds for it."""


class Opened(NamedTuple):
    """The first events of a reader. `number`: of the last events that they contain."""

    number: int
    content: bytes


class FeedReader(Protocol):
    """Takes the events of the view of a principal."""

    principal: Principal

    def deliver(self, number: int, content: bytes) -> None:
        """Take further events. `number` grows from call to call. It must not block."""
        ...


class Feeds(Protocol):
    """Where readers get their events: in the process of the models, or over the link to it."""

    async def open(self, reader: FeedReader) -> Opened:
        """Return the state of now; later events are delivered, until `close`. A reader may be opened again.

        Raises SupervisorLost.
        """
        ...

    def close(self, reader: FeedReader) -> None:
        """Deliver no more events."""
        ...


@dataclass(frozen=True, slots=True)
class LiveSources:
    """The parts that are shown. `processes`: those of the server."""

    views: Views
    tallies: RequestTallies
    requests: RequestLog
    devices: DeviceManager
    ledger: MemoryLedger
    lifecycle: ServerLifecycle
    processes: ProcessMeter


@dataclass(slots=True)
class _View:
    """The events of equal readers. `models`: the last event of them."""

    principal: Principal
    readers: set[FeedReader] = field(default_factory=set)
    models: bytes = b""


class LiveFeed:
    """Owned by the event loop. Without a reader it takes a sample every INTERVAL_S and does nothing else.

    Implements Feeds.
    """

    def __init__(self, sources: LiveSources, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds; it may stand still while the machine sleeps."""
        self._sources = sources
        self._clock = clock
        self._cells = CellReader()
        self.ring = SampleRing()
        self._views: dict[ViewKey, _View] = {}
        self._number = 0
        self._opened = asyncio.Event()
        self._devices: list[Device] = []
        self._measured_s = -_MEASURE_S
        self._sampled_s = clock()

    async def run(self) -> None:
        """Take samples until cancelled."""
        due_s = self._clock() + INTERVAL_S
        while True:
            await self._wait(due_s)
            try:
                if self._clock() >= due_s:
                    # Samples that were missed, while the loop stood still, are not made up for.
                    due_s = max(due_s + INTERVAL_S, self._clock())
                    await self.take_sample()
                if self._views:
                    await self.look()
            except Exception:  # the page is no reason to end the server
                log.exception("the page gets no figures")

    async def open(self, reader: FeedReader) -> Opened:
        """As Feeds.open."""
        principal, sources = reader.principal, self._sources
        await self._measure()
        latest = await sources.requests.latest(principal.counts_of)
        if not self._views:
            await sources.requests.fresh()  # what follows is shown by `latest`
        if not self.ring.samples:
            await self.take_sample()
        view = self._views.get(view_key(principal))
        if view is None:
            view = self._views[view_key(principal)] = _View(principal)
            self._opened.set()
        # From here on to the end without an await: nothing is missed between these events and the next ones.
        view.readers.add(reader)
        view.models = self._models_event(principal)
        offset_s, now_s = unix_offset_s(), self._clock()
        shown = [each for each in latest if shows_request(principal, each)][:KEPT_REQUESTS]
        content = [
            view.models,
            event("history", history(self.ring, principal, time.time(), now_s)),
            event("requests", {"requests": [describe_request(each, principal, offset_s) for each in shown]}),
            self._sample_event(principal),
        ]
        return Opened(self._number, b"".join(content))

    def close(self, reader: FeedReader) -> None:
        """As Feeds.close."""
        key = view_key(reader.principal)
        view = self._views.get(key)
        if view is not None:
            view.readers.discard(reader)
            if not view.readers:
                del self._views[key]

    async def take_sample(self) -> None:
        """Add a sample to the ring, and send it to the readers."""
        sources = self._sources
        await sources.tallies.refresh()
        now_s = self._clock()
        span_s, self._sampled_s = max(now_s - self._sampled_s, 1e-3), now_s
        use = await asyncio.to_thread(sources.processes.read, span_s)
        slots = self._slots()
        cells = self._cells.read(sources.tallies, slots)
        inflight, versions = sources.tallies.inflight, _versions(sources.tallies, slots)
        self.ring.add(Sample(now_s, span_s, *cells, inflight, self._device_bytes(slots), versions, use))
        if self._views:
            await self._measure()
            self._send(lambda view: self._sample_event(view.principal))

    async def look(self) -> None:
        """Send the models that have changed, and the requests that have finished."""
        self._send(self._changed_models)
        fresh = await self._sources.requests.fresh()
        if fresh:
            offset_s = unix_offset_s()
            self._send(lambda view: _requests_event(view.principal, fresh, offset_s))

    async def _wait(self, due_s: float) -> None:
        """Wait until a sample is due, or a first reader has come."""
        self._opened.clear()
        left_s = max(0.0, due_s - self._clock())
        if self._views:
            await asyncio.sleep(left_s)
            return
        try:
            async with asyncio.timeout(left_s):
                await self._opened.wait()
        except TimeoutError:
            pass

    def _send(self, write: Callable[[_View], bytes]) -> None:
        """Deliver to each view what `write` returns for it, unless it is empty."""
        for view in list(self._views.values()):
            content = write(view)
            if content:
                self._number += 1
                for reader in list(view.readers):
                    reader.deliver(self._number, content)

    def _changed_models(self, view: _View) -> bytes:
        models = self._models_event(view.principal)
        if models == view.models:
            return b""
        view.models = models
        return models

    def _models_event(self, principal: Principal) -> bytes:
        slots = self._sources.views.of(principal).models.slots
        return event("models", {"models": [describe_model(slot, principal.sees_paths) for slot in slots]})

    def _sample_event(self, principal: Principal) -> bytes:
        sources, latest = self._sources, self.ring.samples[-1]
        models, counts = sources.views.of(principal)
        budget = sources.ledger.budget
        limits = {name: budget.limit(name) for name in budget.devices} if counts.are_of_server else {}
        content: dict[str, Any] = {
            "t": round(time.time() - (self._clock() - latest.at_s), 3),
            "state": sources.lifecycle.status(models.slots),
            "uptime_s": round(sources.lifecycle.uptime_s, 1),
            "totals": totals(models.slots, counts),
            **sample_figures(self.ring, principal, models.slots, counts),
            "progress": visible_works(models),
            "devices": device_figures(self._devices, limits, latest),
        }
        return event("sample", content)

    async def _measure(self) -> None:
        """Measure the devices, if the last measurement is old."""
        if self._clock() - self._measured_s >= _MEASURE_S:
            self._measured_s = self._clock()
            # In a thread: a GPU's driver may be slow to report free memory.
            self._devices = await asyncio.to_thread(self._sources.devices.devices)

    def _slots(self) -> list[ModelSlot]:
        return self._sources.views.of(ANONYMOUS).models.slots

    def _device_bytes(self, slots: list[ModelSlot]) -> dict[str, DeviceBytes]:
        """Return the memory of models and collections by device.

        A version on several devices counts its KV caches on the first.
        """
        budget, collections = self._sources.ledger.budget, {HOST: self._sources.ledger.held_bytes}
        found = {name: [budget.used(name), 0, 0, 0, collections.get(name, 0)] for name in budget.devices}
        for version in (version for slot in slots for version in slot.versions.values() if version.memory_on):
            memory = found.get(next(iter(version.memory_on)))
            for stats in version.step_stats if memory is not None else ():
                assert memory is not None
                memory[1] += stats.kv_total_bytes
                memory[2] += stats.kv_used_bytes
                memory[3] += stats.kv_cached_bytes
        return {name: DeviceBytes(*each) for name, each in found.items()}


def _requests_event(principal: Principal, fresh: list[FinishedRequest], offset_s: float) -> bytes:
    shown = [each for each in fresh if shows_request(principal, each)]
    if not shown:
        return b""
    described = [describe_request(each, principal, offset_s) for each in shown[:MOST_FRESH]]
    return event("requests", {"requests": described, "is_cut": len(shown) >= MOST_FRESH})


def _versions(tallies: RequestTallies, slots: list[ModelSlot]) -> dict[tuple[str, str, str], int]:
    """Return the completed requests by model, version and tenant, of models of which several versions answer."""
    several = {slot.name for slot in slots if len(slot.versions) > 1}
    if not several:
        return {}
    return {key: requests.answered + requests.failed for key, requests in tallies.versions.items() if key[0] in several}
