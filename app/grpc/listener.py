"""The gRPC door as a whole: its port is had before anything slow is done, and it closes before the models leave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from app.config import ServerSettings
from app.grpc.bridge.server import CannotListen, GrpcServer
from app.grpc.services import stream_calls, unary_calls
from app.inference.pipeline import Pipeline

log = structlog.get_logger(__name__)

DEFAULT_PORT = 8081
# Calls under way at once, each of which has a thread.
_MOST_CALLS = 2048
_LOOK_S = 0.02
# What is left when every request has been answered are streams in which nobody asks anything.
_IDLE_STREAMS_S = 0.2


class GrpcListener:
    """Listens from `open_listener` on, answers within `serving`."""

    def __init__(self, server: GrpcServer, host: str, port: int) -> None:
        self._server = server
        self.host = host
        self.port = port

    @asynccontextmanager
    async def serving(
        self, pipeline: Pipeline, default_model: str | None, drain_timeout_s: float
    ) -> AsyncIterator[None]:
        """Answers calls within the block; at its end no new ones are taken, and those under way are answered, for what
        is left of the drain's time.
        """
        await self._server.start(unary_calls(pipeline, default_model), stream_calls(pipeline))
        try:
            yield
        finally:
            # Whatever ends the block: new requests are refused from here on.
            if not pipeline.lifecycle.is_draining:
                pipeline.lifecycle.drain()
            while pipeline.observer.inflight and pipeline.lifecycle.drain_left_s(drain_timeout_s):  # noqa: ASYNC110 - once
                await asyncio.sleep(_LOOK_S)
            await self._server.stop(_IDLE_STREAMS_S)


def open_listener(settings: ServerSettings) -> GrpcListener | None:
    """None where no gRPC is wanted, or nobody chose a port and the usual one is taken: two servers on one machine are
    no mistake. Raises CannotListen where the chosen one is taken.
    """
    if settings.grpc_port == 0:
        return None
    server = GrpcServer(settings.max_body_bytes, _MOST_CALLS)
    try:
        port = server.bind(settings.host, settings.grpc_port or DEFAULT_PORT)
    except CannotListen as error:
        if settings.grpc_port is not None:
            raise
        log.warning("no gRPC: the port is taken; set server.grpc_port to another, or to 0", reason=str(error))
        return None
    return GrpcListener(server, settings.host, port)
