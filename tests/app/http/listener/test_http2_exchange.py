"""Test the body of a request over HTTP/2 as an application takes it: its order, and how much the client may send."""

import asyncio
from types import SimpleNamespace
from typing import Any

from app.http.bodies import read_body
from app.http.listener.clocks import ConnectionBounds, Connections
from app.http.listener.cycle import FAST_PATH
from app.http.listener.http2.exchange import AsgiStreams
from tests.support.loops import in_loop, soon

PARTS = [bytes([number]) * 30_000 for number in range(20)]


class FakeConnection:
    """Counts the bytes that the client may replace by others."""

    def __init__(self) -> None:
        self.transport = SimpleNamespace(get_extra_info=lambda name, default=None: default)
        self.consumed_bytes = 0
        self.headers: list[Any] = []
        self.body = b""

    def consumed(self, stream_id: int, num_bytes: int) -> None:
        self.consumed_bytes += num_bytes

    def send_headers(self, stream_id: int, headers: list[Any], is_end: bool = False) -> None:
        self.headers = headers

    def send_data(self, stream_id: int, data: bytes, is_end: bool = False) -> None:
        self.body = data


class RefusingHold:
    """A count of bytes that refuses some of the parts at first."""

    def __init__(self, refused: frozenset[int]) -> None:
        self._refused = refused
        self._calls = 0

    def check_room(self, more: int) -> None: ...
    def resize(self, total: int) -> None: ...

    def try_grow(self, more: int) -> bool:
        self._calls += 1
        return self._calls not in self._refused


async def collected(refused: frozenset[int]) -> tuple[bytes, FakeConnection]:
    """Return the body that an application reads of PARTS, where counting some of the parts is refused at first."""
    read: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    connection: Any = FakeConnection()
    hold: Any = RefusingHold(refused)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        read.set_result(await read_body(scope, receive, 10**9, hold, fast_path=scope["extensions"][FAST_PATH]))

    state: Any = SimpleNamespace(tasks=set(), connections=set(), default_headers=[], total_requests=0)
    streams = AsgiStreams(app, "", state, {}, Connections(ConnectionBounds()))
    head = ((b":method", b"POST"), (b":path", b"/a?b=c"), (b":scheme", b"http"), (b":authority", b"x"))
    stream = streams.open(connection, 1, head, False)
    for number, part in enumerate(PARTS):
        stream.receive(part, number == len(PARTS) - 1)
        if number % 3 == 0:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    return await asyncio.wait_for(read, 60), connection


@in_loop
async def test_parts_stay_in_order_without_room() -> None:
    for fails in (frozenset[int](), frozenset({1}), frozenset({2, 3, 7}), frozenset(range(1, 30))):
        body, connection = await collected(fails)
        assert body == b"".join(PARTS)
        assert connection.consumed_bytes == len(body)


@in_loop
async def test_cookies_are_joined_and_host_set() -> None:
    seen: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection: Any = FakeConnection()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.set_result(scope)

    state: Any = SimpleNamespace(tasks=set(), connections=set(), default_headers=[], total_requests=0)
    streams = AsgiStreams(app, "/root", state, {}, Connections(ConnectionBounds()))
    head = (
        *((b":method", b"GET"), (b":path", b"/a%20b?c=d%20e"), (b":scheme", b"http"), (b":authority", b"x:1")),
        *((b"cookie", b"a=1"), (b"accept", b"*/*"), (b"cookie", b"b=2")),
    )
    streams.open(connection, 1, head, True)
    scope = await asyncio.wait_for(seen, 60)
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/root/a b", b"/root/a%20b", b"c=d%20e")
    assert (scope["method"], scope["http_version"], scope["scheme"]) == ("GET", "2", "http")
    assert scope["headers"] == [(b"host", b"x:1"), (b"accept", b"*/*"), (b"cookie", b"a=1; b=2")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    # The application has sent no response.
    assert connection.headers[0] == (b":status", b"500")


@in_loop
async def test_request_without_path_is_refused() -> None:
    connection: Any = FakeConnection()
    state: Any = SimpleNamespace(tasks=set(), connections=set(), default_headers=[], total_requests=0)
    streams = AsgiStreams(None, "", state, {}, Connections(ConnectionBounds()))
    for head in (((b":method", b"CONNECT"), (b":authority", b"x")), ((b":method", b"GET"), (b":path", b"*"))):
        connection.headers = []
        streams.open(connection, 1, head, True)
        assert connection.headers[0] == (b":status", b"400")
    assert not state.tasks


@in_loop
async def test_requests_in_progress_are_bounded() -> None:
    connection: Any = FakeConnection()
    is_over = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await is_over.wait()

    state: Any = SimpleNamespace(tasks=set(), connections=set(), default_headers=[], total_requests=0)
    limits = Connections(ConnectionBounds(max_connections=2))
    streams = AsgiStreams(app, "", state, {}, limits)
    head = ((b":method", b"GET"), (b":path", b"/"), (b":scheme", b"http"), (b":authority", b"x"))
    for stream_id in (1, 3, 5):
        assert not connection.headers
        streams.open(connection, stream_id, head, True)
    assert connection.headers[0] == (b":status", b"503")
    assert dict(connection.headers)[b"retry-after"] == b"1"
    assert b"server.max_connections" in connection.body
    is_over.set()
    await soon(lambda: not state.tasks)
    assert limits.own_streams == 0
