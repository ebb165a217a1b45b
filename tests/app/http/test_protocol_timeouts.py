"""Connections over real sockets: idle ones and slow readers are closed in time."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.http.listener import clocks
from app.http.listener.clocks import LEAST_READ_BYTES, STALL_S
from tests.app.http.connections import (
    IDLE_S,
    SEND_BUFFERS_BYTES,
    Quick,
    answer_of,
    check_idle_time,
    connected,
    exchange,
    request,
)
from tests.support.loops import HANGS_AFTER_S, in_loop, pass_time, settle, soon


class TestIdle:
    @in_loop
    @pytest.mark.parametrize("way", ["short", "long"])
    async def test_idle_connection_is_closed(self, way: str) -> None:
        async with connected() as connection:
            for _ in range(3):
                assert (await exchange(connection, f"/{way}/10"))[0] == 200
            await check_idle_time(connection)

    @in_loop
    @pytest.mark.parametrize("way", ["short", "long"])
    async def test_idle_time_starts_at_last_response(self, way: str) -> None:
        async with connected() as connection:
            # Longer than the idle time in all, with pauses that are shorter than it.
            for _ in range(3):
                assert (await exchange(connection, f"/{way}/10"))[0] == 200
                pass_time(IDLE_S * 0.8)
                await settle()
            assert (await exchange(connection, f"/{way}/10"))[0] == 200
            await check_idle_time(connection)

    @in_loop
    async def test_connection_with_running_request_is_kept(self) -> None:
        async with connected() as connection:
            assert (await exchange(connection, "/short/10"))[0] == 200
            received_bytes = Quick.made[0].received_bytes
            connection[1].write(request("/short/10", b"", f"x-wait: {IDLE_S * 2}"))
            await soon(lambda: Quick.made[0].received_bytes > received_bytes)
            await settle()
            pass_time(IDLE_S)
            await settle()
            pass_time(IDLE_S)
            assert (await answer_of(connection))[0] == 200
            assert (await exchange(connection, "/short/10"))[0] == 200
            await check_idle_time(connection)

    @in_loop
    @pytest.mark.parametrize("cut", [10, -2, -5], ids=["in the first line", "in the body", "at the end of the head"])
    async def test_connection_with_partial_request_is_kept(self, cut: int) -> None:
        whole = request("/echo", b"ab" if cut != -5 else b"a")
        async with connected() as connection:
            assert (await exchange(connection, "/short/10"))[0] == 200
            wanted_bytes = Quick.made[0].received_bytes + len(whole[:cut])
            connection[1].write(whole[:cut])
            await soon(lambda: Quick.made[0].received_bytes == wanted_bytes)
            pass_time(IDLE_S * 2)
            await settle()
            connection[1].write(whole[cut:])
            assert (await answer_of(connection))[0] == 200
            await check_idle_time(connection)

    @in_loop
    async def test_connection_has_one_timer_until_closed(self) -> None:
        async with connected() as connection:
            assert (await exchange(connection, "/short/10"))[0] == 200
            timer = Quick.made[0]._timer
            assert timer is not None
            for _ in range(20):
                assert (await exchange(connection, "/short/10"))[0] == 200
                assert Quick.made[0]._timer is timer
            connection[1].close()
            await soon(lambda: Quick.made[0]._timer is None)
            assert timer.cancelled()


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
    def small_buffers(self, monkeypatch: pytest.MonkeyPatch) -> None:
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
            # The connection may be idle first; then the reader may take bytes that the system still had room for.
            for seconds in (IDLE_S, STALL_S, STALL_S):
                pass_time(seconds)
                await settle()
            await soon(lambda: Quick.made[-1] not in Quick.made[-1].connections)
            assert Quick.made[-1]._stall_timer is None
            assert len(await read_rest(reader)) < size

    @in_loop
    @pytest.mark.parametrize("system_bytes", SEND_BUFFERS_BYTES)
    async def test_steady_reader_gets_whole_response(self, system_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Quick, "system_bytes", system_bytes)
        size = 700_000
        async with unread() as reader:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(reader, request(f"/short/{size}"))
            received = b""
            stall_checks = 0
            while not received.endswith(b"x" * 10) or len(received) < size:
                part = await asyncio.wait_for(loop.sock_recv(reader, 5000), HANGS_AFTER_S)
                assert part, f"closed after {len(received)} bytes: {Quick.limits.closed}"
                received += part
                if len(received) > (stall_checks + 1) * 100_000:
                    stall_checks += 1
                    pass_time(STALL_S)
                    await settle()
            assert stall_checks > 3
            assert received.endswith((b"%d " % size).ljust(size, b"x"))
            await soon(lambda: Quick.made[-1]._stall_timer is None)

    @in_loop
    async def test_slow_reader_loses_connection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with unread() as reader:
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(clocks, "STALL_S", 0.1)
            await loop.sock_sendall(reader, request("/short/3000000"))
            sips = 0
            while await loop.sock_recv(reader, 500):
                pass_time(0.1)
                await settle()
                sips += 1
            assert sips < 100
