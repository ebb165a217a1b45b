"""The engine of one loaded model and its clients: tenants, counts, specs. The requests of all clients use it."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from frameworks.core.channel.channel import Channel
from frameworks.core.progress import Kind, running
from frameworks.core.tenants import Tenant
from frameworks.engine.contract import EngineSettings
from frameworks.engine.local import LocalEngine, start_local_engine
from frameworks.engine.process.host.hosted_calls import HostedClient
from frameworks.engine.process.host.model_source import HostedModel
from frameworks.engine.process.wire.counts import CountsDelta
from frameworks.engine.process.wire.messages import MAX_PHASE_CHARACTERS, Loaded, LoadProgress, SpecLearned, ToEngine
from frameworks.engine.process.wire.serialization import PlainTenant, tenant_from_plain
from frameworks.engine.threads import EngineThreads
from frameworks.scheduling.admission import RequestLimit
from frameworks.types import ModelSpec

COUNTS_S = 0.05
"""The interval of counts while requests run."""
KERNELS_S = 0.5
"""The interval of looks at the spec of a model whose kernels may change without a request."""


class HostedEngine:
    """Owned by the event loop. One client, the reporter, gets the counts of the requests of all clients."""

    orders: Mapping[type[ToEngine], Callable[[Any], None]] = {}
    """The messages that only the owner may send."""

    def __init__(self, threads: EngineThreads, tidy: Callable[[], None], died: Callable[[], None]) -> None:
        """`tidy`: called when no request is left. `died`: called once, when the engine will never answer again."""
        self._threads = threads
        self._tidy = tidy
        self._died = died
        self._loop = asyncio.get_running_loop()
        self._growth = CountsDelta()
        self.clients: list[HostedClient] = []
        self.reporter: HostedClient | None = None
        """The client that was connected first, of those that are left."""
        self.limit = RequestLimit("the engine process", None, None)
        self.name = ""
        """Of the model that is loaded."""
        self.engine: LocalEngine | None = None
        self.num_done = 0
        """Requests of all clients that have ended."""
        self.counted_s = 0.0
        """When the last counts were sent, in the time of the loop."""
        self.tick: asyncio.TimerHandle | None = None
        """The next report of counts; None while the engine is idle."""
        self._tenants: dict[PlainTenant, Tenant] = {}
        self._loaded_spec: ModelSpec | None = None
        self._sent_spec: ModelSpec | None = None
        self._sent_progress: LoadProgress | None = None
        self._is_over = False

    def add(self, sender: Channel[ToEngine]) -> HostedClient:
        """Note a client."""
        client = HostedClient(sender)
        self.clients.append(client)
        if self.reporter is None:
            self.reporter = client
        return client

    def describe(self, sender: Channel[ToEngine]) -> None:
        """Send the spec to a new client if it has changed since the load."""
        spec = self._sent_spec
        if spec is not None and spec is not self._loaded_spec and sender.is_open:
            sender.send(SpecLearned(spec))

    def remove(self, client: HostedClient) -> None:
        """Forget a client without calls."""
        self.clients.remove(client)
        if client is self.reporter:
            self.reporter = self.clients[0] if self.clients else None

    def tenant(self, plain: PlainTenant) -> Tenant:
        """Return the object of a tenant, the same for all clients; the scheduler compares objects."""
        tenant = self._tenants.get(plain)
        if tenant is None:
            tenant = self._tenants[plain] = tenant_from_plain(plain)
        return tenant

    def note_use(self) -> None:
        """Called for each request."""

    def start_reports(self) -> None:
        """Send the counts at intervals until the engine is idle."""
        self.tick = self._loop.call_later(COUNTS_S, self._report)

    def send_counts(self) -> None:
        """Send what has grown since the last message to the reporter, and a spec that was learned to all clients."""
        self.counted_s = self._loop.time()
        engine = self.engine
        assert engine is not None
        reporter = self.reporter
        if reporter is not None:
            counts = self._growth.take(engine.stats, None if engine.steps is None else engine.sequences)
            if counts is not None:
                reporter.sender.send(counts)
        self._send_spec()

    def stop_reports(self) -> None:
        """Send no more counts: the engine is being closed, and its end is no death."""
        self._is_over = True
        if self.tick is not None:
            self.tick.cancel()

    def abort(self) -> None:
        """End the engine without an answer: the process ends."""
        self.stop_reports()
        if self.engine is not None:
            self.engine.abort("the server has ended")

    def start(self, settings: EngineSettings, hosted: HostedModel) -> Loaded:
        """Start the engine of a model that is loaded and warm; return its description."""
        engine = start_local_engine(settings, hosted.instances, self._growth.counts, hosted.device, self._threads)
        self.engine, self.name = engine, settings.name
        self._loaded_spec = self._sent_spec = engine.model.spec
        if engine.steps is not None:
            # Sequences also end without a request.
            engine.steps.on_change = self._note_sequences
        self._look_at_kernels()
        return Loaded(engine.model.spec, hosted.memory_bytes, hosted.load_s, hosted.warm_up_s)

    def _send_spec(self) -> None:
        """Send a spec that was learned to all clients."""
        assert self.engine is not None
        spec = self.engine.model.spec
        if spec is not self._sent_spec:
            self._sent_spec = spec
            for client in self.clients:
                # A channel that opens gets it from `describe`.
                if client.sender.is_open:
                    client.sender.send(SpecLearned(spec))

    def _note_sequences(self) -> None:
        if self.tick is None and not self._is_over:
            self.start_reports()

    def _look_at_kernels(self) -> None:
        if self._is_over:
            return
        self._send_spec()
        assert self._sent_spec is not None
        if self._sent_spec.awaits_kernels:
            progress = progress_now("compile")
            if progress is not None and progress != self._sent_progress and self.reporter is not None:
                self._sent_progress = progress
                self.reporter.sender.send(progress)
            self._loop.call_later(KERNELS_S, self._look_at_kernels)

    def _report(self) -> None:
        self.send_counts()
        engine = self.engine
        assert engine is not None
        self.tick = None
        if engine.is_running or any(client.calls for client in self.clients):
            self.start_reports()
        else:
            self._tidy()
        if engine.is_dead and not self._is_over:
            self._is_over = True
            self._died()


def progress_now(shown_as: Kind) -> LoadProgress | None:
    """Return the innermost work of this process, which has one model. `shown_as`: the kind that the server shows."""
    works = running()
    if not works:
        return None
    state = works[-1].state
    what = state.what if state.kind == shown_as else f"{state.kind}: {state.what}"
    return LoadProgress(what[:MAX_PHASE_CHARACTERS], state.done, state.total, state.unit)
