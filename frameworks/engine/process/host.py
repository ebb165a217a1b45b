"""Own the model of an engine process: load it, report its counts, close it. The requests of all clients use it."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import structlog

from frameworks.engine.local import LocalEngine, start_local_engine
from frameworks.engine.process.hosted_calls import HostedClient, Sender
from frameworks.engine.process.messages import (
    Close,
    Closed,
    EndRequests,
    FromEngine,
    Load,
    Loaded,
    LoadFailed,
    Measure,
    Needs,
    ProtocolError,
    SpecLearned,
    ToEngine,
)
from frameworks.engine.process.model_source import HostedModel, ModelSource
from frameworks.engine.process.plain import PlainTenant, error_to_plain, tenant_from_plain
from frameworks.engine.process.run_growth import RunGrowth
from frameworks.engine.process.specs import spec_to_plain
from frameworks.engine.threads import EngineThreads
from frameworks.errors import RoundhouseError
from frameworks.scheduling.admission import RequestLimit
from frameworks.tenants import Tenant
from frameworks.types import ModelSpec

log = structlog.get_logger(__name__)

COUNTS_S = 0.05
"""The interval of counts while requests run."""


class EngineHost:
    """The model, its engine, and its tenants. Owned by the event loop.

    The first client is the owner: it gives the orders, and gets the counts of the requests of all clients.
    """

    def __init__(self, source: ModelSource, tidy: Callable[[], None], end: Callable[[int], None]) -> None:
        """`tidy`: called when no request is left. `end`: called with the exit status when the process has to end."""
        self._source = source
        self._tidy = tidy
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._threads = EngineThreads()
        self._growth = RunGrowth()
        self._clients: list[HostedClient] = []
        self._owner: Sender
        self.limit = RequestLimit("the engine process", None, None)
        self.name = ""
        """Of the model that is loaded."""
        self.engine: LocalEngine | None = None
        self.counted_s = 0.0
        """When the last counts were sent, in the time of the loop."""
        self.tick: asyncio.TimerHandle | None = None
        """The next report of counts; None while the engine is idle."""
        self._tenants: dict[PlainTenant, Tenant] = {}
        self._loaded_spec: ModelSpec | None = None
        self._sent_spec: ModelSpec | None = None
        # A load, or the close.
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self.orders: Mapping[type[ToEngine], Callable[[Any], None]] = {
            Measure: self._measure,
            Load: self._load,
            EndRequests: self._end_requests,
            Close: self._close,
        }
        """The messages that only the owner may send."""

    def add(self, sender: Sender) -> HostedClient:
        """Note a client; the first one is the owner."""
        if not self._clients:
            self._owner = sender
        client = HostedClient(sender)
        self._clients.append(client)
        return client

    def describe(self, sender: Sender) -> None:
        """Send the spec to a new client if it has changed since the load."""
        spec = self._sent_spec
        if spec is not None and spec is not self._loaded_spec and sender.is_open:
            sender.send(SpecLearned(spec_to_plain(spec)))

    def remove(self, client: HostedClient) -> None:
        """Forget a client without calls."""
        self._clients.remove(client)

    def tenant(self, plain: PlainTenant) -> Tenant:
        """Return the object of a tenant, the same for all clients; the scheduler compares objects."""
        tenant = self._tenants.get(plain)
        if tenant is None:
            tenant = self._tenants[plain] = tenant_from_plain(plain)
        return tenant

    def start_reports(self) -> None:
        """Send the counts at intervals until the engine is idle."""
        self.tick = self._loop.call_later(COUNTS_S, self._report)

    def send_counts(self) -> None:
        """Send what has grown since the last message to the owner, and a spec that was learned to all clients."""
        self.counted_s = self._loop.time()
        assert self.engine is not None
        counts = self._growth.take(self.engine.stats)
        if counts is not None:
            self._owner.send(counts)
        spec = self.engine.model.spec
        if spec is not self._sent_spec:
            self._sent_spec = spec
            for client in self._clients:
                # A channel that opens gets it from `describe`.
                if client.sender.is_open:
                    client.sender.send(SpecLearned(spec_to_plain(spec)))

    def abort(self) -> None:
        """End the engine without an answer: the process ends."""
        if self.tick is not None:
            self.tick.cancel()
        if self._task is not None:
            self._task.cancel()
        if self.engine is not None:
            self.engine.abort("the server has ended")
        self._threads.close()

    def _measure(self, message: Measure) -> None:
        self._start_task(self._reply_from_thread(self._source.measure, message, Needs))

    def _load(self, message: Load) -> None:
        if self.engine is not None:
            raise ProtocolError("expected one load, got another one")
        self._start_task(self._reply_from_thread(self._source.load, message.device, partial(self._start, message)))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
        self._task = self._loop.create_task(work)

    async def _reply_from_thread(
        self, work: Callable[[Any], Any], argument: object, reply: Callable[[Any], FromEngine]
    ) -> None:
        """Send the reply made of the result of `work(argument)`, or its error."""
        # The thread ends with the load, and with it the OpenMP threads of the load, see Loader.
        thread = ThreadPoolExecutor(1, thread_name_prefix="load")
        try:
            message = reply(await self._loop.run_in_executor(thread, work, argument))
        except Exception as error:
            if not isinstance(error, RoundhouseError):
                log.exception("model failed to load")
            message = LoadFailed(error_to_plain(error))
        finally:
            thread.shutdown(wait=False)
        self._owner.send(message)

    def _start(self, message: Load, hosted: HostedModel) -> Loaded:
        engine = start_local_engine(message.engine, hosted.instances, self._growth.counts, hosted.device, self._threads)
        self.engine, self.name = engine, message.engine.name
        self._loaded_spec = self._sent_spec = engine.model.spec
        return Loaded(spec_to_plain(engine.model.spec), hosted.memory_bytes, hosted.load_s, hosted.warm_up_s)

    def _end_requests(self, message: EndRequests) -> None:
        if self.engine is not None:
            self.engine.end_requests()

    def _close(self, message: Close) -> None:
        self._is_closing = True
        self._start_task(self._close_engine())

    async def _close_engine(self) -> None:
        if self.engine is not None:
            await self.engine.close()
        self._owner.send(Closed())
        self._end(0)

    def _report(self) -> None:
        self.send_counts()
        engine = self.engine
        assert engine is not None
        self.tick = None
        if engine.is_running or any(client.calls for client in self._clients):
            self.start_reports()
        else:
            self._tidy()
        if engine.is_dead and not self._is_closing:
            log.error("engine process ends, as its model has ended")
            self._end(1)
