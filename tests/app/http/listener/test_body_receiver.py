"""Bodies that are received into memory of their own, over real sockets and both event loops."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from tests.app.http import connections
from tests.app.http.connections import (
    IDLE_S,
    LEAD_BYTES,
    Quick,
    answer_of,
    check_idle_time,
    connected,
    exchange,
    leased,
    messages,
    outcomes,
    request,
)
from tests.support.loops import HANGS_AFTER_S, in_loop, pass_time, settle, soon

BODY = bytes(range(251)) * 4_000


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Return a function that runs a test in a new loop of each kind."""

    def run_in(test: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with asyncio.timeout(HANGS_AFTER_S):
                await test()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(whole())

    return run_in


Run = Callable[[Callable[[], Awaitable[None]]], None]


def test_body_arrives_whole_in_its_memory(run: Run) -> None:
    async def test() -> None:
        async with connected() as connection:
            for _ in range(3):
                assert (await exchange(connection, "/direct", BODY))[2] == BODY
            assert (await exchange(connection, "/echo", b"short"))[2] == b"short"
            assert [each[LEAD_BYTES:].tobytes() for each in leased] == [BODY] * 3
            # One for the first part, and one for the end.
            assert len(messages) == 6

    run(test)


def test_body_in_small_pieces(run: Run) -> None:
    async def test() -> None:
        async with connected() as connection:
            whole = request("/direct", BODY)
            for start in range(0, len(whole), 70_001):
                connection[1].write(whole[start : start + 70_001])
                await settle()
            assert (await answer_of(connection))[2] == BODY

    run(test)


def test_request_behind_body_is_answered(run: Run) -> None:
    """The bytes of the next request arrive with the end of the body."""

    async def test() -> None:
        async with connected() as connection:
            connection[1].write(request("/direct", BODY) + request("/direct", BODY[::-1]) + request("/echo", b"c"))
            assert [(await answer_of(connection))[2] for _ in range(3)] == [BODY, BODY[::-1], b"c"]

    run(test)


def test_lost_connection_ends_the_body(run: Run) -> None:
    async def test() -> None:
        async with connected() as connection:
            connection[1].write(request("/direct", BODY)[:-1])
            await soon(lambda: bool(leased) and leased[0][-2] == BODY[-2])
            connection[1].close()
            await soon(lambda: outcomes == ["ClientGone"])

    run(test)


def test_uncounted_body_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other bodies have taken the room meanwhile. The rest of the body is read, and the connection goes on."""

    async def test() -> None:
        async with connected() as connection:
            connection[1].write(request("/direct", BODY)[: -len(BODY) // 2])
            await soon(lambda: bool(leased))
            with connections.byte_limit.hold() as hold:
                hold.add(connections.byte_limit.max_bytes or 0)
                connection[1].write(request("/direct", BODY)[-len(BODY) // 2 : -100])
                await soon(lambda: outcomes == ["Overloaded"])
                assert (await answer_of(connection))[2] == b"-"
            before = leased[0].copy()
            connection[1].write(BODY[-100:])
            assert (await exchange(connection, "/echo", b"next"))[2] == b"next"
            assert (leased[0] == before).all()

    run(test)


def test_idle_connection_keeps_no_body(run: Run) -> None:
    async def test() -> None:
        async with connected() as connection:
            assert (await exchange(connection, "/direct", BODY))[2] == BODY
            body = weakref.ref(leased.pop())
            await soon(lambda: body() is None)
            assert not Quick.made[0]._unparsed
            assert not isinstance(Quick.made[0]._unparsed, memoryview)
            assert (await exchange(connection, "/direct", BODY))[2] == BODY

    run(test)


def test_unread_body_leaves_connection_usable(run: Run) -> None:
    """The part that has arrived is held for a request that never asks for it."""

    async def test() -> None:
        async with connected() as connection:
            for way in ("/refused", "/direct", "/refused"):
                connection[1].write(request(way, BODY) + request("/echo", b"next"))
                assert (await answer_of(connection))[0] == (413 if way == "/refused" else 200)
                assert (await answer_of(connection))[2] == b"next"

    run(test)


@in_loop
async def test_slow_body_times_out() -> None:
    async with connected(body_timeout_s=IDLE_S) as connection:
        connection[1].write(request("/direct", BODY)[:-10])
        await soon(lambda: bool(leased) and leased[0][-11] == BODY[-11])
        pass_time(2 * IDLE_S)
        await soon(lambda: outcomes == ["RequestTimeout"])


@in_loop
async def test_body_that_goes_on_is_in_time() -> None:
    async with connected(body_timeout_s=IDLE_S) as connection:
        head = request("/direct", BODY)[: -len(BODY)]
        connection[1].write(head)
        for end in range(len(BODY) // 8, len(BODY) + 1, len(BODY) // 8):
            connection[1].write(BODY[end - len(BODY) // 8 : end])
            await soon(lambda least=end: num_received() == least)  # type: ignore[misc]
            pass_time(0.8 * IDLE_S)
            await settle()
        assert (await answer_of(connection))[2] == BODY
        await check_idle_time(connection)


def num_received() -> int:
    """Return how many bytes of the body have arrived."""
    cycle = Quick.made[0].cycle if Quick.made else None
    return 0 if cycle is None else cycle.received_bytes
