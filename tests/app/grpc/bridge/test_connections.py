"""Test the bounds of connections, over real sockets."""

import asyncio
import struct

import grpc
import grpc.aio
import pytest

from app.grpc.bridge.server import ConnectionBounds
from tests.app.grpc.bridge.serving import UNARY, Gate, connect, serving, unary_client
from tests.support.loops import in_loop, soon

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
_SETTINGS, _MAX_CONCURRENT_STREAMS = 4, 3


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


@in_loop
async def test_calls_on_one_connection_bounded() -> None:
    gate = Gate()
    async with serving(gate, connections=ConnectionBounds(max_calls=2)) as (_, address):
        assert (await settings_of(address))[_MAX_CONCURRENT_STREAMS] == 2
        async with unary_client(address) as call, unary_client(address) as other:
            calls = [call(b"%d" % i) for i in range(5)]
            await soon(lambda: gate.running == 2)
            # Another connection is not affected, which also shows that the rest of the calls had time to start.
            answer = other(b"other")
            await soon(lambda: gate.running == 3)
            gate.open.set()
            assert [await each for each in calls] == [b"%d" % i for i in range(5)]
            assert await answer == b"other"


@pytest.mark.parametrize("bounds", [ConnectionBounds(idle_s=0.05), ConnectionBounds(age_s=0.05)])
@in_loop
async def test_connection_closed_when_idle_or_old(bounds: ConnectionBounds) -> None:
    async with serving(connections=bounds) as (_, address), connect(address) as channel:
        await channel.channel_ready()
        # The client connects again for its next call only.
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        assert await method(channel)(b"again") == b"again"


@in_loop
async def test_old_connection_completes_its_calls() -> None:
    gate = Gate()
    async with serving(gate, connections=ConnectionBounds(age_s=0.05)) as (_, address), connect(address) as channel:
        answer = method(channel)(b"1")
        await soon(lambda: gate.running == 1)
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        gate.open.set()
        assert await answer == b"1"


@in_loop
async def test_calls_cancelled_after_grace() -> None:
    gate = Gate()
    bounds = ConnectionBounds(age_s=0.05, grace_s=0.05)
    async with serving(gate, connections=bounds) as (_, address), connect(address) as channel:
        answer = method(channel)(b"1")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await answer
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        await soon(lambda: gate.running == 0)


@in_loop
async def test_connections_bounded() -> None:
    bounds = ConnectionBounds(max_connections=1)
    async with serving(connections=bounds) as (_, address), unary_client(address) as call:
        assert await call(b"1") == b"1"
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        writer.close()
        assert await call(b"2") == b"2"
