"""Answer gRPC calls while the application runs, on the port of HTTP and on one of its own, and drain with it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from app.auth.authenticator import Authenticator
from app.config import ServerSettings, Settings
from app.grpc.authorization import CallAuthorization
from app.grpc.call import Unary
from app.grpc.services import build_methods
from app.grpc.transport.server import GrpcBounds, GrpcServer
from app.http.listener.clocks import Connections
from app.http.listener.http2.clocks import http2_bounds
from app.inference.pipeline import Pipeline

# Calls that run at once.
_MAX_CALLS = 2048
_POLL_S = 0.02
# When all requests have completed, only idle streams are open.
_IDLE_STREAMS_S = 0.2


class GrpcListener:
    """Answer calls within `serving`, on the connections of HTTP; its own port, if it has one, is open before."""

    def __init__(self, server: GrpcServer, connections: Connections, port: int = 0) -> None:
        """`port`: its own; 0: it has none."""
        self._server = server
        self._connections = connections
        self.port = port

    @asynccontextmanager
    async def serving(
        self,
        pipeline: Pipeline,
        management: Mapping[str, Unary],
        settings: Settings,
        authenticator: Authenticator | None = None,
    ) -> AsyncIterator[None]:
        """Answer calls within the block. When the server drains, or at the end of the block, refuse new calls, and
        complete the running ones within the drain timeout. `management`: of `management_methods`. `authenticator`:
        exactly if the listener is checked.
        """
        unary, streams = build_methods(pipeline, management, settings.models.default_model)
        check = None
        if authenticator is not None:
            gate = CallAuthorization(authenticator, pipeline.observer)
            gate.with_scopes(unary, streams)
            check = gate.check
        is_traced = pipeline.observer.tracer is not None
        await self._server.start(unary, streams, pipeline.bounds.byte_limit_of, check, is_traced)
        loop, is_draining = asyncio.get_running_loop(), asyncio.Event()
        # A signal handler may drain the server, at any point of this thread.
        pipeline.lifecycle.on_drain(partial(loop.call_soon_threadsafe, is_draining.set))
        ending = loop.create_task(self._end(is_draining, pipeline, settings.server.drain_timeout_s))
        self._connections.open_call = self._server.open
        try:
            yield
        finally:
            # The block may also end with an error, before a drain was requested.
            if not pipeline.lifecycle.is_draining:
                pipeline.lifecycle.drain()
            await ending

    async def _end(self, is_draining: asyncio.Event, pipeline: Pipeline, drain_timeout_s: float) -> None:
        """End the calls of a server that drains: idle streams too, for which HTTP's listener would wait."""
        await is_draining.wait()
        while pipeline.observer.inflight and pipeline.lifecycle.drain_left_s(drain_timeout_s):  # noqa: ASYNC110 - once
            await asyncio.sleep(_POLL_S)
        await self._server.stop(_IDLE_STREAMS_S)


def open_listener(
    settings: ServerSettings, connections: Connections, is_checked: bool = False, shares_port: bool = False
) -> GrpcListener | None:
    """Open the configured port, if there is one. Returns None if the settings disable gRPC.

    `connections`: of HTTP, which get calls too. `is_checked`: calls may need a key. `shares_port`: with other processes
    of this server. Raises CannotListenError.
    """
    if settings.grpc_port == 0:
        return None
    server = GrpcServer(
        settings.max_body_bytes, _MAX_CALLS, GrpcBounds(connections=http2_bounds(settings)), is_checked, shares_port
    )
    if settings.grpc_port is None:
        return GrpcListener(server, connections)
    port = server.bind(settings.host, settings.grpc_port, connections.tls)
    return GrpcListener(server, connections, port)
