"""Calls of one request and one response, over real sockets."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from app.grpc.bridge.received_call import ReceivedCall
from app.grpc.call import Call
from tests.app.grpc.bridge.serving import STREAM, UNARY, Gate, asking, connected, echo, serving, status_of
from tests.support.loops import in_loop, soon, task


@in_loop
@pytest.mark.parametrize("size", [0, 1, 100_000])
async def test_a_request_comes_whole_and_its_response_goes_back(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    async with serving() as (_, address), asking(address) as ask:
        assert await ask(content[:size]) == content[:size]


@in_loop
async def test_handlers_run_on_the_loop_that_started_the_server() -> None:
    loops = []

    async def tell(request: bytes, call: Call) -> bytes:
        loops.append(asyncio.get_running_loop())
        return b""

    async with serving(tell) as (_, address), asking(address) as ask:
        await ask(b"")
    assert loops == [asyncio.get_running_loop()]


@in_loop
async def test_a_handler_knows_deadline_metadata_and_peer() -> None:
    known: list[Any] = []

    async def tell(request: bytes, call: Call) -> bytes:
        assert isinstance(call, ReceivedCall)
        known.append((call.left_s, call.headers, call.peer))
        return b""

    async with serving(tell) as (_, address), asking(address) as ask:
        await ask(b"")
        await ask(b"", timeout=7, metadata=(("x-request-id", "r-1"), ("some-bin", b"\x00\xff")))
    (no_deadline, _, _), (left_s, headers, peer) = known
    assert no_deadline is None
    # On the wire deadlines are rounded.
    assert 5 < left_s < 7.1
    assert {(b"x-request-id", b"r-1"), (b"some-bin", b"\x00\xff")} <= set(headers)
    assert peer.startswith("ipv4:127.0.0.1:")


@in_loop
async def test_a_method_that_there_is_not_is_unimplemented() -> None:
    async with serving() as (_, address), connected(address) as channel:
        other: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test.Service/Other")
        code, _ = await status_of(other(b""))
        assert code is grpc.StatusCode.UNIMPLEMENTED


@in_loop
async def test_a_client_that_cancels_ends_its_handler_and_no_other() -> None:
    gate = Gate()
    async with serving(gate) as (_, address), asking(address) as ask:
        gone, stays = ask(b"gone"), ask(b"stays")
        await soon(lambda: gate.inside == 2)
        gone.cancel()
        await soon(lambda: gate.cancelled == 1)
        gate.open.set()
        assert await stays == b"stays"


@in_loop
async def test_a_client_that_hangs_up_ends_its_handlers() -> None:
    gate = Gate()
    async with serving(gate) as (_, address):
        async with asking(address) as ask:
            calls = [task(status_of(ask(b""))) for _ in range(5)]
            await soon(lambda: gate.inside == 5)
        await soon(lambda: gate.cancelled == 5)
        await asyncio.gather(*calls, return_exceptions=True)
        async with asking(address) as ask:
            gate.open.set()
            assert await ask(b"next") == b"next"


@in_loop
async def test_unary_and_stream_methods_do_not_mix() -> None:
    """A unary client of a stream method is answered: the wire knows no difference. A unary one wants its request."""
    async with serving(echo) as (_, address), connected(address) as channel:
        unary: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(STREAM)
        assert await unary(b"one") == b"one"
        stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(UNARY)
        call = stream()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
