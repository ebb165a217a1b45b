"""Run the supervisor of several workers: it has the models, the admin application and the counts, and no listener."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from types import FrameType

import structlog
import uvloop

from app.auth.key_store import KeyStore
from app.config import LoadedSettings, ServerSettings
from app.http.listener.clocks import Connections
from app.http.listener.sockets import CannotListenError, listen_for_workers, reserve_port
from app.inference.lifecycle import ServerLifecycle
from app.observability.background import background_task
from app.observability.logs.lock import LogLock
from app.observability.logs.logs import FLUSH_S, configure_logging, flush_logs
from app.observability.metrics import Observer
from app.server.build import (
    Host,
    Sharing,
    build_administration,
    build_counting,
    build_inference,
    build_lifespan,
    build_monitors,
    build_routes,
    management_answer,
    read_site,
    shown_of,
    warn_of_missing_site,
)
from app.server.http_server import open_connections, server_tls
from app.server.keys import open_keys
from app.server.monitoring import build_live
from app.server.parts import Counting
from app.server.reload import HangupReload, Reload, WorkerReloads
from app.server.start_report import StartOptions, StartReport
from app.server.worker import Inherited, prepare_workers, run_worker
from app.workers.fork_server import ForkServer, start_fork_server
from app.workers.forwarding import AdminServer
from app.workers.lifecycle import StatusSender
from app.workers.shared.keys import SharedFailures, SharedNonces
from app.workers.supervision import Supervision
from app.workers.watchdog import Watchdog
from frameworks.engine.process.client.process_registry import kill_all
from frameworks.engine.process.host.startup import set_name
from frameworks.models.replicas.control import Workers
from frameworks.models.replicas.publisher import Publisher
from frameworks.scheduling.shared_limits import SharedLimits

log = structlog.get_logger(__name__)

_SERVER_ENDS = "the server ends"


def run_supervisor(loaded: LoadedSettings, options: StartOptions, log_requests: str) -> tuple[int, str]:
    """Serve with several workers until a signal arrives. Returns the exit status, and why no model could be loaded.

    This process must have one thread. Raises CannotListenError and ConfigError.
    """
    settings = loaded.settings
    num_workers = settings.server.num_workers
    http = listen_for_workers(settings.server.host, settings.server.port, num_workers)
    grpc_socket = _reserve_grpc(settings.server)
    limits = SharedLimits(num_workers, [tenant.name for tenant in settings.auth.tenants if tenant.has_limits])
    lock = LogLock()
    inherited = Inherited(loaded, options.api_key, log_requests, http, limits, lock, read_site(settings.server))
    fork_server = start_fork_server(partial(prepare_workers, inherited), partial(run_worker, inherited))
    try:
        set_name("rh:supervisor")
        configure_logging(settings.logging.level, settings.logging.format, lock=lock)
        return _supervise(inherited, options, fork_server)
    finally:
        kill_all(_SERVER_ENDS)
        fork_server.close()
        http.close()
        if grpc_socket is not None:
            grpc_socket.close()
        log.info("stopped")


def _supervise(inherited: Inherited, options: StartOptions, fork_server: ForkServer) -> tuple[int, str]:
    settings = inherited.loaded.settings
    stop = _StopSignals()
    warn_of_missing_site(settings.server)
    for warning in inherited.loaded.warnings:
        log.warning("deprecated key", place=warning.place, key=warning.key, reason=warning.message)
    keys = open_keys(inherited.loaded, inherited.api_key)
    connections = open_connections(settings.server, server_tls(inherited.loaded), inherited.limits.server())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = StartReport(inherited.loaded, options, keys, connections.tls)
        status = runner.run(_Supervisor(inherited, fork_server, keys, connections, report).run(stop))
    return (1, report.failure) if report.failure else (status, "")


class _StopSignals:
    """The first SIGINT or SIGTERM drains the server; the second one ends it at once."""

    def __init__(self) -> None:
        self._requested = False
        self._notify: Callable[[], object] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def on_request(self, notify: Callable[[], object]) -> None:
        """Call `notify` in the event loop at the first signal, also if it has arrived."""
        self._loop = asyncio.get_running_loop()
        self._notify = notify
        if self._requested:
            self._loop.call_soon(notify)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._requested:
            # The kernel ends the fork server and the workers with this process.
            kill_all(_SERVER_ENDS)
            flush_logs(FLUSH_S)
            os._exit(128 + number)
        self._requested = True
        if self._notify is not None:
            self._loop.call_soon_threadsafe(self._notify)


class _Supervisor:
    """The parts of the supervisor."""

    def __init__(
        self,
        inherited: Inherited,
        fork_server: ForkServer,
        keys: KeyStore,
        connections: Connections,
        report: StartReport,
    ) -> None:
        self._inherited = inherited
        self._report = report
        self._fork_server = fork_server
        self._keys = keys
        self._connections = connections
        settings = inherited.loaded.settings
        self._drain_timeout_s = settings.server.drain_timeout_s
        self._workers = Workers()
        self._sharing = Sharing(self._workers, inherited.limits, settings.server.num_workers)

    async def run(self, stop: _StopSignals) -> int:
        """Run until a signal arrives. Returns the exit status."""
        loaded, settings = self._inherited.loaded, self._inherited.loaded.settings
        connections, sharing = self._connections, self._sharing
        observer = Observer(self._inherited.log_requests, settings.logging.slow_ms)
        inference = build_inference(loaded, observer, Host(), connections.byte_limit, sharing)
        manager = inference.manager
        publisher = Publisher(manager, manager.residency, manager.on_changed, self._workers)
        monitors = build_monitors(inference, observer)
        counting = build_counting(inference, monitors, connections, self._keys, sharing)
        SharedNonces(self._workers)
        SharedFailures(self._workers)
        status = StatusSender(self._workers, inference.lifecycle)
        hangup = self._hangup_reload()

        async def applied() -> None:
            await publisher.applied()
            for part in inference.parts:
                await part.applied()
            await status.applied()

        live = build_live(shown_of(inference, counting), inference.pipeline, self._keys, {}, self._workers)
        table = build_routes()
        admin = build_administration(loaded, inference, counting, connections, self._keys, table, live)
        lifespan = build_lifespan(inference, monitors, self._keys, connections.tls, live, None)
        admin_server = AdminServer(admin, table.access, applied)
        self._workers.on_connect(admin_server.serve)
        if self._inherited.loaded.settings.server.grpc_port != 0:
            from app.workers.forwarded_calls import CallServer

            self._workers.on_connect(CallServer(management_answer(inference, counting.views), applied).serve)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(lifespan())
            await stack.enter_async_context(admin_server)
            await stack.enter_async_context(background_task(status.run()))
            await stack.enter_async_context(background_task(hangup.run()))
            return await self._run_workers(stop, inference.lifecycle, counting)

    def _hangup_reload(self) -> HangupReload:
        loaded = self._inherited.loaded
        level = loaded.settings.logging.level
        reload = Reload(level, self._keys, self._connections.tls)
        return HangupReload(loaded, reload, WorkerReloads(self._workers, level).tell)

    async def _run_workers(self, stop: _StopSignals, lifecycle: ServerLifecycle, counting: Counting) -> int:
        """Start the workers, and drain them when a signal arrives."""
        supervision = Supervision(
            self._fork_server,
            self._workers,
            self._inherited.http,
            counting.workers,
            self._inherited.limits.release,
        )
        stopped = asyncio.Event()
        stop.on_request(stopped.set)
        supervision.start()
        supervision.fork_server_ended.add_done_callback(lambda _: stopped.set())
        watchdog = Watchdog(self._workers, supervision.kill)
        report = self._report_start(supervision.all_ready, lifecycle, stopped)
        async with background_task(watchdog.run()), background_task(report):
            await stopped.wait()
        log.info("draining", drain_timeout_s=self._drain_timeout_s)
        lifecycle.drain()
        await supervision.drain(self._drain_timeout_s)
        if not supervision.fork_server_ended.done():
            self._fork_server.unwatch()
        return 1 if supervision.fork_server_ended.done() else 0

    async def _report_start(
        self, all_ready: asyncio.Future[None], lifecycle: ServerLifecycle, stopped: asyncio.Event
    ) -> None:
        await asyncio.wait([all_ready])
        host, port = self._inherited.http.address
        own_port = self._inherited.loaded.settings.server.grpc_port
        self._report.listening(host, port, port if own_port is None else own_port, self._sharing.num_workers)
        if await self._report.run(lifecycle):
            stopped.set()


def _reserve_grpc(settings: ServerSettings) -> socket.socket | None:
    """Bind the port of gRPC, which takes no connections before the workers listen; None if it has none of its own.

    Raises CannotListenError.
    """
    if not settings.grpc_port:
        return None
    try:
        return reserve_port(settings.host, settings.grpc_port)
    except OSError as error:
        reason = f"cannot listen on {settings.host}:{settings.grpc_port}"
        raise CannotListenError(f"server.grpc_port: {reason}; choose another port, or 0 for no gRPC") from error
