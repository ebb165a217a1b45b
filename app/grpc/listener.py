"""Open the gRPC port at start-up, answer calls while the application runs, and drain before the models are unloaded."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog

from app.auth.authenticator import Authenticator
from app.auth.tls import ServerTls
from app.config import ServerSettings, Settings
from app.grpc.authorization import CallAuthorization
from app.grpc.call import Unary
from app.grpc.services import build_methods
from app.grpc.transport.server import GrpcBounds, GrpcServer
from app.http.listener.http2.clocks import Http2Bounds
from app.http.listener.sockets import CannotListenError
from app.inference.pipeline import Pipeline

log = structlog.get_logger(__name__)

DEFAULT_PORT = 8081
# Calls that run at once.
_MAX_CALLS = 2048
_POLL_S = 0.02
# When all requests have completed, only idle streams are open.
_IDLE_STREAMS_S = 0.2
DEFAULT_PORT_IN_USE = "gRPC is off: the default port is in use; set server.grpc_port to another or to 0"


class GrpcListener:
    """Listen from `open_listener` on; answer calls within `serving`."""

    def __init__(self, server: GrpcServer, host: str, port: int) -> None:
        self._server = server
        self.host = host
        self.port = port

    @asynccontextmanager
    async def serving(
        self,
        pipeline: Pipeline,
        management: Mapping[str, Unary],
        settings: Settings,
        authenticator: Authenticator | None = None,
    ) -> AsyncIterator[None]:
        """Answer calls within the block. At its end refuse new calls, and complete the running ones within the rest of
        the drain timeout. `management`: of `management_methods`. `authenticator`: exactly if the listener is checked.
        """
        unary, streams = build_methods(pipeline, management, settings.models.default_model)
        check = None
        if authenticator is not None:
            gate = CallAuthorization(authenticator, pipeline.observer)
            gate.with_scopes(unary, streams)
            check = gate.check
        is_traced = pipeline.observer.tracer is not None
        await self._server.start(unary, streams, pipeline.bounds.byte_limit_of, check, is_traced)
        drain_timeout_s = settings.server.drain_timeout_s
        try:
            yield
        finally:
            # The block may also end with an error, before a drain was requested.
            if not pipeline.lifecycle.is_draining:
                pipeline.lifecycle.drain()
            while pipeline.observer.inflight and pipeline.lifecycle.drain_left_s(drain_timeout_s):  # noqa: ASYNC110 - once
                await asyncio.sleep(_POLL_S)
            await self._server.stop(_IDLE_STREAMS_S)


def open_listener(
    settings: ServerSettings, is_checked: bool = False, tls: ServerTls | None = None
) -> GrpcListener | None:
    """Open the configured port, or the default port if none is configured.

    Returns None if the settings disable gRPC, or if the default port is in use: two servers on one machine are no
    mistake. `is_checked`: calls may need a key. `tls`: None for plain connections. Raises CannotListenError if the
    configured port is in use.
    """
    if settings.grpc_port == 0:
        return None
    server = _server(settings, is_checked, shares_port=False)
    try:
        port = server.bind(settings.host, settings.grpc_port or DEFAULT_PORT, tls)
    except CannotListenError as error:
        if settings.grpc_port is not None:
            raise
        log.warning(DEFAULT_PORT_IN_USE, reason=str(error))
        return None
    return GrpcListener(server, settings.host, port)


def open_shared_listener(
    settings: ServerSettings, port: int, is_checked: bool = False, tls: ServerTls | None = None
) -> GrpcListener:
    """Open the reserved port in a worker; the kernel shares its connections among all. Raises CannotListenError."""
    server = _server(settings, is_checked, shares_port=True)
    return GrpcListener(server, settings.host, server.bind(settings.host, port, tls))


def _server(settings: ServerSettings, is_checked: bool, shares_port: bool) -> GrpcServer:
    age_s = settings.grpc_max_connection_age_s
    bounds = GrpcBounds(connections=Http2Bounds(age_s=age_s, grace_s=age_s))
    return GrpcServer(settings.max_body_bytes, _MAX_CALLS, bounds, is_checked, shares_port)
