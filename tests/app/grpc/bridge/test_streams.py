"""Calls in which either side sends many messages, over real sockets."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from app.grpc.bridge.call_threads import CallThreads
from app.grpc.call import Call, GrpcError
from tests.app.grpc.bridge.serving import serving, streaming
from tests.support.loops import in_loop


@in_loop
async def test_each_request_is_answered_before_the_next_is_sent() -> None:
    async with serving() as (_, address), streaming(address) as open_stream:
        call = open_stream()
        for i in range(20):
            await call.write(b"%d" % i)
            assert await call.read() == b"%d" % i
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


@in_loop
async def test_empty_messages_are_messages() -> None:
    async with serving() as (_, address), streaming(address) as open_stream:
        assert [response async for response in open_stream(iter([b"", b"a", b""]))] == [b"", b"a", b""]


@in_loop
async def test_an_error_comes_after_what_was_given_before_it() -> None:
    async def fail_late(requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        yield b"piece"
        raise GrpcError("RESOURCE_EXHAUSTED", "full")

    async with serving(stream=fail_late) as (_, address), streaming(address) as open_stream:
        call = open_stream()
        assert await call.read() == b"piece"
        with pytest.raises(grpc.aio.AioRpcError, match="full"):
            await call.read()
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@in_loop
async def test_a_handler_whose_client_is_gone_is_cancelled_whatever_it_waits_for() -> None:
    is_cancelled = asyncio.Event()

    async def listen(requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        try:
            async for request in requests:
                yield request
            # An end that the client has not said: grpcio may tell of it first.
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            is_cancelled.set()
            raise

    async with serving(stream=listen) as (_, address), streaming(address) as open_stream:
        call = open_stream()
        await call.write(b"a")
        assert await call.read() == b"a"
        call.cancel()
        await asyncio.wait_for(is_cancelled.wait(), 5)


@in_loop
async def test_a_handler_may_end_before_it_has_heard_all() -> None:
    async def first(requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        yield await anext(requests)

    async with serving(stream=first) as (_, address), streaming(address) as open_stream:
        for _ in range(3):
            call = open_stream()
            await call.write(b"a")
            assert await call.read() == b"a"
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK


@in_loop
async def test_who_stops_waiting_for_a_request_finds_it_later() -> None:
    async def impatient(requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(0.05):
                    request = await anext(requests, b"end")
            except TimeoutError:
                yield b"waiting"
                continue
            yield request
            if request == b"end":
                return

    async with serving(stream=impatient) as (_, address), streaming(address) as open_stream:
        call = open_stream()
        assert await call.read() == b"waiting"
        await call.write(b"here")
        await call.done_writing()
        heard = [await call.read()]
        while heard[-1] not in (b"end", grpc.aio.EOF):
            heard.append(await call.read())
    assert [response for response in heard if response != b"waiting"] == [b"here", b"end"]


@in_loop
async def test_a_request_that_is_too_large_ends_the_stream() -> None:
    async with serving(max_message_bytes=10_000) as (_, address), streaming(address) as open_stream:
        call = open_stream()
        await call.write(b"small")
        assert await call.read() == b"small"
        await call.write(bytes(10_001))
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@in_loop
async def test_a_stream_whose_requests_no_thread_can_read_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CallThreads, "try_run", lambda *_: False)
    async with serving() as (_, address), streaming(address) as open_stream:
        call = open_stream(iter([b"a"]))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
