"""Listen for HTTP and gRPC within a replica of Ray Serve, in its event loop, and without signals."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog
from starlette.types import ASGIApp
from uvicorn.lifespan.on import LifespanOn

from app.config import ServerSettings, Settings
from app.http.listener.clocks import Connections
from app.http.listener.sockets import listen_shared
from app.server.http_server import HttpServer, uvicorn_config

if TYPE_CHECKING:
    from app.grpc.listener import GrpcListener

log = structlog.get_logger(__name__)


class _Server(HttpServer):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Override: the signals of the process are those of Ray."""
        yield


class HttpListener:
    """Run the application from `start` to `stop`, and accept connections from `listen` on.

    Several ingresses on one node share the port: the kernel divides new connections among them.
    """

    def __init__(self, app: ASGIApp, connections: Connections, settings: ServerSettings) -> None:
        config = uvicorn_config(app, connections, settings)
        config.lifespan = "off"
        config.load()
        self._settings = settings
        self._lifespan = LifespanOn(config)
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it accepts connections, or will."""
        return self._serving is None or not self._serving.done()

    async def start(self) -> None:
        """Start the parts of the application. Raises RuntimeError; the log has the reason."""
        await self._lifespan.startup()
        if self._lifespan.should_exit:
            raise RuntimeError("the application has not started")

    def listen(self) -> None:
        """Accept connections. Raises CannotListenError."""
        listener = listen_shared(self._settings.host, self._settings.port)
        self._serving = asyncio.get_running_loop().create_task(self._serve(listener))

    async def stop(self) -> None:
        """Accept no more connections, complete the requests within the drain timeout, and stop the application."""
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving
        await self._lifespan.shutdown()

    async def _serve(self, listener: socket.socket) -> None:
        with listener:
            await self._server.serve(sockets=[listener])


def open_grpc_listener(settings: Settings, connections: Connections) -> "GrpcListener | None":
    """Open the port of gRPC, if it has one; None if gRPC is off. Raises CannotListenError."""
    if settings.server.grpc_port == 0:
        return None
    from app.grpc.listener import open_listener

    is_checked = settings.auth.mode != "off"
    return open_listener(settings.server, connections, is_checked, shares_port=True)
