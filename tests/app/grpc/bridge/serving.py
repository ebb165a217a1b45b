"""A gRPC server with the handlers of a test, and clients of it over real sockets."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from app.grpc.bridge.server import GrpcServer
from app.grpc.call import Call, Stream, Unary
from tests.support.loops import soon

UNARY = "/test.Service/Unary"
STREAM = "/test.Service/Stream"


@asynccontextmanager
async def serving(
    unary: Unary | None = None,
    stream: Stream | None = None,
    max_message_bytes: int = 2**20,
    max_calls: int = 64,
) -> AsyncIterator[tuple[GrpcServer, str]]:
    """The server and its address. At the end it has no thread left."""
    before = threads_of_calls()
    server = GrpcServer(max_message_bytes, max_calls)
    address = f"127.0.0.1:{server.bind('127.0.0.1', 0)}"
    await server.start({UNARY: unary or echo}, {STREAM: stream or echo_all})
    try:
        yield server, address
    finally:
        await server.stop(0.0)
        await soon(lambda: threads_of_calls() <= before)


@asynccontextmanager
async def asking(address: str, **options: Any) -> AsyncIterator[grpc.aio.UnaryUnaryMultiCallable[Any, Any]]:
    """The unary call, of a client that nobody else uses."""
    async with connected(address) as channel:
        yield channel.unary_unary(UNARY, **options)


@asynccontextmanager
async def streaming(address: str) -> AsyncIterator[grpc.aio.StreamStreamMultiCallable[Any, Any]]:
    async with connected(address) as channel:
        yield channel.stream_stream(STREAM)


def connected(address: str, options: Mapping[str, int] | None = None) -> grpc.aio.Channel:
    """A connection of its own: grpcio lets channels share one."""
    return grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1), *(options or {}).items()])


def threads_of_calls() -> int:
    return sum(thread.name == "grpc-call" for thread in threading.enumerate())


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Of a call that fails."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("the call was answered")


async def echo(request: bytes, call: Call) -> bytes:
    return request


async def echo_all(requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


class Gate:
    """A handler that waits to be let go, and tells what comes to it."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside = 0
        self.cancelled = 0

    async def __call__(self, request: bytes, call: Call) -> bytes:
        self.inside += 1
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.inside -= 1
        return request
