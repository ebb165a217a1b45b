"""Run the server process: open its sockets, handle its signals, end it."""

import asyncio
import os
import signal
import socket
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING

import structlog
import uvicorn

from app.config import ConfigError, LoadedSettings, Settings
from app.http.listener.clocks import Connections
from app.http.listener.sockets import listen
from app.inference.lifecycle import ServerLifecycle
from app.observability.background import background_task
from app.observability.logs.logs import FLUSH_S, close_logs, configure_logging, flush_logs
from app.observability.traces.tracing import check_tracing, close_tracer, open_tracer
from app.server.build import build
from app.server.http_server import HttpServer, open_connections, server_tls, uvicorn_config
from app.server.keys import open_keys
from app.server.reload import HangupReload, Reload
from app.server.start_report import StartOptions, StartReport
from frameworks.core.settings.entries import RAY_KEYS
from frameworks.engine.process.client.process_registry import kill_all
from memory.allocator import keep_freed_memory
from memory.garbage import shorten_collections

if TYPE_CHECKING:
    from app.grpc.listener import GrpcListener

log = structlog.get_logger(__name__)

_SWITCH_INTERVAL_S = 0.001
_SERVER_ENDS = "the server ends"


class _DrainingServer(HttpServer):
    """Drains and exits with status 0 at the first signal; ends the process at the second."""

    def __init__(
        self, config: uvicorn.Config, lifecycle: ServerLifecycle, hangup: HangupReload, report: StartReport
    ) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._hangup = hangup
        self._report = report

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        async with background_task(self._hangup.run()), background_task(self._report_start()):
            await super().serve(sockets)

    async def _report_start(self) -> None:
        if await self._report.run(self._lifecycle):
            self._lifecycle.drain()
            self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            # Not sys.exit: it waits for loader and worker threads, which may be inside a library.
            kill_all(_SERVER_ENDS)
            flush_logs(FLUSH_S)
            os._exit(128 + sig)
        self._lifecycle.drain()
        self.should_exit = True


def serve(loaded: LoadedSettings, options: StartOptions) -> int:
    """Serve until a signal arrives. Returns the exit status. Raises CannotListenError and ConfigError.

    Where the options need a model and none could be loaded, the server ends with status 1, and prints the reason.
    """
    settings = loaded.settings
    keep_freed_memory()
    shorten_collections()
    # A thread that decodes a long body lets the event loop run after this time; Python's default is 5 ms.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    configure_logging(settings.logging.level, settings.logging.format)
    try:
        return _serve(loaded, options)
    finally:
        close_logs(FLUSH_S)


def _serve(loaded: LoadedSettings, options: StartOptions) -> int:
    settings = loaded.settings
    log_requests = settings.logging.requests or ("all" if options.on_terminal else "slow_and_failed")
    if settings.server.num_workers > 1:
        # Workers inherit the imports.
        check_tracing(os.environ)
        # It forks, so this process must have no other thread: nothing was logged before.
        from app.server.supervisor import run_supervisor

        return _ended(*run_supervisor(loaded, options, log_requests))
    listener = listen(settings.server.host, settings.server.port)
    try:
        keys = open_keys(loaded, options.api_key)
        tls = server_tls(loaded)
        tracer = open_tracer(os.environ)
    except ConfigError:
        listener.close()
        raise
    for warning in loaded.warnings:
        log.warning("deprecated key", place=warning.place, key=warning.key, reason=warning.message)
    _warn_of_ray_keys(settings)
    connections = open_connections(settings.server, tls)
    grpc_listener = _open_grpc_listener(settings, connections)
    server = build(loaded, log_requests, grpc_listener=grpc_listener, connections=connections, keys=keys, tracer=tracer)
    host, port = listener.getsockname()[:2]
    config = uvicorn_config(server.app, connections, settings.server)
    hangup = HangupReload(loaded, Reload(settings.logging.level, keys, tls))
    report = StartReport(loaded, options, keys, tls)
    uvicorn_server = _DrainingServer(config, server.lifecycle, hangup, report)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn sets the same handlers later. A process that reads the next line may send a signal at once.
        signal.signal(number, uvicorn_server.handle_exit)
    report.listening(host, port, (grpc_listener.port or port) if grpc_listener else 0)
    try:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(uvicorn_server.serve(sockets=[listener]))
    finally:
        close_tracer(tracer, server.lifecycle.drain_left_s(settings.server.drain_timeout_s))
        kill_all(_SERVER_ENDS)
    log.info("stopped")
    return _ended(0 if uvicorn_server.started and not report.failure else 1, report.failure)


def _ended(status: int, failure: str) -> int:
    """Return the exit status, or end the process where threads are left. `failure`: for standard error, or ""."""
    close_logs(FLUSH_S)
    if failure:
        print(failure, file=sys.stderr, flush=True)
    if threading.active_count() > 1:
        # A load or a batch outlived the drain timeout. A library that is unloaded while it computes aborts the process.
        os._exit(status)
    return status


def _warn_of_ray_keys(settings: Settings) -> None:
    for entry in (*settings.models.onnx_models, *settings.models.torch_models):
        keys = [key for key in RAY_KEYS if getattr(entry, key) is not None]
        if keys:
            log.warning("keys without effect: they apply to a deployment on Ray", model=entry.name, keys=keys)


def _open_grpc_listener(settings: Settings, connections: Connections) -> "GrpcListener | None":
    """Open the port of gRPC, if it has one; None if gRPC is switched off. Raises CannotListenError.

    Its modules are imported only where it is on: they take memory and start-up time.
    """
    if settings.server.grpc_port == 0:
        return None
    from app.grpc.listener import open_listener

    return open_listener(settings.server, connections, is_checked=settings.auth.mode != "off")
