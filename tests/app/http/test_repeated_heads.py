"""A head that a connection repeats is not parsed again; every request is answered as if it were."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.http.connections import Connection, Quick, answer_of, check_idle_time, connected, repeated, request
from tests.support.loops import in_loop, settle, soon

PATH = "/repeated/0"


async def send(connection: Connection, chunk: bytes) -> None:
    """Send bytes that arrive at once."""
    seen = Quick.made[0].received_bytes if Quick.made else 0
    connection[1].write(chunk)
    await soon(lambda: bool(Quick.made) and Quick.made[0].received_bytes > seen)
    await settle()


@in_loop
async def test_repeated_head_is_parsed_once() -> None:
    bodies = [b"one", b"two", b"six", b"ten"]
    async with connected() as connection:
        for body in bodies:
            await send(connection, request(PATH, body))
            assert (await answer_of(connection))[2] == body
        assert repeated == bodies[1:]
        await check_idle_time(connection)


@in_loop
@pytest.mark.parametrize(
    "other",
    [
        request("/echo", b"two"),
        request(PATH, b"long"),
        request(PATH, b"two", "x-other: 1"),
        request("/REPEATED/0", b"two"),
        request(PATH, b"two").replace(b"host", b"HOST"),
    ],
)
async def test_other_head_is_parsed(other: bytes) -> None:
    async with connected() as connection:
        for sent in (request(PATH, b"one"), other, request(PATH, b"six")):
            await send(connection, sent)
            assert (await answer_of(connection))[0] == 200
        assert not repeated


@in_loop
async def test_repeated_head_after_close_is_not_answered() -> None:
    async with connected() as connection:
        for _ in range(2):
            connection[1].write(request(PATH, b"one", "connection: close"))
        assert (await asyncio.wait_for(connection[0].read(), 60)).count(b"HTTP/1.1 200") == 1
        assert not repeated


@in_loop
async def test_repeated_request_behind_another_is_queued() -> None:
    sent = request(PATH, b"one", "x-wait: 0.05")
    async with connected() as connection:
        await send(connection, sent)
        await answer_of(connection)
        for _ in range(3):
            await send(connection, sent)
        for _ in range(3):
            assert (await answer_of(connection))[2] == b"one"


@in_loop
async def test_client_gone_during_repeated_request_is_noticed() -> None:
    sent = request(PATH, b"one", "x-wait: 0.2")
    async with connected() as connection:
        await send(connection, sent)
        await answer_of(connection)
        await send(connection, sent)
        cycle = Quick.made[0].cycle
        connection[1].transport.abort()
        await asyncio.wait_for(cycle.task, 60)
        assert cycle.disconnected


@given(
    st.lists(st.tuples(st.sampled_from([b"", b"a", b"bc", b"de", b"\r\n\r\n"]), st.sampled_from(["", "x-other: 1"]))),
    st.lists(st.integers(1, 200)),
)
def test_any_chunks_give_the_same_answers(requests: list[tuple[bytes, str]], sizes: list[int]) -> None:
    """`sizes`: of the chunks in which the requests arrive; the last one has the rest."""

    @in_loop
    async def check() -> None:
        sent = [request(PATH, body, *filter(None, [line])) for body, line in requests]
        cuts = [0]
        for size in sizes:
            cuts.append(cuts[-1] + size)
        # Whole requests, then the same in any chunks.
        chunks = [*sent, *(part for at, end in pairwise([*cuts, 10**6]) if (part := b"".join(sent)[at:end])), *sent]
        async with connected() as connection:
            reader = asyncio.create_task(read_all(connection, 3 * len(sent)))
            for chunk in chunks:
                await send(connection, chunk)
            assert await reader == [body for body, _ in requests] * 3

    check()


async def read_all(connection: Connection, count: int) -> list[bytes]:
    return [(await answer_of(connection))[2] for _ in range(count)]
