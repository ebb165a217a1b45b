"""TLS connections over real sockets: bounds of handshakes, long bodies, slow readers."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from app.auth.tls import ServerTls
from app.config.tls_files import TlsFiles
from app.http.listener.clocks import LEAST_READ_BYTES, MAX_CONNECTIONS, READER, STALL_S, TLS_HANDSHAKE, ConnectionBounds
from app.http.listener.clocks import Connections as Limits
from app.http.listener.tls import TlsConnection, tls_protocol
from tests.app.http.connections import IDLE_S, SEND_BUFFERS_BYTES, Quick, app, request
from tests.support.certificates import Authority, server_pair
from tests.support.loops import HANGS_AFTER_S, in_loop, pass_time, settle, soon

HEADER_TIMEOUT_S = 2 * HANGS_AFTER_S
AUTHORITY = Authority()
PAIR = server_pair(AUTHORITY)


class Client:
    """The other end of a connection, whose bytes a test reads and sends on demand."""

    def __init__(self, address: Any, receive_buffer_bytes: int | None) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.setblocking(False)
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cadata=AUTHORITY.pem.decode())
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self.part_bytes = 2**20
        self.is_end_announced = False

    async def connect(self) -> None:
        await self._loop.sock_connect(self.socket, self._address)

    async def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                if not await self._exchange():
                    raise ConnectionResetError from None
            else:
                await self._flush()
                return

    async def send(self, data: bytes) -> None:
        self.tls.write(data)
        await self._flush()

    async def read(self) -> bytes:
        """Return decrypted bytes; b"" at the end of the connection. `is_end_announced`: by TLS."""
        while True:
            try:
                received = self.tls.read(2**20)
            except ssl.SSLWantReadError:
                if await self._exchange():
                    continue
                return b""
            except ssl.SSLZeroReturnError:  # in place of b"" if this side has ended too
                received = b""
            self.is_end_announced = not received
            return received

    async def read_bytes(self, size: int) -> bytes:
        received = b""
        while len(received) < size and (part := await self.read()):
            received += part
        return received

    async def _exchange(self) -> bytes:
        await self._flush()
        received = await asyncio.wait_for(self._loop.sock_recv(self.socket, 2**16), HANGS_AFTER_S)
        self._incoming.write(received)
        return received

    async def _flush(self) -> None:
        data = self._outgoing.read()
        for start in range(0, len(data), self.part_bytes):
            await self._loop.sock_sendall(self.socket, data[start : start + self.part_bytes])
            if len(data) > self.part_bytes:
                await settle()


@asynccontextmanager
async def served(folder: Path, max_connections: int = 10) -> AsyncIterator[tuple[Limits, Any, ServerState]]:
    """Yield the connections of a server, its address, and uvicorn's state."""
    Quick.limits = limits = Limits(
        ConnectionBounds(HEADER_TIMEOUT_S, 10 * IDLE_S, max_connections),
        tls=ServerTls(TlsFiles(*PAIR.write(folder, "server"))),
    )
    Quick.made = []
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    assert limits.tls is not None
    make = tls_protocol(lambda _, server_state: Quick(config), limits.tls, limits)
    server = await asyncio.get_running_loop().create_server(lambda: make(server_state=state), "127.0.0.1", 0)
    try:
        yield limits, server.sockets[0].getsockname(), state
    finally:
        server.close()
        await server.wait_closed()
        await soon(lambda: limits.open == 0)


@asynccontextmanager
async def client_of(address: Any, receive_buffer_bytes: int | None = None) -> AsyncIterator[Client]:
    client = Client(address, receive_buffer_bytes)
    await client.connect()
    with client.socket:
        yield client


class TestHandshake:
    @in_loop
    @pytest.mark.parametrize("sent_bytes", [0, 1, 200], ids=["silent", "one byte", "part"])
    async def test_unfinished_handshake_is_closed(self, tmp_path: Path, sent_bytes: int) -> None:
        async with served(tmp_path) as (limits, address, _), client_of(address) as client:
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.do_handshake()
            hello = client._outgoing.read()
            loop = asyncio.get_running_loop()
            await soon(lambda: limits.open == 1)
            await loop.sock_sendall(client.socket, hello[:sent_bytes])
            pass_time(HEADER_TIMEOUT_S * 0.9)
            await settle()
            assert limits.open == 1
            # A late byte does not start the time again.
            await loop.sock_sendall(client.socket, hello[sent_bytes : sent_bytes + 1])
            await settle()
            pass_time(HEADER_TIMEOUT_S * 0.1)
            await soon(lambda: limits.open == 0)
            assert limits.closed[TLS_HANDSHAKE] == 1
            assert Quick.made == []

    @in_loop
    async def test_failed_handshake_is_counted(self, tmp_path: Path) -> None:
        async with served(tmp_path) as (limits, address, _), client_of(address) as client:
            await asyncio.get_running_loop().sock_sendall(client.socket, b"\x16\x03\x01\x00\x05hello")
            await soon(lambda: limits.closed[TLS_HANDSHAKE] == 1)
            await soon(lambda: limits.open == 0)

    @in_loop
    async def test_connection_beyond_maximum_is_closed(self, tmp_path: Path) -> None:
        async with served(tmp_path, max_connections=1) as (limits, address, _), client_of(address) as first:
            await soon(lambda: limits.open == 1)  # its handshake has not begun
            async with client_of(address) as second:
                with pytest.raises(ConnectionError):
                    await second.shake_hands()
            await soon(lambda: limits.closed[MAX_CONNECTIONS] == 1)
            await first.shake_hands()
            await soon(lambda: len(Quick.made) == 1)
            assert limits.open == 1

    @in_loop
    async def test_shutdown_ends_handshake(self, tmp_path: Path) -> None:
        async with served(tmp_path) as (limits, address, state), client_of(address):
            await soon(lambda: len(state.connections) == 1)
            (connection,) = cast("set[object]", state.connections)
            assert isinstance(connection, TlsConnection)
            connection.shutdown()
            await soon(lambda: limits.open == 0)
            assert not state.connections


class TestBodies:
    @in_loop
    @pytest.mark.parametrize("way", ["short", "long", "echo", "gathered"])
    async def test_long_body_arrives_whole(self, tmp_path: Path, way: str) -> None:
        size = 1_500_000
        body = bytes(range(256)) * (size // 256 + 1)
        async with served(tmp_path) as (_, address, _), client_of(address) as client:
            await client.shake_hands()
            is_echo = way in ("echo", "gathered")
            sent = body[:size] if is_echo else b""
            sending = asyncio.create_task(client.send(request(f"/{way}/{size}", sent)))
            head = b""
            while b"\r\n\r\n" not in head:
                head += await client.read()
            head, _, start = head.partition(b"\r\n\r\n")
            received = start + await client.read_bytes(size - len(start))
            assert received == (sent if is_echo else (b"%d " % size).ljust(size, b"x"))
            await sending

    @in_loop
    async def test_records_in_small_parts_are_joined(self, tmp_path: Path) -> None:
        async with served(tmp_path) as (_, address, _), client_of(address) as client:
            client.part_bytes = 7
            await client.shake_hands()
            await client.send(request("/echo", b"first") + request("/echo", b"second"))
            answers = b""
            while not answers.endswith(b"second"):
                answers += await client.read()
            assert answers.count(b"HTTP/1.1 200") == 2

    @in_loop
    async def test_end_of_client_closes_connection(self, tmp_path: Path) -> None:
        async with served(tmp_path) as (limits, address, _), client_of(address) as client:
            await client.shake_hands()
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.unwrap()
            await client._flush()
            assert await client.read() == b""
            await soon(lambda: limits.open == 0)

    @in_loop
    async def test_response_is_followed_by_close_notify(self, tmp_path: Path) -> None:
        async with served(tmp_path) as (_, address, _), client_of(address) as client:
            await client.shake_hands()
            await client.send(request("/short/10", b"", "connection: close"))
            assert (await client.read()).endswith(b"xxx")
            assert await client.read() == b""
            assert client.is_end_announced

    @in_loop
    async def test_broken_record_ends_connection(self, tmp_path: Path) -> None:
        async with served(tmp_path) as (limits, address, _), client_of(address) as client:
            await client.shake_hands()
            await asyncio.get_running_loop().sock_sendall(client.socket, b"\x17\x03\x03\x00\x20" + bytes(32))
            await soon(lambda: limits.open == 0)


class TestSlowReaders:
    @pytest.fixture(autouse=True)
    def small_buffers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Quick, "system_bytes", 4096)

    @in_loop
    @pytest.mark.parametrize("size", [2 * LEAST_READ_BYTES, 3_000_000], ids=["few bytes", "many bytes"])
    @pytest.mark.parametrize("lines", [[], ["connection: close"]], ids=["kept", "closed"])
    async def test_stopped_reader_loses_connection(self, tmp_path: Path, size: int, lines: list[str]) -> None:
        async with served(tmp_path) as (limits, address, _), client_of(address, 4096) as client:
            await client.shake_hands()
            await client.send(request(f"/short/{size}", b"", *lines))
            await soon(lambda: bool(Quick.made) and Quick.made[0].cycle is not None)
            await soon(lambda: Quick.made[0].cycle.response_complete)
            connection = Quick.made[0]
            # All but what the buffers of the system hold, which the tunnel did not encrypt in one piece.
            assert connection.transport.get_write_buffer_size() > size // 4
            assert limits.byte_limit.held_bytes > size // 4
            for seconds in (IDLE_S, STALL_S, STALL_S):
                pass_time(seconds)
                await settle()
            await soon(lambda: limits.open == 0)
            assert limits.closed[READER] == 1
            assert limits.byte_limit.held_bytes == 0

    @in_loop
    @pytest.mark.parametrize("system_bytes", SEND_BUFFERS_BYTES)
    async def test_steady_reader_gets_whole_response(
        self, tmp_path: Path, system_bytes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Quick, "system_bytes", system_bytes)
        size = 700_000
        async with served(tmp_path) as (limits, address, _), client_of(address, 4096) as client:
            await client.shake_hands()
            await client.send(request(f"/short/{size}"))
            received = b""
            checks = 0
            while len(received) < size or not received.endswith(b"x" * 10):
                part = await client.read()
                assert part, f"closed after {len(received)} bytes: {limits.closed}"
                received += part
                if len(received) > (checks + 1) * 100_000:
                    checks += 1
                    pass_time(STALL_S)
                    await settle()
            assert received.endswith((b"%d " % size).ljust(size, b"x"))
            await soon(lambda: limits.byte_limit.held_bytes == 0)
