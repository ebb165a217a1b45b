"""The server process: its socket, its signals, its end."""

import asyncio
import gc
import os
import socket
import threading
from types import FrameType
from typing import TYPE_CHECKING

import structlog
import uvicorn

if TYPE_CHECKING:
    from app.grpc.listener import GrpcListener

from app.config import LoadedSettings, ServerSettings
from app.http.protocol import BoundedHttpProtocol
from app.inference.lifecycle import Lifecycle
from app.observability.logs import configure_logging
from app.server.build import build
from memory.allocator import keep_freed_memory

log = structlog.get_logger(__name__)

# Clients and load balancers keep connections; 5 s, uvicorn's default, makes them race with the close.
_KEEP_ALIVE_S = 75
_BACKLOG = 2048
_YOUNG_OBJECTS = 10_000


class CannotListenError(Exception):
    """The address cannot be had; the message says why."""


class _DrainingServer(uvicorn.Server):
    """The first signal drains and ends with status 0; a second one ends the process at once."""

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            # Not sys.exit: a loader or device thread deep in a library would hold the process.
            os._exit(128 + sig)
        self._lifecycle.drain()
        self.should_exit = True


def serve(loaded: LoadedSettings, log_to_terminal: bool) -> int:
    """Serves until a signal ends it; the exit status. Raises CannotListenError."""
    settings = loaded.settings
    keep_freed_memory()
    # A round of the loop makes and drops a thousand objects; the collector is not to look through them each time.
    gc.set_threshold(_YOUNG_OBJECTS, 20, 20)
    configure_logging(settings.logging.level, settings.logging.format)
    log_requests = settings.logging.requests or ("all" if log_to_terminal else "slow_and_failed")
    listener = _listen(settings.server.host, settings.server.port)
    grpc_listener = _open_grpc_door(settings.server)
    for warning in loaded.warnings:
        log.warning("deprecated key", place=warning.place, key=warning.key, reason=warning.message)
    server = build(loaded, log_requests, grpc_listener=grpc_listener)
    host, port = listener.getsockname()[:2]
    config = uvicorn.Config(
        server.app,
        loop="uvloop" if os.name != "nt" else "asyncio",
        http=BoundedHttpProtocol,
        interface="asgi3",
        ws="none",
        lifespan="on",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.server.drain_timeout_s)),
        backlog=_BACKLOG,
    )
    uvicorn_server = _DrainingServer(config, server.lifecycle)
    log.info("listening", host=host, port=port, grpc_port=grpc_listener.port if grpc_listener else 0, pid=os.getpid())
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(uvicorn_server.serve(sockets=[listener]))
    log.info("stopped")
    status = 0 if uvicorn_server.started else 1
    if threading.active_count() > 1:
        # A load or a run outlasted the drain's time. A library that is torn down while it computes aborts the process.
        os._exit(status)
    return status


def _open_grpc_door(settings: ServerSettings) -> "GrpcListener | None":
    """Imported only where it is wanted: grpcio takes memory and a part of the start. Raises CannotListenError."""
    if settings.grpc_port == 0:
        return None
    from app.grpc.bridge.server import CannotListen
    from app.grpc.listener import open_listener

    try:
        return open_listener(settings)
    except CannotListen as error:
        raise CannotListenError(
            f"server.grpc_port: {error}; choose another, 0 for no gRPC, or end what holds it"
        ) from error


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket, before anything slow is done: a taken port is told at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotListenError(f'server.host: "{host}" is no address of this machine ({error.strerror})') from error
    try:
        if os.name != "nt":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Listening from now on: who connects while models load is answered, not refused.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotListenError(
            f"server.port: cannot listen on {host}:{port} ({error.strerror}); "
            "choose another with --port, or end what holds it"
        ) from error
    return listener
