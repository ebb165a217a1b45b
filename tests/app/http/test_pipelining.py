"""Many requests of one connection at once: all are answered in order, and few of them are held."""

import asyncio

import pytest

from app.http.listener.parsing import MAX_PIPELINED, SLICE_BYTES
from tests.app.http.connections import MAX_BYTES, Connection, Quick, answer_of, connected, exchange, request
from tests.support.loops import in_loop, soon

COUNT = 3000
PLAIN = b"GET /short/%d HTTP/1.1\r\n\r\n"
UPGRADE = b"GET /short/%d HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"


async def check_answers(connection: Connection, first: int, count: int) -> None:
    for i in range(first, first + count):
        status, _, body = await answer_of(connection)
        assert (status, len(body)) == (200, i)


@in_loop
@pytest.mark.parametrize("form", [PLAIN, UPGRADE], ids=["plain", "offering to upgrade"])
async def test_pipelined_requests_are_bounded(form: bytes) -> None:
    """Only those that fit into one slice are parsed; the rest waits in the system's buffers and the client's."""
    async with connected() as connection:
        connection[1].write(request("/short/99", b"", "x-wait: 0.2"))
        connection[1].write(b"".join(form % i for i in range(100, 100 + COUNT)))
        await soon(lambda: bool(Quick.made) and len(Quick.made[0].pipeline) >= MAX_PIPELINED)
        protocol = Quick.made[0]
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(protocol.pipeline))
                assert protocol.flow.read_paused or not protocol._unparsed
                await asyncio.sleep(0)

        watching = asyncio.get_running_loop().create_task(watch())
        await check_answers(connection, 99, COUNT + 1)
        watching.cancel()
        assert MAX_PIPELINED <= most <= MAX_PIPELINED + SLICE_BYTES // len(form % 100) + 1
        assert (await exchange(connection, "/echo", b"after all of them"))[2] == b"after all of them"


@in_loop
async def test_reading_of_bodies_keeps_the_bound() -> None:
    """uvicorn resumes reading for a body, and to notice the end of the connection."""
    body = b"b" * 20_000
    async with connected() as connection:
        connection[1].write(b"".join(request("/gathered", body, f"x-number: {i}") for i in range(300)))
        most = 0
        for _ in range(300):
            assert (await answer_of(connection))[2] == body
            most = max(most, len(Quick.made[0].pipeline))
        assert most <= MAX_PIPELINED + 1


@in_loop
@pytest.mark.parametrize("chunked", [False, True])
async def test_long_bodies_between_pipelined_requests(chunked: bool) -> None:
    body = bytes(range(256)) * 1500
    long = request("/echo", body)
    if chunked:
        long = b"POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
        long += b"".join(b"%x\r\n%b\r\n" % (1500, body[start : start + 1500]) for start in range(0, len(body), 1500))
        long += b"0\r\n\r\n"
    async with connected() as connection:
        connection[1].write((PLAIN % 50 + long) * 30)
        for _ in range(30):
            await check_answers(connection, 50, 1)
            assert (await answer_of(connection))[2] == body


@in_loop
async def test_disconnect_drops_what_is_not_parsed() -> None:
    async with connected() as connection:
        connection[1].write(request("/short/99", b"", "x-wait: 0.2") + (PLAIN % 100) * COUNT)
        await soon(lambda: bool(Quick.made) and bool(Quick.made[0]._unparsed))
        connection[1].transport.abort()
        await soon(lambda: Quick.made[0] not in Quick.made[0].connections)
        assert not Quick.made[0]._unparsed
    assert Quick.limits.open == 0


@in_loop
async def test_invalid_request_behind_many_ends_connection() -> None:
    async with connected() as connection:
        connection[1].write((PLAIN % 100) * 1000 + b"nonsense\r\n\r\n" + (PLAIN % 100) * 1000)
        received = await asyncio.wait_for(connection[0].read(MAX_BYTES), 60)
        while chunk := await asyncio.wait_for(connection[0].read(MAX_BYTES), 60):
            received += chunk
        assert received.count(b"HTTP/1.1 200 OK") <= 1000
        assert received.count(b"HTTP/1.1 400 ") <= 1
