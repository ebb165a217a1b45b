"""Serve the handlers of a test over real sockets, and connect clients to them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from app.grpc.call import Call, Stream, StreamingCall, Unary
from app.grpc.transport.server import GrpcBounds, GrpcServer

UNARY = "/test.Service/Unary"
STREAM = "/test.Service/Stream"


@asynccontextmanager
async def serving(
    unary: Unary | None = None,
    stream: Stream | None = None,
    max_message_bytes: int = 2**20,
    max_calls: int = 64,
    bounds: GrpcBounds | None = None,
) -> AsyncIterator[tuple[GrpcServer, str]]:
    """Yield the server and its address."""
    server = GrpcServer(max_message_bytes, max_calls, bounds or GrpcBounds())
    address = f"127.0.0.1:{server.bind('127.0.0.1', 0)}"
    await server.start({UNARY: unary or echo}, {STREAM: stream or echo_all})
    try:
        yield server, address
    finally:
        await server.stop(0.0)


@asynccontextmanager
async def unary_client(address: str, **options: Any) -> AsyncIterator[grpc.aio.UnaryUnaryMultiCallable[Any, Any]]:
    """Yield the unary method over a connection of its own."""
    async with connect(address) as channel:
        yield channel.unary_unary(UNARY, **options)


@asynccontextmanager
async def stream_client(address: str) -> AsyncIterator[grpc.aio.StreamStreamMultiCallable[Any, Any]]:
    async with connect(address) as channel:
        yield channel.stream_stream(STREAM)


def connect(address: str, options: Mapping[str, int] | None = None) -> grpc.aio.Channel:
    """Open a connection of its own; by default grpcio shares one between channels."""
    return grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1), *(options or {}).items()])


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Return code and details of a call that must fail."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("the call succeeded")


async def echo(request: bytes, call: Call) -> bytes:
    return request


async def echo_all(requests: AsyncIterator[bytes], call: StreamingCall) -> None:
    async for request in requests:
        await call.send(request)


class Gate:
    """A handler that waits until `open` is set, and counts its running and cancelled calls."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.running = 0
        self.cancelled = 0

    async def __call__(self, request: bytes, call: Call) -> bytes:
        self.running += 1
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return request
