"""Test clients that do not take their responses, or send more than they may."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.grpc.call import StreamingCall
from app.grpc.transport.framing import framed
from app.grpc.transport.server import GrpcBounds
from app.http.listener.http2.clocks import Http2Bounds
from tests.app.grpc.transport.attacks import attacked
from tests.app.grpc.transport.serving import STREAM, UNARY
from tests.support import http2_frames as h2
from tests.support.http2_frames import END_STREAM, Client, Peer, data_frame, frame, headers_frame, number
from tests.support.loops import in_loop, soon

WINDOW_BYTES, MAX_FRAME_BYTES, MOST = 256 * 1024, 64 * 1024, 2**31 - 1
MAX_UNSENT_BYTES = 64 * 1024
"""Of a stream, before its handler waits."""
PIECE = bytes(10_000)


class Flowing:
    """A handler that never ends its responses, and counts them."""

    def __init__(self) -> None:
        self.num_sent = self.num_ended = 0

    async def __call__(self, requests: AsyncIterator[bytes], call: StreamingCall) -> None:
        try:
            while True:
                self.num_sent += 1
                await call.send(PIECE)
        finally:
            self.num_ended += 1


@in_loop
async def test_client_without_window_pauses_its_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    flowing = Flowing()
    bounds = GrpcBounds(connections=Http2Bounds(check_s=0.05))
    async with attacked(stream=flowing, bounds=bounds) as (server, address, ask):
        (other,) = server._connections
        async with Peer.connect(address, h2.PREFACE + h2.settings({h2.INITIAL_WINDOW_SIZE: 0})) as peer:
            peer.write(b"".join(headers_frame(i, STREAM, END_STREAM | h2.END_HEADERS) for i in (1, 3, 5)))
            await peer.handled()
            (connection,) = server._connections - {other}
            await soon(lambda: all(connection.unsent_bytes(i) > MAX_UNSENT_BYTES for i in (1, 3, 5)))
            num_sent = flowing.num_sent
            assert await ask(b"other") == b"other"
            assert all(connection.unsent_bytes(i) < MAX_UNSENT_BYTES + 2 * len(PIECE) for i in (1, 3, 5))
            # A client that takes some of it gets more.
            for stream_id in (0, 3):
                peer.write(frame(h2.WINDOW_UPDATE, number(2 * MAX_UNSENT_BYTES), stream_id=stream_id))
            await soon(lambda: flowing.num_sent >= num_sent + 7)
            monkeypatch.setattr("app.http.listener.http2.clocks.STALL_S", 0.1)
            await peer.end()
        await soon(lambda: flowing.num_ended == 3)


@in_loop
async def test_client_that_does_not_read_pauses_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its flow control windows are open, but it takes nothing from its socket."""
    flowing = Flowing()
    bounds = GrpcBounds(connections=Http2Bounds(check_s=0.05))
    async with attacked(stream=flowing, bounds=bounds) as (server, address, ask):
        (other,) = server._connections
        first = h2.PREFACE + h2.settings({h2.INITIAL_WINDOW_SIZE: MOST})
        async with Peer.connect(address, first) as peer:
            peer.write(frame(h2.WINDOW_UPDATE, number(MOST - MAX_FRAME_BYTES)))
            peer.write(b"".join(headers_frame(i, STREAM, END_STREAM | h2.END_HEADERS) for i in (1, 3, 5)))
            await soon(lambda: len(server._connections) == 2)
            (connection,) = server._connections - {other}
            await soon(lambda: all(connection.unsent_bytes(i) > MAX_UNSENT_BYTES for i in (1, 3, 5)))
            assert await ask(b"other") == b"other"
            assert all(connection.unsent_bytes(i) < MAX_UNSENT_BYTES + 2 * len(PIECE) for i in (1, 3, 5))
            # Above the limit of the socket there is at most one part, which is serialized at once.
            assert connection.transport.get_write_buffer_size() < MAX_UNSENT_BYTES + WINDOW_BYTES + MAX_FRAME_BYTES
            monkeypatch.setattr("app.http.listener.http2.clocks.STALL_S", 0.1)
            await soon(lambda: server._connections == {other})
        await soon(lambda: flowing.num_ended == 3)


@in_loop
async def test_broken_connection_that_lingers_stops_no_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reads nothing, so that the connection cannot close, while the deadline of one of its calls passes.

    It is closed all the same after a while.
    """
    monkeypatch.setattr("app.http.listener.http2.connection._CLOSE_S", 0.5)
    monkeypatch.setattr("app.http.listener.http2.connection._LINGER_S", 0.1)
    flowing = Flowing()
    bounds = GrpcBounds(connections=Http2Bounds(check_s=0.05))
    async with attacked(stream=flowing, bounds=bounds) as (server, address, _):
        (other,) = server._connections
        first = h2.PREFACE + h2.settings({h2.INITIAL_WINDOW_SIZE: MOST})
        async with Peer.connect(address, first) as peer:
            peer.write(frame(h2.WINDOW_UPDATE, number(MOST - MAX_FRAME_BYTES)))
            for stream_id in (1, 3, 5):
                headers = h2.literals(h2.headers_of(STREAM, (b"grpc-timeout", b"1S")))
                peer.write(frame(h2.HEADERS, headers, h2.END_HEADERS, stream_id))
            await soon(lambda: len(server._connections) == 2)
            (connection,) = server._connections - {other}
            await soon(lambda: all(connection.unsent_bytes(i) > MAX_UNSENT_BYTES for i in (1, 3, 5)))
            peer.write(h2.settings() * 5_000)
            await soon(lambda: flowing.num_ended == 3)
            async with Client.connect(address) as client:
                stream_id = client.engine.open(h2.headers_of(UNARY, (b"grpc-timeout", b"1m")))
                assert (await client.response(stream_id)).headers[b"grpc-status"] == b"4"
            await soon(lambda: connection not in server._connections)


@pytest.mark.parametrize("window", [9, 10])
@in_loop
async def test_trailers_follow_response_that_fills_window(window: int) -> None:
    """The handler ends when the client's flow control window is smaller than the response, or as large."""
    first = h2.PREFACE + h2.settings({h2.INITIAL_WINDOW_SIZE: window})
    async with attacked() as (_, address, _), Peer.connect(address, first) as peer:
        peer.write(headers_frame(1, STREAM) + data_frame(1, framed(b"valid")))
        assert (await peer.receive_kind(h2.DATA)).payload == framed(b"valid")[:window]
        peer.write(data_frame(1, b"", END_STREAM))
        frames = [*await peer.handled(), *await peer.handled()]
        assert h2.RST_STREAM not in [each.kind for each in frames]
        peer.write(frame(h2.WINDOW_UPDATE, number(100), stream_id=1))
        assert (await peer.ended(1))[-1].kind == h2.HEADERS


@in_loop
async def test_response_of_another_stream_delays_trailers_only() -> None:
    """It fills the window of the connection; the empty response of a call is complete when there is space again."""
    message = framed(bytes(65_530))
    async with attacked() as (_, address, _), Peer.connect(address) as peer:
        peer.write(headers_frame(1, STREAM))
        for begin in range(0, len(message), 16_000):
            peer.write(data_frame(1, message[begin : begin + 16_000]))
        await peer.handled()
        peer.write(headers_frame(3, STREAM, END_STREAM | h2.END_HEADERS))
        frames = [*await peer.handled(), *await peer.handled()]
        assert h2.RST_STREAM not in [each.kind for each in frames]
        peer.write(frame(h2.WINDOW_UPDATE, number(100)))
        assert (await peer.ended(3))[-1].kind == h2.HEADERS


@in_loop
async def test_data_beyond_window_ends_its_connection() -> None:
    """The handler does not ask for its requests."""
    is_open = asyncio.Event()

    async def late(requests: AsyncIterator[bytes], call: StreamingCall) -> None:
        await is_open.wait()
        async for request in requests:
            await call.send(request)

    async with attacked(stream=late) as (server, address, _), Peer.connect(address) as peer:
        peer.write(headers_frame(1, STREAM) + data_frame(1, framed(b"first")))
        await peer.handled()
        part = framed(bytes(MAX_FRAME_BYTES - 5))
        for _ in range(WINDOW_BYTES // MAX_FRAME_BYTES - 1):
            peer.write(data_frame(1, part))
            await peer.handled()
        peer.write(data_frame(1, part))
        assert (await peer.end()) == 3
        await soon(lambda: len(server._connections) == 1)


@in_loop
async def test_trailers_without_window_end_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with an empty response, which the client never takes, does not keep its place."""
    monkeypatch.setattr("app.http.listener.http2.clocks.STALL_S", 0.1)
    monkeypatch.setattr("app.http.listener.http2.connection._LINGER_S", 0.1)
    bounds = GrpcBounds(connections=Http2Bounds(check_s=0.05))
    first = h2.PREFACE + h2.settings({h2.INITIAL_WINDOW_SIZE: 0})
    async with attacked(bounds=bounds) as (server, address, _), Peer.connect(address, first) as peer:
        peer.write(headers_frame(1, STREAM, END_STREAM | h2.END_HEADERS))
        assert (await peer.receive_kind(h2.HEADERS)).stream_id == 1
        await soon(lambda: server._calls.num_open == 0)
