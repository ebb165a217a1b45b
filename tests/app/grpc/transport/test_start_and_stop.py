"""Test how the server starts and stops."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from app.grpc.call import Call, GrpcError, StreamingCall
from app.grpc.transport.server import GrpcBounds, GrpcServer
from tests.app.grpc.transport.serving import UNARY, echo, serving, status_of, stream_client, unary_client
from tests.support.loops import in_loop, task


@in_loop
async def test_call_before_start_is_answered_after_start() -> None:
    server = GrpcServer(1000, 1, GrpcBounds())
    address = f"127.0.0.1:{server.bind('127.0.0.1', 0)}"
    async with unary_client(address) as ask:
        answer = task(_answer(ask(b"early")))
        await asyncio.sleep(0.1)
        assert not answer.done()
        await server.start({UNARY: echo}, {})
        assert await answer == b"early"
    await server.stop(1.0)


@in_loop
async def test_stop_lets_running_stream_continue() -> None:
    async with serving() as (server, address), stream_client(address) as open_stream:
        call = open_stream()
        await call.write(b"a")
        assert await call.read() == b"a"
        stopping = task(server.stop(60.0))
        await asyncio.sleep(0.1)
        await call.write(b"b")
        assert await call.read() == b"b"
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        await asyncio.wait_for(stopping, 60)


@in_loop
async def test_stop_sends_response_of_cancelled_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.grpc.transport.server._CANCEL_GRACE_S", 30.0)
    is_begun = asyncio.Event()

    async def polite(request: bytes, call: Call) -> bytes:
        is_begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise GrpcError("UNAVAILABLE", "ask another") from None
        return b""

    async def rude(requests: AsyncIterator[bytes], call: StreamingCall) -> None:
        await call.send(b"piece")
        await asyncio.sleep(60)

    async with (
        serving(polite, rude) as (server, address),
        unary_client(address) as ask,
        stream_client(address) as open_stream,
    ):
        answer = task(status_of(ask(b"")))
        call = open_stream()
        assert await call.read() == b"piece"
        await asyncio.wait_for(is_begun.wait(), 60)
        await asyncio.wait_for(server.stop(0.1), 60)
        assert await answer == (grpc.StatusCode.UNAVAILABLE, "ask another")
        assert await call.code() is grpc.StatusCode.CANCELLED


@in_loop
async def test_stop_abandons_handler_that_ignores_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.grpc.transport.server._CANCEL_GRACE_S", 0.2)
    is_begun, is_released = asyncio.Event(), asyncio.Event()

    async def stubborn(request: bytes, call: Call) -> bytes:
        is_begun.set()
        while not is_released.is_set():
            try:
                await is_released.wait()
            except asyncio.CancelledError:
                continue
        return b""

    async with serving(stubborn) as (server, address), unary_client(address) as ask:
        answer = task(status_of(ask(b"")))
        await asyncio.wait_for(is_begun.wait(), 60)
        await asyncio.wait_for(server.stop(0.0), 60)
        assert (await answer)[0] in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        is_released.set()


async def _answer(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> bytes:
    return await call
