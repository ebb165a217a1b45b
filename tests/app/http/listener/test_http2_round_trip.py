"""Test that any requests and responses of HTTP/2 arrive as they were sent, in any parts and with any windows."""

import asyncio
import random
from dataclasses import dataclass, field

import ngh2
from hypothesis import given, settings
from hypothesis import strategies as st

from app.http.listener.clocks import ConnectionBounds, Connections
from app.http.listener.http2.clocks import Http2Bounds, Http2Stream
from app.http.listener.http2.connection import Header, Http2Connection
from tests.app.http.listener.fake_transport import FakeTransport
from tests.support import http2_frames as h2
from tests.support.http2_frames import Engine
from tests.support.loops import in_loop

MAX_BYTES = 200_000


@dataclass
class Exchange:
    """One request and its response. `is_early`: the response begins before the request has ended."""

    request: bytes
    response: bytes
    is_early: bool
    received: bytearray = field(default_factory=bytearray)
    is_ended: bool = False
    num_unsent: int = 0
    """Bytes of the request that the client has not given to its engine yet."""


class Streams:
    """Answers the requests of a test."""

    def __init__(self, exchanges: list[Exchange], source: random.Random) -> None:
        self._exchanges = exchanges
        self._source = source
        self.num_open = 0

    def open(
        self, connection: Http2Connection, stream_id: int, headers: tuple[Header, ...], is_end: bool
    ) -> Http2Stream:
        self.num_open += 1
        exchange = self._exchanges[int(dict(headers)[b":path"][1:])]
        stream = AnsweringStream(self, connection, stream_id, exchange, self._source)
        if is_end:
            stream.receive(b"", True)
        return stream


class AnsweringStream:
    """Sends a response in parts. After some of them it waits until the client has taken them."""

    def __init__(
        self, streams: Streams, connection: Http2Connection, stream_id: int, exchange: Exchange, source: random.Random
    ) -> None:
        self._streams = streams
        self._connection = connection
        self._stream_id = stream_id
        self._exchange = exchange
        self._source = source
        self._sent = 0
        connection.send_headers(stream_id, [(b":status", b"200"), (b"first", b"1")])
        if exchange.is_early:
            self.has_space()

    def receive(self, data: bytes, is_end: bool) -> None:
        exchange = self._exchange
        assert not exchange.is_ended
        exchange.received += data
        exchange.is_ended = is_end
        self._connection.consumed(self._stream_id, len(data))
        if is_end:
            self.has_space()

    def has_space(self) -> None:
        """Send one part or several. The end follows the request's end."""
        response = self._exchange.response
        while self._sent < len(response):
            size = self._source.choice((1, 100, 10_000, 100_000))
            self._connection.send_data(self._stream_id, response[self._sent : self._sent + size])
            self._sent += size
            if self._source.random() < 0.5:
                self._connection.call_when_sent(self._stream_id)
                return
        if self._exchange.is_ended:
            self._connection.end(self._stream_id, [(b"last", b"2")])

    def closed(self) -> None:
        self._streams.num_open -= 1

    def check(self, now_s: float) -> None: ...


async def exchange_all(exchanges: list[Exchange], window: int, frame_bytes: int, source: random.Random) -> None:
    streams, limits, opened = Streams(exchanges, source), Connections(ConnectionBounds()), set[Http2Connection]()
    connection = Http2Connection(streams.open, Http2Bounds(), limits, opened)
    transport = FakeTransport()
    transport.open(connection)
    client = Engine({h2.INITIAL_WINDOW_SIZE: window, h2.MAX_FRAME_SIZE: frame_bytes})
    ids = []
    for i, exchange in enumerate(exchanges):
        exchange.num_unsent = len(exchange.request)
        ids.append(client.open([*h2.headers_of(f"/{i}")]))
    while any(response.error_code is None for response in client.responses.values()):
        for stream_id, exchange in zip(ids, exchanges, strict=True):
            _send_some(client, stream_id, exchange, source)
        to_server = client.to_send()
        while to_server:
            size = source.choice((1, 9, 1_000, 70_000))
            connection.data_received(to_server[:size])
            to_server = to_server[size:]
        await asyncio.sleep(0)
        while to_client := transport.take(source.choice((1_000, 70_000, 500_000))):
            client.receive(to_client)
            await asyncio.sleep(0)
        assert not transport.is_closed
    for stream_id, exchange in zip(ids, exchanges, strict=True):
        response = client.responses[stream_id]
        assert response.error_code == ngh2.ErrorCode.NO_ERROR
        assert response.headers == {b":status": b"200", b"first": b"1", b"last": b"2"}
        assert response.body == exchange.response
        assert exchange.received == exchange.request
        assert exchange.is_ended
    assert not connection.streams
    assert streams.num_open == 0
    connection.connection_lost(None)
    assert not opened
    assert limits.own_open == 0


def _send_some(client: Engine, stream_id: int, exchange: Exchange, source: random.Random) -> None:
    """Give a part of the request to the client's engine, which keeps to the windows; -1 notes that it is complete."""
    if exchange.num_unsent < 0 or source.random() < 0.3:
        return
    begin = len(exchange.request) - exchange.num_unsent
    part = exchange.request[begin : begin + source.choice((1, 1_000, 50_000, 300_000))]
    exchange.num_unsent -= len(part)
    is_end = not exchange.num_unsent
    client.ngh2.send_data(stream_id, part, end_stream=is_end)
    if is_end:
        exchange.num_unsent = -1


sizes = st.sampled_from((0, 1, 16_384, 65_535, 65_536, MAX_BYTES)) | st.integers(0, MAX_BYTES)


@given(
    st.lists(st.tuples(sizes, sizes, st.booleans()), min_size=1, max_size=6),
    st.sampled_from((500, 16_000, 65_535, 2**20)),
    st.sampled_from((16_384, 100_000)),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=40)
def test_exchanges_arrive_as_they_were_sent(
    exchanges: list[tuple[int, int, bool]], window: int, frame_bytes: int, source: random.Random
) -> None:
    seed = random.Random(source.random())
    contents = [Exchange(seed.randbytes(one), seed.randbytes(other), early) for one, other, early in exchanges]
    in_loop(exchange_all)(contents, window, frame_bytes, seed)
