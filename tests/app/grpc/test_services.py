"""Test the health service without a server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from app.grpc.call import GrpcError
from app.grpc.services import HealthCalls
from tests.support.loops import in_loop

STATUS = health_pb2.HealthCheckResponse
CALL: Any = None


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
async def test_watch_yields_status_after_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.grpc.services._WATCH_INTERVAL_S", 0.0)
    readiness = iter([True, True, False, False, True])
    watching = HealthCalls([], lambda: next(readiness)).watch(requests(health_request("")), CALL)
    statuses = [status_of(await anext(watching)) for _ in range(3)]
    assert statuses == [STATUS.SERVING, STATUS.NOT_SERVING, STATUS.SERVING]


@in_loop
async def test_watch_of_unknown_service_yields_unknown() -> None:
    watching = HealthCalls([], lambda: True).watch(requests(health_request("c")), CALL)
    assert status_of(await anext(watching)) == STATUS.SERVICE_UNKNOWN


@in_loop
async def test_watch_without_request_is_invalid_argument() -> None:
    with pytest.raises(GrpcError) as raised:
        await anext(HealthCalls([], lambda: True).watch(requests(), CALL))
    assert raised.value.code == "INVALID_ARGUMENT"
