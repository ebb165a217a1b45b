"""The gRPC server over real sockets, with handlers of the test's own on an event loop in another thread."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from app.grpc.bridge.server import CannotListen, GrpcServer
from app.grpc.call import Call, GrpcError

UNARY, STREAM = "/test.Service/Unary", "/test.Service/Stream"
MANY = 1_000


class House:
    """A server whose handlers are `self.unary` and `self.stream`; what they saw is kept."""

    def __init__(self, max_message_bytes: int = 1_000_000, max_calls: int = 2 * MANY) -> None:
        self.loop = asyncio.new_event_loop()
        self.server = GrpcServer(max_message_bytes, max_calls)
        self.port = self.server.bind("127.0.0.1", 0)
        self.begun = threading.Event()
        self.gate = asyncio.Event()
        self.cancelled = threading.Event()
        self.calls: list[Call] = []
        self.running = 0
        self.most_running = 0
        self.sent = 0
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.run(self.server.start({UNARY: self.unary}, {STREAM: self.stream}))

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def open_gate(self) -> None:
        self.loop.call_soon_threadsafe(self.gate.set)

    async def unary(self, request: bytes, call: Call) -> bytes:
        """Echoes; `wait` first waits for the gate, `fail` and `break` end with errors."""
        self.calls.append(call)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.begun.set()
        try:
            if request == b"fail":
                raise GrpcError("NOT_FOUND", "there is no such thing")
            if request == b"break":
                raise ValueError("a secret")
            if request.startswith(b"wait"):
                await self.gate.wait()
            return request
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.running -= 1

    async def stream(self, requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        """Echoes each; after `flood` it sends without end, after `fail` it ends with an error."""
        try:
            async for request in requests:
                self.begun.set()
                if request == b"fail":
                    raise GrpcError("ABORTED", "as you wished")
                if request == b"flood":
                    while True:
                        self.sent += 1
                        yield bytes(10_000)
                yield request
        except (asyncio.CancelledError, GeneratorExit):  # the latter while it waits for its reader
            self.cancelled.set()
            raise

    def close(self) -> None:
        self.open_gate()
        self.run(self.server.stop(0.1))
        self.run(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


@contextmanager
def serving(**bounds: int) -> Iterator[tuple[House, grpc.Channel]]:
    house = House(**bounds)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{house.port}") as channel:
            yield house, channel
    finally:
        house.close()


@pytest.fixture
def house() -> Iterator[tuple[House, grpc.Channel]]:
    with serving() as both:
        yield both


def unary(channel: grpc.Channel) -> Any:
    return channel.unary_unary(UNARY)


def stream(channel: grpc.Channel) -> Any:
    return channel.stream_stream(STREAM)


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "waited in vain"
        time.sleep(0.01)


@contextmanager
def ends_with(code: grpc.StatusCode, words: str = "") -> Iterator[None]:
    with pytest.raises(grpc.RpcError) as told:
        yield
    assert told.value.code() is code, told.value
    assert words in str(told.value.details())


Both = tuple[House, grpc.Channel]


def test_a_call_is_answered(house: Both) -> None:
    assert unary(house[1])(b"seven", metadata=[("x-request-id", "7"), ("odd-bin", b"\xff")]) == b"seven"
    (call,) = house[0].calls
    assert (b"x-request-id", b"7") in call.headers
    assert (b"odd-bin", b"\xff") in call.headers
    assert call.left_s is None


def test_errors_are_statuses_and_ours_say_nothing(house: Both) -> None:
    with ends_with(grpc.StatusCode.NOT_FOUND, "there is no such thing"):
        unary(house[1])(b"fail")
    with pytest.raises(grpc.RpcError) as told:
        unary(house[1])(b"break")
    assert told.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(told.value.details())
    with ends_with(grpc.StatusCode.ABORTED, "as you wished"):
        list(stream(house[1])(iter([b"fail"])))
    assert unary(house[1])(b"goes on") == b"goes on"


def test_a_deadline_is_known_and_ends_the_handler(house: Both) -> None:
    with ends_with(grpc.StatusCode.DEADLINE_EXCEEDED):
        unary(house[1])(b"wait", timeout=0.3)
    left_s = house[0].calls[0].left_s
    assert left_s is not None
    assert left_s < 0.3
    assert house[0].cancelled.wait(5)
    wait_until(lambda: house[0].running == 0)


def test_a_client_that_leaves_cancels_the_handler(house: Both) -> None:
    call = unary(house[1]).future(b"wait")
    assert house[0].begun.wait(5)
    call.cancel()
    assert house[0].cancelled.wait(5)
    wait_until(lambda: house[0].running == 0)


def test_a_message_that_is_too_large() -> None:
    with serving(max_message_bytes=10_000) as (_, channel):
        with ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED):
            unary(channel)(bytes(10_001))
        assert len(unary(channel)(bytes(10_000))) == 10_000


def test_a_message_that_becomes_too_large_when_it_is_unpacked() -> None:
    with serving(max_message_bytes=10_000) as (_, channel):
        with ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED):
            unary(channel)(bytes(1_000_000), compression=grpc.Compression.Gzip)
        assert unary(channel)(b"a" * 5_000, compression=grpc.Compression.Gzip) == b"a" * 5_000


def test_a_thousand_calls_at_once(house: Both) -> None:
    calls = [unary(house[1]).future(b"wait %d" % i) for i in range(MANY)]
    wait_until(lambda: house[0].running == MANY, 30)
    house[0].open_gate()
    assert [call.result(30) for call in calls] == [b"wait %d" % i for i in range(MANY)]
    assert house[0].running == 0


def test_more_calls_than_are_taken_are_refused_at_once() -> None:
    with serving(max_calls=4) as (house, channel):
        calls = [unary(channel).future(b"wait") for _ in range(4)]
        wait_until(lambda: house.running == 4)
        with ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED):
            unary(channel)(b"one more", timeout=5)
        house.open_gate()
        assert [call.result(10) for call in calls] == [b"wait"] * 4
        assert unary(channel)(b"room again") == b"room again"


def test_streams_both_ways(house: Both) -> None:
    sent = [b"%d" % i for i in range(500)]
    assert list(stream(house[1])(iter(sent))) == sent


def test_a_reader_that_is_behind_holds_up_its_own_stream_alone(house: Both) -> None:
    flood = stream(house[1])(iter([b"flood"]))
    next(flood)
    seen = -1

    def stands_still() -> bool:
        nonlocal seen
        before, seen = seen, house[0].sent
        time.sleep(0.2)
        return seen == before

    wait_until(stands_still)
    assert house[0].sent * 10_000 < 20_000_000
    assert unary(house[1])(b"another") == b"another"
    flood.cancel()
    assert house[0].cancelled.wait(5)


def test_a_stop_answers_what_runs_and_takes_nothing_new(house: Both) -> None:
    call = unary(house[1]).future(b"wait")
    assert house[0].begun.wait(5)
    with ThreadPoolExecutor(1) as one:
        stopping = one.submit(house[0].run, house[0].server.stop(10))
        time.sleep(0.2)
        with ends_with(grpc.StatusCode.UNAVAILABLE):
            unary(house[1])(b"new", timeout=5)
        house[0].open_gate()
        assert call.result(5) == b"wait"
        stopping.result(10)


def test_a_stop_does_not_wait_for_ever(house: Both) -> None:
    call = unary(house[1]).future(b"wait")
    assert house[0].begun.wait(5)
    house[0].run(house[0].server.stop(0.2))
    assert house[0].cancelled.wait(5)
    assert isinstance(call.exception(5), grpc.RpcError)


def test_a_port_that_is_taken(house: Both) -> None:
    with pytest.raises(CannotListen, match="cannot listen on 127"):
        GrpcServer(1000, 10).bind("127.0.0.1", house[0].port)
