"""Test calls that break HTTP/2 or gRPC: long header lists, false messages, unfinished ones, early resets."""

import gzip
from collections.abc import Callable

import pytest

from app.grpc.transport.framing import framed
from app.grpc.transport.server import GrpcBounds, GrpcServer
from frameworks.scheduling.byte_limit import ByteLimit
from tests.app.grpc.transport.attacks import attacked, is_clean
from tests.app.grpc.transport.serving import STREAM, UNARY, echo, echo_all, unary_client
from tests.support import http2_frames as h2
from tests.support.http2_frames import END_STREAM, Client, Peer, data_frame, frame, headers_frame, number
from tests.support.loops import in_loop, soon

RESET = frame(h2.RST_STREAM, number(8), stream_id=1)
GET = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", UNARY.encode())]


def long_list() -> bytes:
    """Return header values that are below the bound of a frame, but together above that of a header list."""
    parts = [frame(h2.CONTINUATION, h2.literals([(b"x", b"v" * 10_000)]), stream_id=1) for _ in range(7)]
    return b"".join([headers_frame(1, UNARY, flags=0), *parts, frame(h2.CONTINUATION, b"", h2.END_HEADERS, 1)])


def repeated_index() -> bytes:
    """Return a header block of 60 KB that stands for 240 MB: each byte for a header of 4000 bytes."""
    block = h2.literals(h2.headers_of(UNARY)) + h2.indexed_literal(b"x", b"v" * 4_000) + b"\xbe" * 60_000
    return frame(h2.HEADERS, block, h2.END_HEADERS, 1)


def many_headers() -> bytes:
    return frame(h2.HEADERS, h2.literals(h2.headers_of(UNARY) + [(b"a", b"b")] * 5_000), h2.END_HEADERS, 1)


@pytest.mark.parametrize("headers", [long_list, repeated_index, many_headers])
@in_loop
async def test_header_list_above_bound_ends_connection(headers: Callable[[], bytes]) -> None:
    async with attacked() as (server, address, ask), Peer.connect(address) as peer:
        peer.write(headers())
        await peer.end()
        await soon(lambda: len(server._connections) == 1)
        assert not server._calls.num_open
        assert await ask(b"other") == b"other"


@in_loop
async def test_header_list_within_bound_is_taken() -> None:
    metadata = [(b"x%d" % i, b"v" * 10_000) for i in range(6)]
    async with attacked() as (_, address, _), Client.connect(address) as client:
        assert (await client.call(UNARY, framed(b"valid"), *metadata)).body == framed(b"valid")


@pytest.mark.parametrize("at", [[], [b"\0\0\0"], [framed(b"whole")], [framed(b"a"), framed(b"b")]])
@pytest.mark.parametrize("path", [UNARY, STREAM, "/unknown"])
@in_loop
async def test_call_reset_as_it_arrives_ends(path: str, at: list[bytes]) -> None:
    """All frames arrive together: the handler has not begun yet."""
    async with attacked() as (server, address, _), Peer.connect(address) as peer:
        peer.write(headers_frame(1, path) + b"".join(data_frame(1, each) for each in at) + RESET)
        await peer.handled()
        await soon(lambda: not (server._calls.num_open or server._calls.tasks))


@pytest.mark.parametrize(
    "headers", [GET, [*GET[:3], (b":path", b"/"), (b"te", b"trailers")], h2.headers_of("/a", (b"grpc-timeout", b"x"))]
)
@in_loop
async def test_stream_refused_and_reset_leaves_connection(headers: list[h2.Header]) -> None:
    """The response of a stream that is reset already is not sent, and other streams are not affected."""
    async with attacked() as (_, address, _), Peer.connect(address) as peer:
        peer.write(frame(h2.HEADERS, h2.literals(headers), h2.END_HEADERS, 1) + RESET)
        peer.write(headers_frame(3, UNARY) + data_frame(3, framed(b"valid"), END_STREAM))
        assert (await peer.receive_kind(h2.DATA)).payload == framed(b"valid")


@in_loop
async def test_get_and_other_content_are_refused() -> None:
    async with attacked() as (_, address, _), Client.connect(address) as client:
        for headers in (GET, [*h2.headers_of(UNARY)[:5], (b"content-type", b"text/html")], h2.headers_of(UNARY)[:5]):
            response = await client.response(client.engine.request(headers, b""))
            assert response.headers == {b":status": b"415"}


ZEROS = gzip.compress(bytes(50_000_000), 9)
BOMB = b"\1" + len(ZEROS).to_bytes(4, "big") + ZEROS
GZIP = (b"grpc-encoding", b"gzip")
FALSE_CALLS: dict[str, tuple[bytes, tuple[h2.Header, ...], bytes, bytes]] = {
    "4 GiB": (b"\0\xff\xff\xff\xff", (), b"8", b"got 4294967295"),
    "above bound": (framed(bytes(2**20 + 1)), (), b"8", b"at most 1048576 bytes"),
    "compressed above bound": (BOMB, (GZIP,), b"8", b"got more after decompression"),
    "compressed cut": (b"\1\0\0\0\x0a" + gzip.compress(b"abc" * 100)[:10], (GZIP,), b"3", b"got a part"),
    "compressed in no encoding": (b"\1\0\0\0\1a", (), b"13", b"gzip or deflate for a compressed message"),
    "not compressed": (b"\1\0\0\0\3abc", (GZIP,), b"3", b"expected content in gzip"),
    "flag": (b"\2\0\0\0\1a", (), b"13", b"a flag of 0 or 1"),
    "cut message": (b"\0\0\0\0\2a", (), b"3", b"whole content"),
    "cut head": (b"\0\0\0", (), b"3", b"whole content"),
    "no message": (b"", (), b"12", b"expected one request"),
    "unknown encoding": (framed(b"a"), ((b"grpc-encoding", b"br\xff"),), b"12", b"grpc-encoding"),
    "timeout without unit": (framed(b"a"), ((b"grpc-timeout", b"100"),), b"3", b"grpc-timeout"),
    "timeout of 9 digits": (framed(b"a"), ((b"grpc-timeout", b"123456789S"),), b"3", b"grpc-timeout"),
    "timeout below 0": (framed(b"a"), ((b"grpc-timeout", b"-1S"),), b"3", b"grpc-timeout"),
    "timeout without digits": (framed(b"a"), ((b"grpc-timeout", b"S"),), b"3", b"grpc-timeout"),
}


@pytest.mark.parametrize("name", FALSE_CALLS)
@pytest.mark.parametrize("path", [UNARY, STREAM])
@in_loop
async def test_false_call_ends_with_its_status(path: str, name: str) -> None:
    body, more, status, message = FALSE_CALLS[name]
    if path == STREAM and not body:
        status, message = b"0", b""
    async with attacked() as (_, address, _), Client.connect(address) as client:
        response = await client.call(path, body, *more)
        assert response.headers[b"grpc-status"] == status
        assert message in response.headers.get(b"grpc-message", b"")
        if name == "unknown encoding":
            assert response.headers[b"grpc-accept-encoding"] == b"identity, deflate, gzip"


@pytest.mark.parametrize("path", [UNARY, STREAM])
@in_loop
async def test_unfinished_messages_are_counted_and_bounded(path: str) -> None:
    limit = ByteLimit(200_000)
    server = GrpcServer(2**20, 64, GrpcBounds())
    address = f"127.0.0.1:{server.bind('127.0.0.1', 0)}"
    await server.start({UNARY: echo}, {STREAM: echo_all}, byte_limit_of=lambda tenant: limit)
    part = framed(bytes(100_000))[:60_000]
    async with Peer.connect(address) as peer:
        for stream_id in (1, 3, 5):
            peer.write(headers_frame(stream_id, path) + data_frame(stream_id, part))
            await peer.handled()
            assert limit.held_bytes == 60_000 * ((stream_id + 1) // 2)
        peer.write(headers_frame(7, path) + data_frame(7, part))
        refused = await peer.receive_kind(h2.HEADERS)
        assert refused.stream_id == 7
        assert limit.held_bytes == 180_000
        peer.write(frame(h2.RST_STREAM, number(8), stream_id=3))
        await peer.handled()
        assert limit.held_bytes == 120_000
        async with unary_client(address) as ask:
            assert await ask(b"small") == b"small"
    await soon(lambda: limit.held_bytes == 0)
    async with unary_client(address) as ask:
        assert await ask(bytes(100_000)) == bytes(100_000)
    await is_clean(server)
    assert limit.held_bytes == 0
    await server.stop(0.0)
