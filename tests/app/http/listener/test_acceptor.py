"""The acceptor accepts in each round of the loop all connections that wait."""

import asyncio
import errno
import selectors
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from app.http.listener.acceptor import Acceptor
from app.http.listener.clocks import ConnectionBounds, Connections
from app.http.listener.protocol import BoundedHttpProtocol
from app.server.http_server import HttpServer
from frameworks.scheduling.byte_limit import ByteLimit
from tests.app.http.connections import IDLE_S, MAX_BYTES, app
from tests.support.loops import HANGS_AFTER_S, in_loop

_LISTENER_FD = 1_000_000
_MOST_ROUNDS = 2


class _Client(asyncio.Protocol):
    """A connection whose client sends the next request when it has the answer to the last."""

    def __init__(self, served: "_SteppedLoop") -> None:
        self._loop = served
        self.is_open = False
        self.sent_round = served.round
        self.sent_rounds: list[int] = []
        self.answered_rounds: list[int] = []

    def answer(self) -> None:
        self.sent_rounds.append(self.sent_round)
        self.answered_rounds.append(self._loop.round)
        # The server reads it in its next round.
        self.sent_round = self._loop.round


class _Selector(selectors.BaseSelector):
    """Reports the listener as readable while connections wait. No system call decides on the order."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self.waiting: list[_Client] = []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self._keys[fileobj] = key = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = [key for key in self._keys.values() if key.fd == _LISTENER_FD and self.waiting]
        return [(key, selectors.EVENT_READ) for key in ready]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class _Listener:
    def __init__(self, selector: _Selector) -> None:
        self._selector = selector

    def fileno(self) -> int:
        return _LISTENER_FD

    def setblocking(self, _: bool) -> None: ...

    def close(self) -> None: ...

    def accept(self) -> tuple[_Client, None]:
        if not self._selector.waiting:
            raise BlockingIOError
        return self._selector.waiting.pop(0), None


class _SteppedLoop(asyncio.SelectorEventLoop):
    """A loop of simulated connections that runs round by round."""

    def __init__(self) -> None:
        self._simulated = _Selector()
        super().__init__(self._simulated)
        self.round = 0
        self.clients: list[_Client] = []
        self.acceptor = Acceptor(self, _Listener(self._simulated), asyncio.Protocol)  # type: ignore[arg-type]
        self.acceptor.start()

    async def connect_accepted_socket(self, _: Any, sock: Any, **__: Any) -> Any:  # type: ignore[override]
        sock.is_open = True

    def run_round(self, arrivals: int) -> None:
        """Let clients connect and send, read all open connections, then run the callbacks of one round."""
        self.round += 1
        arrived = [_Client(self) for _ in range(arrivals)]
        self.clients += arrived
        self._simulated.waiting += arrived
        for client in self.clients:
            if client.is_open:
                self.call_soon(client.answer)
        self._run_once()  # type: ignore[attr-defined]


@given(st.lists(st.integers(0, 200), min_size=1, max_size=12))
def test_request_overtaken_by_two_rounds_at_most(arrivals: list[int]) -> None:
    loop = _SteppedLoop()
    try:
        for count in (*arrivals, 0, 0, 0):
            loop.run_round(count)
    finally:
        loop.acceptor.close()
        loop.close()
    for client in loop.clients:
        assert client.answered_rounds
        waits = [b - a for a, b in zip(client.sent_rounds, client.answered_rounds, strict=True)]
        # An open connection is answered once in each round.
        assert max(waits) <= _MOST_ROUNDS


def _rounds_until_served(start: Callable[[asyncio.AbstractEventLoop, socket.socket, Callable[[], Any]], Any]) -> int:
    """Connect 200 clients, then serve; return the rounds of uvloop until each request has been read."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512))
        for _ in range(200):
            client = stack.enter_context(socket.create_connection(listener.getsockname()))
            client.sendall(b"request")
        read: list[bytes] = []
        transports: list[Any] = []

        class Reader(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                transports.append(transport)

            def data_received(self, data: bytes) -> None:
                read.append(data)

        async def serve() -> int:
            server = await start(asyncio.get_running_loop(), listener, Reader)
            rounds = 0
            while len(read) < 200:
                rounds += 1
                await asyncio.sleep(0)
            server.close()
            await server.wait_closed()
            for transport in transports:
                transport.abort()
            await asyncio.sleep(0.01)
            return rounds

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(asyncio.wait_for(serve(), 60))


def test_backlog_is_read_within_few_rounds() -> None:
    async def start(loop: asyncio.AbstractEventLoop, listener: socket.socket, make: Callable[[], Any]) -> Acceptor:
        acceptor = Acceptor(loop, listener, make)
        acceptor.start()
        return acceptor

    # The server of libuv takes more than 200.
    assert _rounds_until_served(start) < 50


def test_accepted_connection_sends_without_delay() -> None:
    """Nagle's algorithm is off, as on connections that the loop accepts itself."""

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        made: asyncio.Future[asyncio.BaseTransport] = loop.create_future()

        class Made(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.set_result(transport)

        listener = socket.create_server(("127.0.0.1", 0))
        acceptor = Acceptor(loop, listener, Made)
        acceptor.start()
        _, writer = await asyncio.open_connection(*listener.getsockname())
        accepted = await made
        assert accepted.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert accepted.get_extra_info("peername") == writer.get_extra_info("sockname")
        acceptor.close()
        acceptor.close()
        await acceptor.wait_closed()
        accepted.close()
        writer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(connect(), 60))


@in_loop
async def test_acceptor_pauses_without_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        accepts = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

        def accept(self) -> Any:
            self.accepts += 1
            if self.accepts == 1:
                raise OSError(errno.EMFILE, "too many open files")
            return listener.accept()

    monkeypatch.setattr("app.http.listener.acceptor._PAUSE_S", 0.0)
    made = asyncio.Event()

    class Made(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.set()

    listener = socket.create_server(("127.0.0.1", 0))
    full = Full()
    acceptor = Acceptor(asyncio.get_running_loop(), full, Made)  # type: ignore[arg-type]
    acceptor.start()
    _, writer = await asyncio.open_connection(*listener.getsockname())
    await asyncio.wait_for(made.wait(), 60)
    assert full.accepts >= 2
    acceptor.close()
    await acceptor.wait_closed()
    writer.close()


@in_loop
async def test_shutdown_ends_connection_that_is_just_accepted() -> None:
    limits = Connections(ConnectionBounds(IDLE_S, IDLE_S, 10), ByteLimit(MAX_BYTES))
    http = type("HttpProtocol", (BoundedHttpProtocol,), {"limits": limits})
    config = uvicorn.Config(
        app, interface="asgi3", http=http, lifespan="off", log_config=None, timeout_graceful_shutdown=1
    )
    config.load()
    server = HttpServer(config)
    server.lifespan = config.lifespan_class(config)
    listener = socket.create_server(("127.0.0.1", 0))
    await server.startup([listener])
    (acceptor,) = server.servers
    assert isinstance(acceptor, Acceptor)
    with socket.create_connection(listener.getsockname()) as client:
        acceptor._accept()
        assert not server.server_state.connections
        await server.shutdown([listener])
        assert not server.server_state.connections
        client.settimeout(HANGS_AFTER_S)
        assert await asyncio.to_thread(client.recv, 1) == b""
