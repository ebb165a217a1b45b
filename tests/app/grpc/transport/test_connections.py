"""Test the bounds of connections, over real sockets."""

import asyncio
import gc
import struct

import grpc
import grpc.aio
import pytest

from app.grpc.call import Call, GrpcError
from app.grpc.transport.server import GrpcBounds
from app.http.listener.http2.clocks import Http2Bounds
from tests.app.grpc.transport.serving import UNARY, Gate, connect, serving, status_of, unary_client
from tests.support.loops import in_loop, soon

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
_RST_STREAM, _SETTINGS, _MAX_CONCURRENT_STREAMS = 3, 4, 3


async def settings_of(address: str) -> dict[int, int]:
    """Return the settings of HTTP/2 that the server sends to a new connection."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(_PREFACE + _EMPTY_SETTINGS)
        while True:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == _SETTINGS and payload:
                return dict(struct.iter_unpack(">HI", payload))
    finally:
        writer.close()


def method(channel: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(UNARY)


async def answered(call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes], message: bytes) -> bytes:
    """Return the answer. Call again if the call was refused unseen.

    A client starts its next call when it sees the end of another one; the server may count that one still.
    """
    while True:
        try:
            return await call(message)
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise


@in_loop
async def test_calls_on_one_connection_bounded() -> None:
    gate = Gate()
    async with serving(gate, bounds=GrpcBounds(connections=Http2Bounds(max_streams=2))) as (_, address):
        assert (await settings_of(address))[_MAX_CONCURRENT_STREAMS] == 2
        async with unary_client(address) as call, unary_client(address) as other:
            calls = [asyncio.create_task(answered(call, b"%d" % i)) for i in range(5)]
            await soon(lambda: gate.running == 2)
            # Another connection is not affected, which also shows that the rest of the calls had time to start.
            answer = other(b"other")
            await soon(lambda: gate.running == 3)
            gate.open.set()
            assert [await each for each in calls] == [b"%d" % i for i in range(5)]
            assert await answer == b"other"


@pytest.mark.parametrize("bounds", [Http2Bounds(idle_s=0.05, check_s=0.01), Http2Bounds(age_s=0.05, check_s=0.01)])
@in_loop
async def test_connection_closed_when_idle_or_old(bounds: Http2Bounds) -> None:
    async with serving(bounds=GrpcBounds(connections=bounds)) as (_, address), connect(address) as channel:
        await channel.channel_ready()
        # The client connects again for its next call only.
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        assert await method(channel)(b"again") == b"again"


@in_loop
async def test_old_connection_completes_its_calls() -> None:
    gate = Gate()
    async with (
        serving(gate, bounds=GrpcBounds(connections=Http2Bounds(age_s=0.05, check_s=0.01))) as (_, address),
        connect(address) as channel,
    ):
        answer = method(channel)(b"1")
        await soon(lambda: gate.running == 1)
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        gate.open.set()
        assert await answer == b"1"


@in_loop
async def test_calls_cancelled_after_grace() -> None:
    gate = Gate()
    bounds = GrpcBounds(connections=Http2Bounds(age_s=0.05, grace_s=0.05, check_s=0.01))
    async with serving(gate, bounds=bounds) as (_, address), connect(address) as channel:
        answer = method(channel)(b"1")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await answer
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        await soon(lambda: gate.running == 0)


@in_loop
async def test_connections_bounded() -> None:
    bounds = GrpcBounds(max_connections=1)
    async with serving(bounds=bounds) as (_, address), unary_client(address) as call:
        assert await call(b"1") == b"1"
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        writer.close()
        assert await call(b"2") == b"2"


def head_of_call(path: str) -> bytes:
    """Return the frame of HTTP/2 that starts a call; its request follows in other frames."""
    headers = ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "a"), ("te", "trailers"))
    block = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in (*headers, ("content-type", "application/grpc"))
    )
    return len(block).to_bytes(3, "big") + b"\1\4\0\0\0\1" + block


@pytest.mark.parametrize("request_frame", [b"", b"\0\0\7\0\0\0\0\0\1\0\0\0\0\5ab"])
@in_loop
async def test_call_without_whole_request_cancelled(request_frame: bytes) -> None:
    """The request does not arrive, or ends after two of its five bytes."""
    gate = Gate()
    async with serving(gate, bounds=GrpcBounds(request_s=0.05, connections=Http2Bounds(check_s=0.05))) as (_, address):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(_PREFACE + _EMPTY_SETTINGS + head_of_call(UNARY) + request_frame)
        # A connection that is served may wait for as long as it likes between its calls.
        async with unary_client(address) as call:
            gate.open.set()
            assert await call(b"1") == b"1"
        while True:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == _RST_STREAM:
                break
        writer.close()
        assert gate.running == 0


@in_loop
async def test_call_without_request_is_unimplemented() -> None:
    async with serving() as (_, address), connect(address) as channel:
        method: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(UNARY)
        assert (await status_of(method(iter(()))))[0] is grpc.StatusCode.UNIMPLEMENTED


@in_loop
async def test_failed_calls_free_their_places() -> None:
    """Also without the garbage collector, which a server that only refuses calls would not run."""

    async def fail(request: bytes, call: Call) -> bytes:
        raise GrpcError("NOT_FOUND", "absent")

    async with (
        serving(fail, bounds=GrpcBounds(connections=Http2Bounds(max_streams=4))) as (_, address),
        unary_client(address) as call,
    ):
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                with pytest.raises(grpc.aio.AioRpcError, match="absent"):
                    await asyncio.wait_for(answered(call, b""), 60)
        finally:
            gc.enable()
