"""Test the health service without a server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
from grpc_health.v1 import health_pb2

from app.auth.principal import ANONYMOUS
from app.grpc.call import GrpcError
from app.grpc.services import HealthCalls, ReflectionCalls
from tests.support.loops import in_loop, task

STATUS = health_pb2.HealthCheckResponse


class FakeCall:
    """A call from one connection."""

    left_s = None
    headers: ClassVar[list[tuple[bytes, bytes]]] = []
    principal = ANONYMOUS
    checked = None

    def __init__(self, peer: str = "ipv4:127.0.0.1:40000") -> None:
        self.peer = peer
        self.sent: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(self, response: bytes) -> None:
        await self.sent.put(response)


CALL: Any = FakeCall()


def health_request(service: str) -> bytes:
    serialized: bytes = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    return serialized


async def requests(*serialized: bytes) -> AsyncIterator[bytes]:
    for each in serialized:
        yield each


def status_of(response: bytes) -> int:
    status: int = STATUS.FromString(response).status
    return status


@pytest.mark.parametrize("service", ["", "a.Service"])
@in_loop
async def test_check_returns_readiness_of_known_service(service: str) -> None:
    readiness = iter([True, False])
    health = HealthCalls(["a.Service"], lambda: next(readiness))
    statuses = [status_of(await health.check(health_request(service), CALL)) for _ in range(2)]
    assert statuses == [STATUS.SERVING, STATUS.NOT_SERVING]


@in_loop
async def test_check_of_unknown_service_is_not_found() -> None:
    health = HealthCalls(["a.Service", "b.Service"], lambda: True)
    with pytest.raises(GrpcError, match=r'service: expected one of a\.Service, b\.Service, got "c"') as raised:
        await health.check(health_request("c"), CALL)
    assert raised.value.code == "NOT_FOUND"


@in_loop
async def test_watch_sends_status_after_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.grpc.services._WATCH_INTERVAL_S", 0.0)
    readiness = iter([True, True, False, False, True])
    call = FakeCall()
    # Its readiness ends, and with it the watch.
    with pytest.raises(RuntimeError, match="StopIteration"):
        await HealthCalls([], lambda: next(readiness)).watch(requests(health_request("")), call)
    statuses = [status_of(call.sent.get_nowait()) for _ in range(3)]
    assert statuses == [STATUS.SERVING, STATUS.NOT_SERVING, STATUS.SERVING]
    assert call.sent.empty()


@in_loop
async def test_watch_of_unknown_service_sends_unknown() -> None:
    call = FakeCall()
    watching = task(HealthCalls([], lambda: True).watch(requests(health_request("c")), call))
    assert status_of(await call.sent.get()) == STATUS.SERVICE_UNKNOWN
    watching.cancel()


@in_loop
async def test_watch_without_request_is_invalid_argument() -> None:
    with pytest.raises(GrpcError) as raised:
        await HealthCalls([], lambda: True).watch(requests(), CALL)
    assert raised.value.code == "INVALID_ARGUMENT"


@in_loop
async def test_watch_ends_after_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.grpc.services._WATCH_INTERVAL_S", 0.0)
    monkeypatch.setattr("app.grpc.services._MAX_CHECKS", 3)
    readiness = iter([True, False, True])
    call = FakeCall()
    with pytest.raises(GrpcError, match="a watch ends after an hour") as raised:
        await HealthCalls([], lambda: next(readiness)).watch(requests(health_request("")), call)
    assert raised.value.code == "UNAVAILABLE"
    statuses = [status_of(call.sent.get_nowait()) for _ in range(3)]
    assert statuses == [STATUS.SERVING, STATUS.NOT_SERVING, STATUS.SERVING]


async def silent() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


@pytest.mark.parametrize(
    "open_stream", [lambda: HealthCalls([], lambda: True).watch, lambda: ReflectionCalls([]).server_reflection_info]
)
@in_loop
async def test_silent_stream_ends(open_stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.grpc.services._IDLE_S", 0.0)
    with pytest.raises(GrpcError, match="had no request for 0 s") as raised:
        await open_stream()(silent(), CALL)
    assert raised.value.code == "DEADLINE_EXCEEDED"


@in_loop
async def test_watches_bounded_on_connection_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.grpc.services._MAX_STREAMS", 3)
    monkeypatch.setattr("app.grpc.services._MAX_STREAMS_ON_ONE_CONNECTION", 2)
    health = HealthCalls([], lambda: True)

    async def watch(peer: str) -> Any:
        call = FakeCall(peer)
        watching = task(health.watch(requests(health_request("")), call))
        answered = task(call.sent.get())
        await asyncio.wait([watching, answered], return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
        if watching.done():
            await watching
        return watching

    first, _ = [await watch("a") for _ in range(2)]
    with pytest.raises(GrpcError, match="Watch: expected at most 2 open streams on one connection") as raised:
        await watch("a")
    assert raised.value.code == "RESOURCE_EXHAUSTED"
    await watch("b")
    with pytest.raises(GrpcError, match="expected at most 3 open streams in all"):
        await watch("c")
    first.cancel()
    await asyncio.wait([first])
    await watch("c")


@in_loop
async def test_large_health_request_refused() -> None:
    with pytest.raises(GrpcError, match="65536") as raised:
        await HealthCalls([], lambda: True).check(health_request("x" * 70_000), CALL)
    assert raised.value.code == "RESOURCE_EXHAUSTED"
