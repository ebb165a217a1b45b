"""Test the gRPC server over real sockets; the test's handlers run on an event loop in another thread."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from app.grpc.call import Call, GrpcError, StreamingCall
from app.grpc.transport.server import GrpcBounds, GrpcServer
from app.http.listener.http2.clocks import Http2Bounds
from app.http.listener.sockets import CannotListenError

UNARY, STREAM = "/test.Service/Unary", "/test.Service/Stream"
MANY = 1_000


class ThreadedServer:
    """Serve `self.unary` and `self.stream`, and record their calls."""

    def __init__(self, max_message_bytes: int = 1_000_000, max_calls: int = 2 * MANY) -> None:
        self.loop = asyncio.new_event_loop()
        bounds = GrpcBounds(connections=Http2Bounds(max_streams=2 * MANY))
        self.server = GrpcServer(max_message_bytes, max_calls, bounds)
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
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def open_gate(self) -> None:
        self.loop.call_soon_threadsafe(self.gate.set)

    async def unary(self, request: bytes, call: Call) -> bytes:
        """Echo the request; `wait` waits for the gate first, `fail` and `break` end with errors."""
        self.calls.append(call)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.begun.set()
        try:
            if request == b"fail":
                raise GrpcError("NOT_FOUND", "unknown request")
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

    async def stream(self, requests: AsyncIterator[bytes], call: StreamingCall) -> None:
        """Echo each request; `flood` starts endless responses, `fail` ends the call with an error."""
        try:
            async for request in requests:
                self.begun.set()
                if request == b"fail":
                    raise GrpcError("ABORTED", "aborted by request")
                if request == b"flood":
                    while True:
                        self.sent += 1
                        await call.send(bytes(10_000))
                await call.send(request)
        except (asyncio.CancelledError, GeneratorExit):  # GeneratorExit: while the client does not read
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
def serving(**bounds: int) -> Iterator[tuple[ThreadedServer, grpc.Channel]]:
    served = ThreadedServer(**bounds)
    try:
        # Otherwise a client that does not read opens its window further and further.
        options = [("grpc.http2.bdp_probe", 0)]
        with grpc.insecure_channel(f"127.0.0.1:{served.port}", options) as channel:
            yield served, channel
    finally:
        served.close()


@pytest.fixture
def served() -> Iterator[tuple[ThreadedServer, grpc.Channel]]:
    with serving() as pair:
        yield pair


def unary(channel: grpc.Channel) -> Any:
    return channel.unary_unary(UNARY)


def stream(channel: grpc.Channel) -> Any:
    return channel.stream_stream(STREAM)


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "the condition did not become true in time"
        time.sleep(0.01)


@contextmanager
def ends_with(code: grpc.StatusCode, details: str = "") -> Iterator[None]:
    with pytest.raises(grpc.RpcError) as raised:
        yield
    assert raised.value.code() is code, raised.value
    assert details in str(raised.value.details())


Served = tuple[ThreadedServer, grpc.Channel]


def test_unary_call_is_echoed(served: Served) -> None:
    assert unary(served[1])(b"seven", metadata=[("x-request-id", "7"), ("odd-bin", b"\xff")]) == b"seven"
    (call,) = served[0].calls
    assert (b"x-request-id", b"7") in call.headers
    assert (b"odd-bin", b"\xff") in call.headers
    assert call.left_s is None


def test_handler_errors_become_statuses_without_internals(served: Served) -> None:
    with ends_with(grpc.StatusCode.NOT_FOUND, "unknown request"):
        unary(served[1])(b"fail")
    with pytest.raises(grpc.RpcError) as raised:
        unary(served[1])(b"break")
    assert raised.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(raised.value.details())
    with ends_with(grpc.StatusCode.ABORTED, "aborted by request"):
        list(stream(served[1])(iter([b"fail"])))
    assert unary(served[1])(b"next") == b"next"


def test_deadline_is_visible_and_cancels_handler(served: Served) -> None:
    for timeout_s in (0.3, 3, 30):
        with ends_with(grpc.StatusCode.DEADLINE_EXCEEDED):
            unary(served[1])(b"wait", timeout=timeout_s)
        if served[0].begun.is_set():
            break  # otherwise the machine was so slow that the call never began
    left_s = served[0].calls[0].left_s
    assert left_s is not None
    assert left_s < timeout_s
    assert served[0].cancelled.wait(60)
    wait_until(lambda: served[0].running == 0)


def test_client_cancel_cancels_handler(served: Served) -> None:
    call = unary(served[1]).future(b"wait")
    assert served[0].begun.wait(60)
    call.cancel()
    assert served[0].cancelled.wait(60)
    wait_until(lambda: served[0].running == 0)


def test_oversized_message_is_resource_exhausted() -> None:
    with serving(max_message_bytes=10_000) as (_, channel):
        with ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED):
            unary(channel)(bytes(10_001))
        assert len(unary(channel)(bytes(10_000))) == 10_000


def test_oversized_uncompressed_message_is_resource_exhausted() -> None:
    with serving(max_message_bytes=10_000) as (_, channel):
        with ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED):
            unary(channel)(bytes(1_000_000), compression=grpc.Compression.Gzip)
        assert unary(channel)(b"a" * 5_000, compression=grpc.Compression.Gzip) == b"a" * 5_000


def test_thousand_concurrent_calls_are_answered(served: Served) -> None:
    calls = [unary(served[1]).future(b"wait %d" % i) for i in range(MANY)]
    wait_until(lambda: served[0].running == MANY)
    served[0].open_gate()
    assert [call.result(60) for call in calls] == [b"wait %d" % i for i in range(MANY)]
    assert served[0].running == 0


def test_calls_above_limit_are_refused_at_once() -> None:
    with serving(max_calls=4) as (served, channel):
        calls = [unary(channel).future(b"wait") for _ in range(4)]
        wait_until(lambda: served.running == 4)
        with ends_with(grpc.StatusCode.RESOURCE_EXHAUSTED):
            unary(channel)(b"one more", timeout=60)
        served.open_gate()
        assert [call.result(60) for call in calls] == [b"wait"] * 4
        assert unary(channel)(b"next") == b"next"


def test_stream_echoes_many_messages_in_order(served: Served) -> None:
    sent = [b"%d" % i for i in range(500)]
    assert list(stream(served[1])(iter(sent))) == sent


def test_slow_reader_blocks_only_its_stream(served: Served) -> None:
    flood = stream(served[1])(iter([b"flood"]))
    next(flood)
    seen = -1

    def is_idle() -> bool:
        nonlocal seen
        before, seen = seen, served[0].sent
        time.sleep(0.2)
        return seen == before

    wait_until(is_idle)
    assert served[0].sent * 10_000 < 20_000_000
    assert unary(served[1])(b"another") == b"another"
    flood.cancel()
    assert served[0].cancelled.wait(60)


def test_stop_answers_running_calls_and_refuses_new(served: Served) -> None:
    call = unary(served[1]).future(b"wait")
    assert served[0].begun.wait(60)
    with ThreadPoolExecutor(1) as executor:
        stopping = executor.submit(served[0].run, served[0].server.stop(60))

        def is_refused() -> bool:
            try:
                unary(served[1])(b"new", timeout=60)
            except grpc.RpcError as error:
                # CANCELLED: the server stopped while the call arrived.
                return error.code() is grpc.StatusCode.UNAVAILABLE
            return False

        wait_until(is_refused)
        served[0].open_gate()
        assert call.result(60) == b"wait"
        stopping.result(60)


def test_stop_cancels_handlers_after_grace(served: Served) -> None:
    call = unary(served[1]).future(b"wait")
    assert served[0].begun.wait(60)
    served[0].run(served[0].server.stop(0.2))
    assert served[0].cancelled.wait(60)
    assert isinstance(call.exception(60), grpc.RpcError)


def test_bind_to_used_port_raises_cannot_listen(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CannotListenError, match=r"cannot listen on 127.0.0.1:\d+ \(Address already in use\)"):
        GrpcServer(1000, 10, GrpcBounds()).bind("127.0.0.1", served[0].port)
    # grpcio would print a line in C++.
    assert capfd.readouterr().err == ""


def test_bind_to_unknown_host_raises_cannot_listen() -> None:
    with pytest.raises(CannotListenError, match=r"got .host.invalid"):
        GrpcServer(1000, 10, GrpcBounds()).bind("host.invalid", 1)
