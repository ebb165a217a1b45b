"""How the server begins and ends."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from app.grpc.bridge.server import GrpcServer
from app.grpc.call import Call, GrpcError
from tests.app.grpc.bridge.serving import UNARY, asking, echo, serving, status_of, streaming
from tests.support.loops import in_loop, task


@in_loop
async def test_who_connects_before_the_start_is_answered_after_it() -> None:
    server = GrpcServer(1000, 1)
    address = f"127.0.0.1:{server.bind('127.0.0.1', 0)}"
    async with asking(address) as ask:
        answer = task(_answer(ask(b"early")))
        await asyncio.sleep(0.1)
        assert not answer.done()
        await server.start({UNARY: echo}, {})
        assert await answer == b"early"
    await server.stop(1.0)


@in_loop
async def test_a_stream_that_is_under_way_goes_on_during_the_drain() -> None:
    async with serving() as (server, address), streaming(address) as open_stream:
        call = open_stream()
        await call.write(b"a")
        assert await call.read() == b"a"
        stopping = task(server.stop(10.0))
        await asyncio.sleep(0.1)
        await call.write(b"b")
        assert await call.read() == b"b"
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        await asyncio.wait_for(stopping, 2)


@in_loop
async def test_handlers_that_take_longer_are_cancelled_and_have_the_last_word() -> None:
    async def polite(request: bytes, call: Call) -> bytes:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise GrpcError("UNAVAILABLE", "ask another") from None
        return b""

    async def rude(requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        yield b"piece"
        await asyncio.sleep(60)

    async with serving(polite, rude) as (server, address), asking(address) as ask, streaming(address) as open_stream:
        answer = task(status_of(ask(b"")))
        call = open_stream()
        assert await call.read() == b"piece"
        await asyncio.wait_for(server.stop(0.1), 3)
        assert await answer == (grpc.StatusCode.UNAVAILABLE, "ask another")
        assert await call.code() is grpc.StatusCode.CANCELLED


@in_loop
async def test_a_handler_that_does_not_end_holds_up_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.grpc.bridge.server._LAST_WORDS_S", 0.2)
    is_let_go = asyncio.Event()

    async def stubborn(request: bytes, call: Call) -> bytes:
        while not is_let_go.is_set():
            try:
                await is_let_go.wait()
            except asyncio.CancelledError:
                continue
        return b""

    async with serving(stubborn) as (server, address), asking(address) as ask:
        answer = task(status_of(ask(b"")))
        await asyncio.sleep(0.1)
        await asyncio.wait_for(server.stop(0.0), 5)
        assert (await answer)[0] in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        is_let_go.set()


async def _answer(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> bytes:
    return await call
