"""Run a worker: accept connections, authenticate, decode and encode. The engines of the server run the requests."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import uvicorn
import uvloop

from app.admin.metrics.process_parts import ProcessParts
from app.admin.monitoring.event_subscribers import ServerFacts, Viewers
from app.admin.monitoring.file_sending import ModelFileSender
from app.auth.authenticator import Authenticator
from app.auth.failed_key_limit import Slowdown
from app.auth.key_store import KeyStore
from app.config import LoadedSettings
from app.extension import ServerProcess, open_parts
from app.http.app import build_app
from app.http.listener.sockets import HttpSockets
from app.http.page.files import WebSite
from app.inference.context import InferenceService
from app.inference.pipeline import Pipeline
from app.inference.shadowing import ShadowTraffic
from app.observability.background import background_task
from app.observability.integrity import IntegrityMonitor
from app.observability.logs.lock import LogLock
from app.observability.logs.logs import FLUSH_S, close_logs, configure_logging, flush_logs
from app.observability.loop_lag import LoopLagMonitor
from app.observability.metrics import Observer, new_ids
from app.observability.traces.tracing import close_tracer, open_tracer
from app.server.build import build_bounds, build_routes, management_methods, with_page
from app.server.http_server import (
    HttpServer,
    open_connections,
    origin_rules,
    prefix_rules,
    server_tls,
    uvicorn_config,
    whole_seconds,
)
from app.server.keys import open_keys
from app.server.manager import build_loader, keep_compiled_code
from app.server.monitoring import WorkerRoutes
from app.server.parts import Monitors
from app.server.reload import Reload, reload_when_told
from app.workers.event_relay import RemoteFeeds, RequestsSender
from app.workers.forwarding import ForwardedAdmin
from app.workers.lifecycle import WorkerLifecycle
from app.workers.messages import DrainWorker, WorkerReady, messages_to_worker
from app.workers.shared.keys import WorkerFailures, WorkerNonces
from app.workers.tallies.tallies import TalliesSender
from app.workers.watchdog import answer_checks
from app.workers.worker_responses import WorkerResponses
from frameworks.core.devices import DeviceManager, SystemProbe
from frameworks.models.replicas.control import ControlLink
from frameworks.models.replicas.manager import ReplicaManager
from frameworks.scheduling.shared_limits import SharedLimits
from memory.pooled_arrays import PooledArrays
from memory.tensor_pool import TensorPool


@dataclass(frozen=True, slots=True)
class Inherited:
    """All that workers get from the supervisor by the fork. `site`: the web page."""

    loaded: LoadedSettings
    api_key: str
    log_requests: str
    http: HttpSockets
    limits: SharedLimits
    log_lock: LogLock
    site: WebSite | None
    started_s: float = field(default_factory=time.time)


def prepare_workers(inherited: Inherited) -> None:
    """Import the modules that workers need later, in the process that they are forked from."""
    import uvloop  # noqa: F401

    if inherited.loaded.settings.server.grpc_port != 0:
        import app.grpc.listener
        import app.grpc.management
        import app.grpc.services
        import app.workers.forwarded_calls  # noqa: F401
    if inherited.loaded.settings.models.onnx_models:
        import frameworks.onnx.registry  # noqa: F401


def run_worker(inherited: Inherited, number: int, control: socket.socket, descriptors: socket.socket) -> int:
    """Run worker `number` until the supervisor drains it. Returns the exit status.

    `control`, `descriptors`: its sockets to the supervisor. Ends the process at once where the supervisor is lost.
    """
    settings = inherited.loaded.settings
    new_ids.renew()
    inherited.limits.use(number)
    listener = inherited.http.keep_only(number)
    configure_logging(
        settings.logging.level, settings.logging.format, lock=inherited.log_lock, fields={"worker": number}
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(inherited, number, listener, control, descriptors))
    finally:
        close_logs(FLUSH_S)
    return 0


async def _serve(
    inherited: Inherited, number: int, listener: socket.socket, control: socket.socket, descriptors: socket.socket
) -> None:
    link = ControlLink(number, messages_to_worker())
    worker = _Worker(inherited, link)
    server = _WorkerServer(worker.config(), worker.lifecycle, listener)
    link.handle(DrainWorker, server.drain)
    answer_checks(link)
    link.lost.add_done_callback(worker.supervisor_lost)
    await link.open(control, descriptors)
    await server.serve(sockets=[listener])
    worker.close()


class _WorkerServer(HttpServer):
    """Accepts connections until the supervisor drains the worker."""

    def __init__(self, config: uvicorn.Config, lifecycle: WorkerLifecycle, listener: socket.socket) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        # `close` closes the given one.
        self._listener = listener.dup()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Override: the supervisor handles the signals."""
        yield

    def drain(self, message: DrainWorker) -> None:
        """Refuse requests from now on, answer those in progress, and end."""
        self.config.timeout_graceful_shutdown = whole_seconds(message.timeout_s)
        self._lifecycle.drain()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        # The supervisor has the socket too: without this the kernel would accept connections that none answers.
        with self._listener, suppress(OSError):  # a shared socket: another worker was first
            self._listener.shutdown(socket.SHUT_RDWR)
        await super().shutdown(sockets)


class _Worker:
    """The parts of a worker."""

    def __init__(self, inherited: Inherited, link: ControlLink) -> None:
        """Wire the parts, and register the handlers of the link."""
        self._inherited, self._link = inherited, link
        loaded, settings = inherited.loaded, inherited.loaded.settings
        self._is_ending = False
        self._tracer = open_tracer(os.environ)
        self._observer = Observer(inherited.log_requests, settings.logging.slow_ms, self._tracer, link.number)
        self._keys = open_keys(loaded, inherited.api_key, logs_warnings=False)
        self._connections = open_connections(
            settings.server, server_tls(loaded), inherited.limits.server(), logs_warnings=False
        )
        reload_when_told(link, Reload(settings.logging.level, self._keys, self._connections.tls))
        self._pool = TensorPool(settings.memory)
        self._replica = _open_replica(loaded, link, self._pool, inherited.limits)
        self.lifecycle = WorkerLifecycle(link)
        service = InferenceService(
            WorkerResponses(link, self._observer.cache_hits, self._observer.cache_misses),
            self._observer.generation_metrics,
        )
        self._shadowing = ShadowTraffic(service, self._observer.shadow_outcomes)
        bounds = build_bounds(settings, self._connections.byte_limit, inherited.limits)
        self._pipeline = Pipeline(self._replica, service, self._shadowing, self._observer, self.lifecycle, bounds)
        process = ServerProcess(
            loaded=loaded,
            pipeline=self._pipeline,
            models=self._replica.parts,
            slots=self._replica.slots_by_name,
            composites=self._replica.composites,
            link=link,
        )
        open_parts(process)
        self._authenticator = None if settings.auth.mode == "off" else _authenticator(self._keys, link)
        self._monitors = self._build_monitors()
        counts = ProcessParts(
            self._monitors.loop_lag,
            self._monitors.integrity,
            self._pool,
            self._connections,
            self._keys,
            self._tracer,
        ).counts
        self._tallies = TalliesSender(link, self._observer, self._replica, counts)
        RequestsSender(link, self._observer.recent)
        facts = ServerFacts(settings.server.num_workers, started_s=inherited.started_s)
        self._viewers = Viewers(RemoteFeeds(link), self._keys, self.lifecycle, facts)

    def config(self) -> uvicorn.Config:
        """Return the configuration of uvicorn. The application starts and stops the parts."""
        settings = self._inherited.loaded.settings
        table = build_routes()
        forwarded = ForwardedAdmin(self._link, self._connections.byte_limit, table.access, self._lifespan)
        site = self._inherited.site
        admin = with_page(site, WorkerRoutes(self._viewers, ModelFileSender(self._replica), forwarded))
        rules, prefixes = origin_rules(settings.server), prefix_rules(settings.server)
        app = build_app(self._pipeline, table, admin, rules, self._authenticator, site is not None, prefixes)
        return uvicorn_config(app, self._connections, settings.server)

    def supervisor_lost(self, _: object) -> None:
        """End the process at once, unless it ends by itself: the supervisor has its limits and its models."""
        if not self._is_ending:
            flush_logs(FLUSH_S)
            os._exit(1)

    def close(self) -> None:
        """Send what is left, and close the connection to the supervisor."""
        self._is_ending = True
        close_tracer(self._tracer, self.lifecycle.drain_left_s(self._inherited.loaded.settings.server.drain_timeout_s))
        self._link.close()

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        """Start the parts in order, and stop them in reverse after the listener is closed."""
        drain_timeout_s = self._inherited.loaded.settings.server.drain_timeout_s
        async with AsyncExitStack() as stack:
            start = stack.enter_async_context
            await start(background_task(self._tallies.run()))
            await start(background_task(self._monitors.loop_lag.run()))
            await start(background_task(self._keys.watch()))
            if self._connections.tls is not None:
                await start(background_task(self._connections.tls.watch()))
            stack.callback(self._pipeline.close)
            stack.push_async_callback(self._close_replica, drain_timeout_s)
            await start(background_task(self._monitors.integrity.run()))
            stack.push_async_callback(self._shadowing.close)
            await self._replica.has_state
            if self._inherited.loaded.settings.server.grpc_port != 0:
                await start(self._serving_grpc())
            self._link.send(WorkerReady())
            yield

    async def _close_replica(self, drain_timeout_s: float) -> None:
        await self._replica.close(self.lifecycle.drain_left_s(drain_timeout_s))

    @asynccontextmanager
    async def _serving_grpc(self) -> AsyncIterator[None]:
        from app.grpc.listener import open_listener
        from app.workers.forwarded_calls import ForwardedCalls

        methods = partial(management_methods, ForwardedCalls(self._link).answer, self._observer)
        settings, is_checked = self._inherited.loaded.settings, self._authenticator is not None
        listener = open_listener(settings.server, self._connections, is_checked, shares_port=True)
        assert listener is not None, "workers serve gRPC only where it is on"
        async with listener.serving(self._pipeline, methods, settings, self._authenticator):
            yield

    def _build_monitors(self) -> Monitors:
        observer, shadowing, replica = self._observer, self._shadowing, self._replica
        integrity = IntegrityMonitor(
            lambda: not observer.inflight and not shadowing.copies and replica.is_idle,
            [replica.check_integrity, self._pool.check_integrity],
        )
        return Monitors(LoopLagMonitor(partial(getattr, observer, "inflight")), integrity)


def _open_replica(loaded: LoadedSettings, link: ControlLink, pool: TensorPool, limits: SharedLimits) -> ReplicaManager:
    settings = loaded.settings
    keep_compiled_code(loaded)
    devices = DeviceManager(SystemProbe(), settings.performance.enable_gpu)
    loader = build_loader(loaded, devices, pool)
    return ReplicaManager(link, loader, settings.performance, settings.scheduling, PooledArrays(pool), limits)


def _authenticator(keys: KeyStore, link: ControlLink) -> Authenticator:
    slowdown = Slowdown(note_shared=WorkerFailures(link).note)
    return Authenticator(keys, slowdown, use_nonce=WorkerNonces(link).use)
