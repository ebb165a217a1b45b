"""Answer gRPC calls while the application runs, on the port of HTTP and on one of its own, and drain with it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from app.auth.authenticator import Authenticator
from app.config import ServerSettings, Settings
from app.grpc.authorization import CallAuthorization
from app.grpc.call import Check, Stream, Unary
from app.grpc.transport.server import GrpcBounds, GrpcServer
from app.http.listener.clocks import Connections
from app.http.listener.http2.clocks import http2_bounds
from app.inference.pipeline import Pipeline
from frameworks.core.tenants import Tenant
from frameworks.scheduling.byte_limit import ByteLimit

Methods = tuple[Mapping[str, Unary], Mapping[str, Stream], Callable[[Tenant], ByteLimit], Check | None, bool]
"""The arguments of `GrpcServer.answer`."""

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
        management: Callable[[], Mapping[str, Unary]],
        settings: Settings,
        authenticator: Authenticator | None = None,
    ) -> AsyncIterator[None]:
        """Answer calls within the block. When the server drains, or at the end of the block, refuse new calls, and
        complete the running ones within the drain timeout.

        `management`: returns those of `management_methods`. Without a port of its own the first call imports protobuf
        and all messages, which takes 30 ms. `authenticator`: exactly if the listener is checked.
        """

        def methods() -> Methods:
            from app.grpc.services import build_methods

            unary, streams = build_methods(pipeline, management(), settings.models.default_model)
            check = None
            if authenticator is not None:
                gate = CallAuthorization(authenticator, pipeline.observer)
                gate.with_scopes(unary, streams)
                check = gate.check
            return unary, streams, pipeline.bounds.byte_limit_of, check, pipeline.observer.tracer is not None

        def open_first(*call: Any) -> Any:
            self._server.answer(*methods())
            self._connections.open_call = self._server.open
            return self._server.open(*call)

        if self.port:
            await self._server.start(*methods())
        loop, is_draining = asyncio.get_running_loop(), asyncio.Event()
        # A signal handler may drain the server, at any point of this thread.
        pipeline.lifecycle.on_drain(partial(loop.call_soon_threadsafe, is_draining.set))
        ending = loop.create_task(self._end(is_draining, pipeline, settings.server.drain_timeout_s))
        self._connections.open_call = self._server.open if self.port else open_first
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
