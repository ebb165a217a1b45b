"""Connections over real sockets: silent ones, slow heads and slow bodies end in time, and others are not affected."""

import asyncio
import json

import pytest

from app.http.listener.clocks import BODY_PART_BYTES
from tests.app.http.connections import (
    IDLE_S,
    Connection,
    Quick,
    answer_of,
    check_idle_time,
    connected,
    exchange,
    outcomes,
    request,
)
from tests.support.loops import in_loop, pass_time, settle, soon

HEADER_S = IDLE_S / 6
BODY_S = IDLE_S / 2
BODY_HEAD = b"POST /gathered HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"


async def send(connection: Connection, data: bytes) -> None:
    """Send bytes and wait until the server has received them."""
    wanted_bytes = Quick.made[0].received_bytes + len(data) if Quick.made else len(data)
    connection[1].write(data)
    await soon(lambda: bool(Quick.made) and Quick.made[0].received_bytes == wanted_bytes)
    await settle()


async def pass_and_settle(seconds: float) -> None:
    pass_time(seconds)
    await settle()


async def check_timeout_answer(connection: Connection, message: str) -> None:
    """Check that the answer is a 408 of the contract's form, and that the connection is closed behind it."""
    status, headers, body = await answer_of(connection)
    error = json.loads(body)["error"]
    assert (status, headers["connection"], error["code"]) == (408, "close", "request_timeout")
    assert error["message"].startswith(message)
    assert error["request_id"] == headers["x-request-id"]
    assert await asyncio.wait_for(connection[0].read(), 60) == b""


def closed() -> dict[str, int]:
    """Return how many connections the server closed, by reason."""
    return {reason: count for reason, count in Quick.limits.closed.items() if count}


class TestHeads:
    @in_loop
    @pytest.mark.parametrize("sent", [b"", b"\r\n\r\n"], ids=["silent", "only empty lines"])
    async def test_silent_connection_is_closed(self, sent: bytes) -> None:
        async with connected(header_timeout_s=HEADER_S) as connection:
            await send(connection, sent)
            await pass_and_settle(HEADER_S * 0.8)
            assert not Quick.made[0].transport.is_closing()
            pass_time(HEADER_S * 0.3)
            assert await asyncio.wait_for(connection[0].read(), 60) == b""
            assert closed() == {"header_timeout": 1}

    @in_loop
    @pytest.mark.parametrize("sent", [b"P", b"POST /short/5 HTTP/1.1\r\nhost: x\r\nx: "])
    async def test_half_first_head_gets_408(self, sent: bytes) -> None:
        """The time of a connection's first head includes the time before its first byte."""
        async with connected(header_timeout_s=HEADER_S) as connection:
            await send(connection, b"")
            await pass_and_settle(HEADER_S * 0.6)
            await send(connection, sent)
            await pass_and_settle(HEADER_S * 0.3)
            assert not Quick.made[0].transport.is_closing()
            pass_time(HEADER_S * 0.2)
            await check_timeout_answer(connection, "headers: expected the whole head within 10 s")
            assert closed() == {"header_timeout": 1}

    @in_loop
    async def test_slow_head_gets_408_at_its_deadline(self) -> None:
        """Each byte is in time; all of them are not. The time before the first byte does not count."""
        head = request("/short/5")
        async with connected(header_timeout_s=HEADER_S) as connection:
            assert (await exchange(connection, "/short/10"))[0] == 200
            await pass_and_settle(HEADER_S * 3)
            for byte in head[:9]:
                assert not Quick.made[0].transport.is_closing()
                await send(connection, bytes([byte]))
                await pass_and_settle(HEADER_S / 9.5)
            assert not Quick.made[0].transport.is_closing()
            pass_time(HEADER_S / 9.5)
            await check_timeout_answer(connection, "headers: ")

    @in_loop
    async def test_bytes_that_wait_are_read_first(self) -> None:
        """The server stands still for longer than its timeout, while a client connects and sends."""
        async with connected(header_timeout_s=HEADER_S) as connection:
            await send(connection, b"")
            connection[1].write(request("/short/10"))
            pass_time(2 * HEADER_S)
            assert (await answer_of(connection))[0] == 200
            assert closed() == {}

    @in_loop
    async def test_head_in_parts_is_read_in_time(self) -> None:
        head = request("/short/5")
        async with connected(header_timeout_s=HEADER_S) as connection:
            for _ in range(3):
                await send(connection, head[:10])
                await pass_and_settle(HEADER_S * 0.9)
                await send(connection, head[10:])
                assert (await answer_of(connection))[0] == 200
                await pass_and_settle(HEADER_S * 2)
            assert closed() == {}
            await check_idle_time_after(connection)

    @in_loop
    async def test_half_head_behind_running_request_gets_408(self) -> None:
        async with connected(header_timeout_s=HEADER_S) as connection:
            first = request("/short/5", b"", f"x-wait: {HEADER_S * 3}")
            await send(connection, first + b"POST /short/6 HTTP/1.1\r\n")
            await pass_and_settle(HEADER_S * 2)
            assert not Quick.made[0].transport.is_closing()
            await pass_and_settle(HEADER_S)
            assert (await answer_of(connection))[0] == 200
            await pass_and_settle(HEADER_S * 0.9)
            assert not Quick.made[0].transport.is_closing()
            pass_time(HEADER_S * 0.2)
            await check_timeout_answer(connection, "headers: ")


async def check_idle_time_after(connection: Connection) -> None:
    """As `check_idle_time`, after another response."""
    assert (await exchange(connection, "/short/10"))[0] == 200
    await check_idle_time(connection)


class TestBodies:
    @in_loop
    @pytest.mark.parametrize("size", [0, 1, BODY_PART_BYTES - 1, BODY_PART_BYTES, 3 * BODY_PART_BYTES])
    async def test_stopped_body_ends(self, size: int) -> None:
        """The first chunk starts the clock; the parts before it are not waited for again."""
        async with connected(body_timeout_s=BODY_S) as connection:
            await send(connection, BODY_HEAD + bytes(size))
            await pass_and_settle(BODY_S * 0.9)
            assert not outcomes
            pass_time(BODY_S * 0.2)
            status, headers, body = await answer_of(connection)
            assert (status, headers["connection"], body) == (200, "close", b"-")
            assert outcomes == ["RequestTimeout"]
            assert closed() == {"body_timeout": 1}
            assert await asyncio.wait_for(connection[0].read(), 60) == b""

    @in_loop
    async def test_slow_body_ends_at_deadline_of_its_part(self) -> None:
        """One byte at a time, from the last 64 KiB on."""
        async with connected(body_timeout_s=BODY_S) as connection:
            await send(connection, BODY_HEAD)
            await pass_and_settle(BODY_S * 0.5)
            await send(connection, bytes(BODY_PART_BYTES))
            for _ in range(9):
                await pass_and_settle(BODY_S / 9.5)
                assert not outcomes
                await send(connection, b"x")
            await pass_and_settle(BODY_S / 9.5)
            await soon(lambda: outcomes == ["RequestTimeout"])

    @in_loop
    @pytest.mark.parametrize("way", ["echo", "gathered"])
    async def test_body_that_moves_is_read(self, way: str) -> None:
        body = bytes(range(256)) * (5 * BODY_PART_BYTES // 256) + b"end"
        async with connected(body_timeout_s=BODY_S) as connection:
            data = request(f"/{way}", body)
            for start in range(0, len(data), BODY_PART_BYTES):
                await send(connection, data[start : start + BODY_PART_BYTES])
                if start:
                    assert not Quick.made[0].transport.is_closing()
                await pass_and_settle(BODY_S * 0.45)
            assert (await answer_of(connection))[2] == body
            assert closed() == {}
            await check_idle_time_after(connection)

    @in_loop
    async def test_body_behind_running_request_has_its_own_time(self) -> None:
        async with connected(body_timeout_s=BODY_S) as connection:
            await send(connection, request("/short/5", b"", f"x-wait: {BODY_S * 3}") + BODY_HEAD + b"x")
            await pass_and_settle(BODY_S * 3)
            assert (await answer_of(connection))[0] == 200
            await pass_and_settle(BODY_S * 0.9)
            assert not outcomes
            pass_time(BODY_S * 0.2)
            assert (await answer_of(connection))[1]["connection"] == "close"
            assert outcomes == ["RequestTimeout"]

    @in_loop
    async def test_body_of_answered_request_is_cut_off(self) -> None:
        async with connected(body_timeout_s=BODY_S) as connection:
            head = b"POST /refused HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
            await send(connection, head)
            assert (await answer_of(connection))[0] == 413
            await send(connection, b"x" * 100)
            await pass_and_settle(BODY_S * 0.9)
            assert not Quick.made[0].transport.is_closing()
            pass_time(BODY_S * 0.2)
            assert await asyncio.wait_for(connection[0].read(), 60) == b""
            assert closed() == {"body_timeout": 1}

    @in_loop
    async def test_pause_of_the_server_does_not_count(self) -> None:
        """The application takes the body late, so that the connection is paused at its bound."""
        body = bytes(10 * BODY_PART_BYTES)
        async with connected(body_timeout_s=BODY_S) as connection:
            connection[1].write(request("/late", body, f"x-wait: {BODY_S * 3}"))
            await soon(lambda: bool(Quick.made) and Quick.made[0].flow is not None and Quick.made[0].flow.read_paused)
            for _ in range(3):
                await pass_and_settle(BODY_S)
            assert (await answer_of(connection))[2] == body
            assert closed() == {}


class TestConnections:
    @in_loop
    async def test_connection_beyond_bound_is_refused(self) -> None:
        async with connected(max_connections=2) as connection:
            assert (await exchange(connection, "/short/10"))[0] == 200
            address = connection[1].get_extra_info("peername")
            second = await asyncio.open_connection(*address)
            assert (await exchange(second, "/short/10"))[0] == 200
            for count in (1, 2):
                third = await asyncio.open_connection(*address)
                status, headers, body = await answer_of(third)
                assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "1")
                error = json.loads(body)["error"]
                assert error["code"] == "overloaded"
                assert error["message"].startswith("connections: expected at most 2 open ones")
                assert await asyncio.wait_for(third[0].read(), 60) == b""
                third[1].close()
                assert closed() == {"max_connections": count}
                await soon(lambda: Quick.limits.open == 2)
            assert (await exchange(connection, "/short/10"))[0] == 200
            second[1].close()
            await soon(lambda: Quick.limits.open == 1)
            fourth = await asyncio.open_connection(*address)
            assert (await exchange(fourth, "/short/10"))[0] == 200
            fourth[1].close()
        assert Quick.limits.open == 0
