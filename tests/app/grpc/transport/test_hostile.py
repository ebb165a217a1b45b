"""Test clients that break HTTP/2 or misuse it, over real sockets. Other clients are served meanwhile and afterwards."""

import asyncio
from collections.abc import Iterator

import pytest

from app.grpc.transport.framing import framed
from app.grpc.transport.server import GrpcBounds
from app.http.listener.http2.clocks import Http2Bounds
from tests.app.grpc.transport.attacks import attacked, is_clean
from tests.app.grpc.transport.serving import UNARY, Gate, serving
from tests.support import http2_frames as h2
from tests.support.http2_frames import END_STREAM, START, Peer, data_frame, frame, headers_frame, number
from tests.support.loops import in_loop, soon, task

MAX_FRAME_BYTES = 64 * 1024
REQUEST = headers_frame(1, UNARY) + data_frame(1, framed(b"valid"), END_STREAM)


async def is_answered(peer: Peer, stream_id: int) -> None:
    """Wait for the response of a call that echoes b"valid"."""
    while received := await peer.receive_kind(h2.DATA):
        if received.stream_id == stream_id:
            assert received.payload == framed(b"valid")
            return


def of_flood(one: bytes) -> Iterator[bytes]:
    """Yield a request that does not end, and then 40,000 times the same bytes."""
    yield headers_frame(1, UNARY)
    for _ in range(80):
        yield one * 500


def rapid_resets() -> Iterator[bytes]:
    for first in range(1, 40_000, 1_000):
        yield b"".join(
            headers_frame(i, UNARY) + frame(h2.RST_STREAM, number(8), stream_id=i)
            for i in range(first, first + 1_000, 2)
        )


def rapid_calls() -> Iterator[bytes]:
    """Yield streams that are reset as soon as they have their request."""
    for first in range(1, 40_000, 1_000):
        yield b"".join(
            headers_frame(i, UNARY)
            + data_frame(i, framed(b""), END_STREAM)
            + frame(h2.RST_STREAM, number(8), stream_id=i)
            for i in range(first, first + 1_000, 2)
        )


def continuations() -> Iterator[bytes]:
    yield headers_frame(1, UNARY, flags=0)
    for _ in range(80):
        yield frame(h2.CONTINUATION, h2.literals([(b"a", b"b")]), stream_id=1) * 500


FLOODS = {
    "ping": lambda: of_flood(frame(h2.PING, bytes(8))),
    "settings": lambda: of_flood(h2.settings({h2.MAX_FRAME_SIZE: 20_000})),
    "empty settings": lambda: of_flood(h2.settings()),
    "window of connection": lambda: of_flood(frame(h2.WINDOW_UPDATE, number(1))),
    "window of stream": lambda: of_flood(frame(h2.WINDOW_UPDATE, number(1), stream_id=1)),
    "empty data": lambda: of_flood(data_frame(1, b"")),
    "padding": lambda: of_flood(data_frame(1, b"\x02\0\0", h2.PADDED)),
    "acknowledged ping": lambda: of_flood(frame(h2.PING, bytes(8), h2.ACK)),
    "resets": rapid_resets,
    "resets of calls": rapid_calls,
    "continuations": continuations,
}


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("name", FLOODS)
@in_loop
async def test_flood_ends_only_its_connection(name: str, is_read: bool) -> None:
    """`is_read`: the client reads the server's answers, so that they do not pile up."""
    async with attacked(max_calls=10_000) as (server, address, ask), Peer.connect(address) as peer:
        reading = task(peer.end()) if is_read else None
        for part in FLOODS[name]():
            peer.write(part)
            assert await ask(b"other") == b"other"
            if not await peer.drain():
                break
        await soon(lambda: len(server._connections) == 1)
        if reading is not None:
            await reading


@in_loop
async def test_frames_without_meaning_are_ignored() -> None:
    unknown = frame(0xBB, b"what", 0xFF, 1) + frame(0xCC, stream_id=0)
    priority = frame(h2.PRIORITY, number(0) + b"\x10", stream_id=7) + frame(h2.PRIORITY, number(7) + b"\1", stream_id=1)
    update = frame(0x10, number(1) + b"u=1, i")  # PRIORITY_UPDATE
    noise = (unknown + priority + update) * 50
    head = frame(h2.HEADERS, number(7) + b"\x20" + h2.literals(h2.headers_of(UNARY)), h2.END_HEADERS | 32, 1)
    async with attacked() as (_, address, _), Peer.connect(address) as peer:
        peer.write(noise + head + noise + data_frame(1, framed(b"valid"), END_STREAM) + noise)
        await is_answered(peer, 1)


@in_loop
async def test_padding_takes_no_window() -> None:
    """A call whose padding is longer than the flow control window, in parts that fit it."""
    request = framed(b"v" * 3_000)
    async with attacked() as (_, address, _), Peer.connect(address) as peer:
        head = b"\x40" + h2.literals(h2.headers_of(UNARY)) + bytes(0x40)
        peer.write(frame(h2.HEADERS, head, h2.END_HEADERS | h2.PADDED, 1))
        for i in range(0, len(request), 100):
            padded = (b"\xff" + request[j : j + 1] + bytes(0xFF) for j in range(i, min(i + 100, len(request))))
            peer.write(b"".join(data_frame(1, each, h2.PADDED) for each in padded))
            await peer.handled()
        peer.write(data_frame(1, b"", END_STREAM))
        assert (await peer.receive_kind(h2.DATA)).payload == request


@in_loop
async def test_call_in_single_bytes_is_answered() -> None:
    async with attacked() as (_, address, _), Peer.connect(address, b"", acknowledges=False) as peer:
        for byte in START + REQUEST:
            peer.write(bytes([byte]))
            await asyncio.sleep(0)
        await is_answered(peer, 1)


BROKEN = {
    "frame above announced size": (data_frame(1, bytes(MAX_FRAME_BYTES + 1)), 6),
    "data on stream 0": (data_frame(0, b"a"), 1),
    "data on idle stream": (data_frame(9, b"a"), 1),
    "headers on even stream": (headers_frame(2, UNARY), 1),
    "reset of idle stream": (frame(h2.RST_STREAM, number(8), stream_id=9), 1),
    "continuation without headers": (frame(h2.CONTINUATION, stream_id=1), 1),
    "frame between continuations": (headers_frame(3, UNARY, flags=0) + frame(h2.PING, bytes(8)), 1),
    "padding above frame": (data_frame(1, b"\x09a", h2.PADDED), 1),
    "push of client": (frame(h2.PUSH_PROMISE, number(2), h2.END_HEADERS, 1), 1),
    "settings with cut entry": (frame(h2.SETTINGS, bytes(5)), 6),
    "window above 2 GiB": (h2.settings({h2.INITIAL_WINDOW_SIZE: 2**31}), 3),
    "small frames asked for": (h2.settings({h2.MAX_FRAME_SIZE: 1}), 1),
    "window of connection overflows": (frame(h2.WINDOW_UPDATE, number(2**31 - 1)), 3),
    "window of connection grows by 0": (frame(h2.WINDOW_UPDATE, number(0)), 1),
    "short ping": (frame(h2.PING, bytes(7)), 6),
    "unknown index of header": (frame(h2.HEADERS, b"\xff\x80\x01", h2.END_HEADERS, 3), 9),
    "end within header": (frame(h2.HEADERS, b"\0\x05ab", h2.END_HEADERS, 3), 9),
}


@pytest.mark.parametrize("name", BROKEN)
@in_loop
async def test_broken_frame_ends_only_its_connection(name: str) -> None:
    content, error_code = BROKEN[name]
    async with attacked() as (server, address, ask), Peer.connect(address) as peer:
        peer.write(headers_frame(1, UNARY))
        await peer.handled()
        peer.write(content)
        assert await peer.end() == error_code
        await soon(lambda: len(server._connections) == 1)
        assert await ask(b"other") == b"other"


@in_loop
async def test_stream_id_that_goes_back_is_ignored() -> None:
    def whole(stream_id: int) -> bytes:
        return headers_frame(stream_id, UNARY) + data_frame(stream_id, framed(b"valid"), END_STREAM)

    async with attacked() as (_, address, _), Peer.connect(address) as peer:
        peer.write(whole(5))
        await is_answered(peer, 5)
        peer.write(whole(3) + whole(7))
        await is_answered(peer, 7)
        assert not [each for each in await peer.handled() if each.kind == h2.DATA]


@in_loop
async def test_wrong_preface_ends_connection() -> None:
    async with attacked() as (server, address, _):
        async with Peer.connect(address, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", acknowledges=False) as peer:
            await peer.end()
        await soon(lambda: len(server._connections) == 1)


@pytest.mark.parametrize("first", [b"", h2.PREFACE[:5], h2.PREFACE, h2.PREFACE + h2.settings()[:5]])
@in_loop
async def test_connection_without_preface_ends(first: bytes) -> None:
    bounds = GrpcBounds(connections=Http2Bounds(preface_s=0.1, check_s=0.05))
    async with attacked(bounds=bounds) as (server, address, _):
        async with Peer.connect(address, first, acknowledges=False) as peer:
            await peer.end()
        await soon(lambda: len(server._connections) == 1)


@in_loop
async def test_silence_within_frame_stops_no_other() -> None:
    async with attacked() as (server, address, ask):
        async with Peer.connect(address) as peer:
            peer.write(headers_frame(1, UNARY)[:-3])
            assert await ask(b"other") == b"other"
            assert len(server._connections) == 2
        await soon(lambda: len(server._connections) == 1)


@in_loop
async def test_silent_client_loses_its_connection() -> None:
    bounds = GrpcBounds(connections=Http2Bounds(ping_s=0.1, pong_s=0.1, check_s=0.01))
    async with attacked(bounds=bounds) as (server, address, _):
        async with Peer.connect(address) as peer:
            peer.write(headers_frame(1, UNARY)[:-3])
            assert (await peer.receive_kind(h2.PING)).payload == b"is alive"
            await peer.end()
        await soon(lambda: len(server._connections) == 1)


@in_loop
async def test_streams_above_bound_are_refused() -> None:
    gate = Gate()
    bounds = GrpcBounds(connections=Http2Bounds(max_streams=2))
    async with serving(gate, bounds=bounds) as (server, address):
        async with Peer.connect(address, acknowledges=False) as peer:
            for i in (1, 3, 5):
                peer.write(headers_frame(i, UNARY) + data_frame(i, framed(b"valid"), END_STREAM))
            refused = await peer.receive_kind(h2.RST_STREAM)
            assert (refused.stream_id, refused.error_code) == (5, 7)
            assert gate.running == 2
            # Once it has acknowledged the bound, a client that exceeds it breaks the protocol.
            peer.write(h2.SETTINGS_ACK + headers_frame(7, UNARY))
            assert await peer.end() == 1
        await soon(lambda: gate.cancelled == 2)
        await is_clean(server)
