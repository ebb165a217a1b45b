"""Test calls in which either side sends many messages, over real sockets."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from app.grpc.call import GrpcError, StreamingCall
from tests.app.grpc.transport.serving import serving, stream_client
from tests.support.loops import in_loop


@in_loop
async def test_stream_answers_each_request_before_next() -> None:
    async with serving() as (_, address), stream_client(address) as open_stream:
        call = open_stream()
        for i in range(20):
            await call.write(b"%d" % i)
            assert await call.read() == b"%d" % i
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


@in_loop
async def test_stream_delivers_empty_messages() -> None:
    async with serving() as (_, address), stream_client(address) as open_stream:
        assert [response async for response in open_stream(iter([b"", b"a", b""]))] == [b"", b"a", b""]


@in_loop
async def test_handler_error_follows_responses_sent_before() -> None:
    async def fail_late(requests: AsyncIterator[bytes], call: StreamingCall) -> None:
        await call.send(b"piece")
        raise GrpcError("RESOURCE_EXHAUSTED", "full")

    async with serving(stream=fail_late) as (_, address), stream_client(address) as open_stream:
        call = open_stream()
        assert await call.read() == b"piece"
        with pytest.raises(grpc.aio.AioRpcError, match="full"):
            await call.read()
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@in_loop
async def test_client_cancel_cancels_waiting_stream_handler() -> None:
    is_cancelled = asyncio.Event()

    async def listen(requests: AsyncIterator[bytes], call: StreamingCall) -> None:
        try:
            async for request in requests:
                await call.send(request)
            # grpcio may end the requests of a disconnected client before it cancels the handler.
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            is_cancelled.set()
            raise

    async with serving(stream=listen) as (_, address), stream_client(address) as open_stream:
        call = open_stream()
        await call.write(b"a")
        assert await call.read() == b"a"
        call.cancel()
        await asyncio.wait_for(is_cancelled.wait(), 60)


@in_loop
async def test_handler_may_end_before_last_request() -> None:
    async def first(requests: AsyncIterator[bytes], call: StreamingCall) -> None:
        await call.send(await anext(requests))

    async with serving(stream=first) as (_, address), stream_client(address) as open_stream:
        for _ in range(3):
            call = open_stream()
            await call.write(b"a")
            assert await call.read() == b"a"
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK


@in_loop
async def test_request_after_timeout_arrives_at_next_read() -> None:
    async def impatient(requests: AsyncIterator[bytes], call: StreamingCall) -> None:
        while True:
            try:
                async with asyncio.timeout(0.05):
                    request = await anext(requests, b"end")
            except TimeoutError:
                await call.send(b"waiting")
                continue
            await call.send(request)
            if request == b"end":
                return

    async with serving(stream=impatient) as (_, address), stream_client(address) as open_stream:
        call = open_stream()
        assert await call.read() == b"waiting"
        await call.write(b"here")
        await call.done_writing()
        received = [await call.read()]
        while received[-1] not in (b"end", grpc.aio.EOF):
            received.append(await call.read())
    assert [response for response in received if response != b"waiting"] == [b"here", b"end"]


@in_loop
async def test_oversized_request_ends_stream() -> None:
    async with serving(max_message_bytes=10_000) as (_, address), stream_client(address) as open_stream:
        call = open_stream()
        await call.write(b"small")
        assert await call.read() == b"small"
        await call.write(bytes(10_001))
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
