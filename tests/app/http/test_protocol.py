"""Connections over real sockets: kept while in use, answered whole and in order."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from app.http import protocol as http_protocol
from app.http.bodies import read_body
from app.http.protocol import FAST_PATH, LEAST_READ_BYTES, MAX_HEAD_BYTES, BoundedHttpProtocol
from app.protocols.errors import ClientGone, TooLarge
from tests.support.loops import in_loop, soon

IDLE_S = 0.2
MAX_BYTES = 2_000_000
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond after `x-wait` seconds. /short/1000: 1000 bytes by the fast path; /long/1000: by ASGI messages.

    /echo: the body of the request; /gathered: the same, read by `read_body` up to MAX_BYTES. The header `x-way` names
    the path that was taken.
    """
    headers = dict(scope["headers"])
    _, way, *size = scope["path"].split("/")
    body = await _gathered(scope, receive) if way == "gathered" else await _received(receive)
    await asyncio.sleep(float(headers.get(b"x-wait", b"0")))
    answer = body if way in ("echo", "gathered") else (b"%d " % int(size[0])).ljust(int(size[0]), b"x")
    if way != "long" and scope["extensions"][FAST_PATH].respond(
        200, b"content-length: %d\r\nx-way: short\r\n" % len(answer), answer
    ):
        return
    lines = [(b"content-length", b"%d" % len(answer)), (b"x-way", b"long")]
    await send({"type": "http.response.start", "status": 200, "headers": lines})
    await send({"type": "http.response.body", "body": answer})


async def _received(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        piece: bytes = message.get("body", b"")
        body += piece
        if not message.get("more_body"):
            return body


async def _gathered(scope: Scope, receive: Receive) -> bytes:
    """The body, or the reason why it was not read; `messages` counts the wake-ups of its task."""

    def counted() -> Any:
        messages.append(scope["path"])
        return receive()

    try:
        return await read_body(scope, counted, MAX_BYTES, None, scope["extensions"][FAST_PATH])
    except (ClientGone, TooLarge) as error:
        outcomes.append(type(error).__name__)
        return b"-"


messages: list[str] = []
outcomes: list[str] = []


class Quick(BoundedHttpProtocol):
    """A protocol that closes after IDLE_S. `made`: all instances."""

    made: "list[Quick]"
    system_bytes: int | None = None
    """Maximum bytes in the system's buffers; the default is millions."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config, ServerState(), {})
        self.timeout_keep_alive = IDLE_S  # type: ignore[assignment]
        self.made.append(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.system_bytes is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.system_bytes)


@asynccontextmanager
async def connected() -> AsyncIterator[Connection]:
    """Serve one connection and yield its other end."""
    Quick.made = []
    messages.clear()
    outcomes.clear()
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    server = await asyncio.get_running_loop().create_server(lambda: Quick(config), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=2**25)
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()
        await server.wait_closed()
        await soon(lambda: all(each.transport.is_closing() for each in Quick.made))


def request(path: str, body: bytes = b"", *lines: str, version: str = "1.1") -> bytes:
    head = [f"POST {path} HTTP/{version}", "host: x", f"content-length: {len(body)}", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def answer_of(connection: Connection) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the next response."""
    reader, _ = connection
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    body = await asyncio.wait_for(reader.readexactly(int(headers["content-length"])), 60)
    return int(first.split()[1]), headers, body


async def exchange(connection: Connection, *arguments: Any) -> tuple[int, dict[str, str], bytes]:
    connection[1].write(request(*arguments))
    return await answer_of(connection)


async def seconds_until_closed(connection: Connection) -> float:
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    assert await asyncio.wait_for(connection[0].read(), 60) == b""
    return loop.time() - started_s


class TestIdle:
    @in_loop
    @pytest.mark.parametrize("way", ["short", "long"])
    async def test_idle_connection_is_closed(self, way: str) -> None:
        async with connected() as connection:
            for _ in range(3):
                assert (await exchange(connection, f"/{way}/10"))[0] == 200
            assert IDLE_S * 0.9 < await seconds_until_closed(connection) < IDLE_S + 1

    @in_loop
    @pytest.mark.parametrize("way", ["short", "long"])
    async def test_idle_time_starts_at_last_response(self, way: str) -> None:
        async with connected() as connection:
            for _ in range(5):
                assert (await exchange(connection, f"/{way}/10"))[0] == 200
                await asyncio.sleep(IDLE_S * 0.6)
            assert (await exchange(connection, f"/{way}/10"))[0] == 200
            assert IDLE_S * 0.9 < await seconds_until_closed(connection) < IDLE_S + 1

    @in_loop
    async def test_connection_with_running_request_is_kept(self) -> None:
        async with connected() as connection:
            assert (await exchange(connection, "/short/10"))[0] == 200
            assert (await exchange(connection, "/short/10", b"", f"x-wait: {IDLE_S * 2}"))[0] == 200
            assert (await exchange(connection, "/short/10"))[0] == 200
            assert IDLE_S * 0.9 < await seconds_until_closed(connection) < IDLE_S + 1

    @in_loop
    @pytest.mark.parametrize("cut", [10, -2, -5], ids=["in the first line", "in the body", "at the end of the head"])
    async def test_connection_with_partial_request_is_kept(self, cut: int) -> None:
        whole = request("/echo", b"ab" if cut != -5 else b"a")
        async with connected() as connection:
            assert (await exchange(connection, "/short/10"))[0] == 200
            connection[1].write(whole[:cut])
            await asyncio.sleep(IDLE_S * 2)
            connection[1].write(whole[cut:])
            assert (await answer_of(connection))[0] == 200
            assert IDLE_S * 0.9 < await seconds_until_closed(connection) < IDLE_S + 1

    @in_loop
    async def test_connection_has_one_timer_until_closed(self) -> None:
        async with connected() as connection:
            assert (await exchange(connection, "/short/10"))[0] == 200
            timer = Quick.made[0]._idle_timer
            assert timer is not None
            for _ in range(20):
                assert (await exchange(connection, "/short/10"))[0] == 200
                assert Quick.made[0]._idle_timer is timer
            connection[1].close()
            await soon(lambda: Quick.made[0]._idle_timer is None)
            assert timer.cancelled()


class TestAnswers:
    @in_loop
    async def test_pipelined_requests_are_answered_in_order(self) -> None:
        ways = [("short", "0.05"), ("long", "0"), ("short", "0"), ("short", "0.02"), ("long", "0.02"), ("short", "0")]
        async with connected() as connection:
            sent = [request(f"/{way}/{100 + i}", b"body", f"x-wait: {wait}") for i, (way, wait) in enumerate(ways)]
            connection[1].write(b"".join(sent))
            for i, (way, _) in enumerate(ways):
                status, headers, body = await answer_of(connection)
                assert (status, headers["x-way"], body.split()[0]) == (200, way, b"%d" % (100 + i))
            assert (await exchange(connection, "/echo", b"after all of them"))[2] == b"after all of them"

    @in_loop
    @pytest.mark.parametrize("way", ["short", "long"])
    @pytest.mark.parametrize(
        ("version", "lines"), [("1.1", ["connection: close"]), ("1.0", []), ("1.1", ["Connection: Close"])]
    )
    async def test_connection_close_header_closes_after_response(
        self, way: str, version: str, lines: list[str]
    ) -> None:
        async with connected() as connection:
            connection[1].write(request(f"/{way}/5", b"", *lines, version=version))
            status, headers, body = await answer_of(connection)
            assert (status, headers["x-way"], headers["connection"], len(body)) == (200, way, "close", 5)
            assert await seconds_until_closed(connection) < IDLE_S / 2

    @in_loop
    @pytest.mark.parametrize("size", [2, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 3_000_000])
    async def test_response_of_any_size_arrives_whole(self, size: int) -> None:
        async with connected() as connection:
            for _ in range(2):
                _, headers, body = await exchange(connection, f"/short/{size}")
                assert (headers["x-way"], body) == ("short", (b"%d " % size).ljust(size, b"x"))

    @in_loop
    async def test_body_of_any_size_arrives_whole(self) -> None:
        async with connected() as connection:
            for size in (0, 1, 16 * 1024, 70_000, 1_000_000):
                body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
                assert (await exchange(connection, "/echo", body))[2] == body

    @in_loop
    async def test_long_body_is_gathered(self) -> None:
        async with connected() as connection:
            for size in (1, 70_000, MAX_BYTES, 600_000):
                body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
                messages.clear()
                assert (await exchange(connection, "/gathered", body))[2] == body
                assert len(messages) <= 2
                assert (await exchange(connection, "/echo", b"between"))[2] == b"between"

    @in_loop
    async def test_gathered_body_excludes_next_request(self) -> None:
        pieces = [b"a" * 100_000, b"b", b"c" * 100_000, b"d" * 7]
        whole = request("/gathered", b"".join(pieces))
        chunked = b"POST /gathered HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        chunked += b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        for message in (whole, chunked):
            async with connected() as connection:
                data = message + request("/echo", b"next")
                for start in range(0, len(data), 90_000):
                    connection[1].write(data[start : start + 90_000])
                    await asyncio.sleep(0.01)
                assert (await answer_of(connection))[2] == b"".join(pieces)
                assert (await answer_of(connection))[2] == b"next"

    @in_loop
    async def test_body_is_gathered_up_to_bound(self) -> None:
        async with connected() as connection:
            connection[1].write(b"POST /gathered HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            piece = bytes(100_000)
            for _ in range(MAX_BYTES // len(piece) + 1):
                connection[1].write(b"%x\r\n%b\r\n" % (len(piece), piece))
            assert (await answer_of(connection))[2] == b"-"
            assert outcomes == ["TooLarge"]

    @in_loop
    async def test_disconnect_while_body_is_gathered(self) -> None:
        async with connected() as connection:
            connection[1].write(request("/gathered", bytes(500_000))[:-1])
            await soon(lambda: len(messages) == 2)
            connection[1].close()
            await soon(lambda: outcomes == ["ClientGone"])

    @in_loop
    async def test_unread_response_delays_next_request(self) -> None:
        """With a full socket the fast path is closed and the slow path waits."""
        size = 20_000_000
        async with connected() as connection:
            connection[1].write(request(f"/short/{size}") + request("/short/7"))
            await soon(lambda: bool(Quick.made) and Quick.made[0].flow.write_paused)
            first, second = await answer_of(connection), await answer_of(connection)
            assert (first[1]["x-way"], len(first[2])) == ("short", size)
            assert (second[1]["x-way"], second[2].split()[0]) == ("long", b"7")

    @in_loop
    async def test_nothing_is_sent_after_disconnect(self) -> None:
        async with connected() as connection:
            connection[1].write(request("/short/10", b"", "x-wait: 0.1"))
            await soon(lambda: bool(Quick.made) and Quick.made[0].cycle is not None)
            connection[1].close()
            await soon(lambda: Quick.made[0].cycle.disconnected)
            fast_path: Any = Quick.made[0].scope["extensions"][FAST_PATH]
            assert fast_path.take_body() is None
            assert fast_path.respond(200, b"", b"") is False

    @in_loop
    @pytest.mark.parametrize("earlier", [False, True], ids=["at first", "after others"])
    async def test_long_head_is_refused(self, earlier: bool) -> None:
        async with connected() as connection:
            if earlier:
                assert (await exchange(connection, "/short/10"))[0] == 200
            assert (await exchange(connection, "/short/10", b"", "x: " + "y" * (MAX_HEAD_BYTES - 200)))[0] == 200
            status, headers, body = await exchange(connection, "/short/10", b"", "x: " + "y" * (MAX_HEAD_BYTES + 200))
            assert (status, headers["connection"]) == (400, "close")
            assert json.loads(body)["error"]["message"].startswith(f"headers: more than {MAX_HEAD_BYTES} bytes")
            assert await seconds_until_closed(connection) < IDLE_S / 2


@asynccontextmanager
async def unread() -> AsyncIterator[socket.socket]:
    """Serve one connection and yield its other end, which reads on demand."""
    async with connected() as (_, writer):
        address = writer.get_extra_info("peername")
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.setblocking(False)
        await asyncio.get_running_loop().sock_connect(reader, address)
        with reader:
            yield reader


async def read_rest(reader: socket.socket) -> bytes:
    """Return the remaining bytes of the connection."""
    received = b""
    while chunk := await asyncio.get_running_loop().sock_recv(reader, 2**20):
        received += chunk
    return received


class TestSlowReaders:
    """Run with a server that checks its readers every STALL_S."""

    @pytest.fixture(autouse=True)
    def soon_stalled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http_protocol, "STALL_S", 0.1)
        monkeypatch.setattr(Quick, "system_bytes", 4096)

    @in_loop
    @pytest.mark.parametrize("size", [2 * LEAST_READ_BYTES, 3_000_000], ids=["few bytes", "many bytes"])
    @pytest.mark.parametrize("way", ["short", "long"])
    @pytest.mark.parametrize("lines", [[], ["connection: close"]], ids=["kept", "closed"])
    async def test_stopped_reader_loses_connection(self, way: str, size: int, lines: list[str]) -> None:
        async with unread() as reader:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(reader, request(f"/{way}/{size}", b"", *lines))
            await soon(lambda: Quick.made[-1].cycle is not None and Quick.made[-1].cycle.response_complete)
            assert Quick.made[-1].transport.get_write_buffer_size() > 0
            started_s = loop.time()
            await soon(lambda: Quick.made[-1] not in Quick.made[-1].connections)
            assert loop.time() - started_s < IDLE_S + 0.5
            assert Quick.made[-1]._stall_timer is None
            assert len(await read_rest(reader)) < size

    @in_loop
    async def test_steady_reader_gets_whole_response(self) -> None:
        size = 700_000
        async with unread() as reader:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(reader, request(f"/short/{size}"))
            received = b""
            started_s = loop.time()
            while not received.endswith(b"x" * 10) or len(received) < size:
                received += await loop.sock_recv(reader, 5000)
                await asyncio.sleep(0.005)
            assert loop.time() - started_s > 3 * http_protocol.STALL_S, "several stall checks ran"
            assert received.endswith((b"%d " % size).ljust(size, b"x"))
            await soon(lambda: Quick.made[-1]._stall_timer is None)

    @in_loop
    async def test_slow_reader_loses_connection(self) -> None:
        async with unread() as reader:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(reader, request("/short/3000000"))
            sips = 0
            while await loop.sock_recv(reader, 500):
                await asyncio.sleep(0.02)
                sips += 1
            assert sips < 100
