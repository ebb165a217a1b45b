"""Run the server process: open its sockets, handle its signals, end it."""

import asyncio
import os
import signal
import socket
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn

from app.auth.store import KeyStore
from app.auth.tls import ServerTls
from app.config import ConfigError, ConfigIssue, LoadedSettings, ServerSettings, Settings
from app.config.tls_files import TlsFileError
from app.http.clocks import ConnectionBounds, Connections
from app.http.protocol import BoundedHttpProtocol
from app.http.tls import tls_protocol
from app.inference.lifecycle import Lifecycle
from app.observability.logs import FLUSH_S, close_logs, configure_logging, flush_logs
from app.server.build import build
from app.server.descriptors import connections_within_limit
from app.server.keys import open_keys
from app.workers.sockets import BACKLOG, CannotListenError, listen
from frameworks.engine.process.live import kill_all
from frameworks.scheduling.byte_limit import ByteLimit
from memory.allocator import keep_freed_memory
from memory.garbage import shorten_collections

if TYPE_CHECKING:
    from app.grpc.listener import GrpcListener

log = structlog.get_logger(__name__)

# Clients and load balancers reuse connections. uvicorn's default of 5 s would often close one as it is reused.
_KEEP_ALIVE_S = 75
_SWITCH_INTERVAL_S = 0.001
_SERVER_ENDS = "the server ends"


class _DrainingServer(uvicorn.Server):
    """Drains and exits with status 0 at the first signal; ends the process at the second."""

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            # Not sys.exit: it waits for loader and worker threads, which may be inside a library.
            kill_all(_SERVER_ENDS)
            flush_logs(FLUSH_S)
            os._exit(128 + sig)
        self._lifecycle.drain()
        self.should_exit = True


def serve(loaded: LoadedSettings, api_key: str, log_to_terminal: bool) -> int:
    """Serve until a signal arrives. Returns the exit status. Raises CannotListenError and ConfigError.

    `api_key`: the text of ROUNDHOUSE_API_KEY, or "".
    """
    settings = loaded.settings
    keep_freed_memory()
    shorten_collections()
    # A thread that decodes a long body lets the event loop run after this time; Python's default is 5 ms.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    configure_logging(settings.logging.level, settings.logging.format)
    try:
        return _serve(loaded, api_key, log_to_terminal)
    finally:
        close_logs(FLUSH_S)


def _serve(loaded: LoadedSettings, api_key: str, log_to_terminal: bool) -> int:
    settings = loaded.settings
    log_requests = settings.logging.requests or ("all" if log_to_terminal else "slow_and_failed")
    listener = listen(settings.server.host, settings.server.port)
    keys = _open_keys(loaded, api_key, listener)
    tls = _server_tls(loaded, listener)
    grpc_listener = _open_grpc_listener(settings, tls)
    for warning in loaded.warnings:
        log.warning("deprecated key", place=warning.place, key=warning.key, reason=warning.message)
    connections = _connections(settings.server, tls)
    server = build(loaded, log_requests, grpc_listener=grpc_listener, connections=connections, keys=keys)
    host, port = listener.getsockname()[:2]
    config = uvicorn.Config(
        server.app,
        loop="uvloop" if os.name != "nt" else "asyncio",
        http=_http_class(connections),
        interface="asgi3",
        ws="none",
        lifespan="on",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.server.drain_timeout_s)),
        backlog=BACKLOG,
    )
    uvicorn_server = _DrainingServer(config, server.lifecycle)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn sets the same handlers later. A process that reads the next line may send a signal at once.
        signal.signal(number, uvicorn_server.handle_exit)
    log.info("listening", host=host, port=port, grpc_port=grpc_listener.port if grpc_listener else 0, pid=os.getpid())
    try:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(uvicorn_server.serve(sockets=[listener]))
    finally:
        kill_all(_SERVER_ENDS)
    log.info("stopped")
    status = 0 if uvicorn_server.started else 1
    close_logs(FLUSH_S)
    if threading.active_count() > 1:
        # A load or a batch outlived the drain timeout. A library that is unloaded while it computes aborts the process.
        os._exit(status)
    return status


def _open_keys(loaded: LoadedSettings, api_key: str, listener: socket.socket) -> KeyStore:
    """Return the keys. Raises ConfigError, with the listener closed."""
    try:
        return open_keys(loaded, api_key)
    except ConfigError:
        listener.close()
        raise


def _http_class(connections: Connections) -> Any:
    """Return the class of connections for uvicorn.Config."""
    http = type("HttpProtocol", (BoundedHttpProtocol,), {"limits": connections})
    return http if connections.tls is None else tls_protocol(http, connections.tls, connections)


def _server_tls(loaded: LoadedSettings, listener: socket.socket) -> ServerTls | None:
    """Read the certificate; None without TLS. Raises ConfigError, with the listener closed."""
    files = loaded.tls_files()
    try:
        return None if files is None else ServerTls(files)
    except TlsFileError as error:
        listener.close()
        raise ConfigError([ConfigIssue("config", None, f"server.{error.key}", error.message, "invalid")]) from error


def _connections(settings: ServerSettings, tls: ServerTls | None) -> Connections:
    """Return the bounds of connections, as far as the limit on file descriptors permits."""
    most = connections_within_limit(settings.max_connections)
    bounds = ConnectionBounds(settings.header_timeout_s, settings.body_timeout_s, most)
    return Connections(bounds, ByteLimit(settings.max_buffered_bytes), tls)


def _open_grpc_listener(settings: Settings, tls: ServerTls | None) -> "GrpcListener | None":
    """Open the port of gRPC; None if it is switched off. Raises CannotListenError.

    grpcio is imported only for an open port: it takes memory and start-up time.
    """
    if settings.server.grpc_port == 0:
        return None
    from app.grpc.bridge.server import CannotListen
    from app.grpc.listener import open_listener

    try:
        return open_listener(settings.server, is_checked=settings.auth.mode != "off", tls=tls)
    except CannotListen as error:
        raise CannotListenError(f"server.grpc_port: {error}; choose another port, or 0 for no gRPC") from error
