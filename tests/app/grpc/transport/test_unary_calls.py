"""Test calls with one request and one response, over real sockets."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from app.grpc.call import Call
from app.grpc.transport.calls import ReceivedCall
from tests.app.grpc.transport.serving import STREAM, UNARY, Gate, connect, echo, serving, status_of, unary_client
from tests.support.loops import in_loop, soon, task


@in_loop
@pytest.mark.parametrize("size", [0, 1, 100_000])
async def test_unary_call_of_any_size_is_echoed(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    async with serving() as (_, address), unary_client(address) as ask:
        assert await ask(content[:size]) == content[:size]


@in_loop
async def test_handler_runs_on_loop_that_started_server() -> None:
    loops = []

    async def record(request: bytes, call: Call) -> bytes:
        loops.append(asyncio.get_running_loop())
        return b""

    async with serving(record) as (_, address), unary_client(address) as ask:
        await ask(b"")
    assert loops == [asyncio.get_running_loop()]


@in_loop
async def test_handler_sees_deadline_metadata_and_peer() -> None:
    seen: list[Any] = []

    async def record(request: bytes, call: Call) -> bytes:
        assert isinstance(call, ReceivedCall)
        seen.append((call.left_s, call.headers, call.peer))
        return b""

    async with serving(record) as (_, address), unary_client(address) as ask:
        await ask(b"")
        await ask(b"", timeout=600, metadata=(("x-request-id", "r-1"), ("some-bin", b"\x00\xff")))
    (no_deadline, _, _), (left_s, headers, peer) = seen
    assert no_deadline is None
    # The wire format rounds deadlines.
    assert 480 < left_s < 610
    assert {(b"x-request-id", b"r-1"), (b"some-bin", b"\x00\xff")} <= set(headers)
    assert peer.startswith("ipv4:127.0.0.1:")


@in_loop
async def test_unknown_method_is_unimplemented() -> None:
    async with serving() as (_, address), connect(address) as channel:
        other: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test.Service/Other")
        code, _ = await status_of(other(b""))
        assert code is grpc.StatusCode.UNIMPLEMENTED


@in_loop
async def test_client_cancel_cancels_only_its_handler() -> None:
    gate = Gate()
    async with serving(gate) as (_, address), unary_client(address) as ask:
        cancelled, other = ask(b"cancelled"), ask(b"other")
        await soon(lambda: gate.running == 2)
        cancelled.cancel()
        await soon(lambda: gate.cancelled == 1)
        gate.open.set()
        assert await other == b"other"


@in_loop
async def test_client_disconnect_cancels_all_its_handlers() -> None:
    gate = Gate()
    async with serving(gate) as (_, address):
        async with unary_client(address) as ask:
            calls = [task(status_of(ask(b""))) for _ in range(5)]
            await soon(lambda: gate.running == 5)
        await soon(lambda: gate.cancelled == 5)
        await asyncio.gather(*calls, return_exceptions=True)
        async with unary_client(address) as ask:
            gate.open.set()
            assert await ask(b"next") == b"next"


@in_loop
async def test_unary_method_called_as_stream_is_unimplemented() -> None:
    """A unary client may call a stream method: both look the same on the wire. A unary method requires a request."""
    async with serving(echo) as (_, address), connect(address) as channel:
        unary: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(STREAM)
        assert await unary(b"one") == b"one"
        stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(UNARY)
        call = stream()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
