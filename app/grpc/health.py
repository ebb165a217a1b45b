"""grpc.health.v1: what load balancers and container platforms ask a gRPC server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from grpc_health.v1 import health_pb2

from app.grpc.call import Call, GrpcError
from app.grpc.messages import parse

HEALTH_SERVICE = "grpc.health.v1.Health"
# How often a watched service is looked at.
_LOOK_S = 0.5

_STATUSES = health_pb2.HealthCheckResponse


class HealthCalls:
    """`Check` and `Watch`, of the server as a whole (no service named) and of each of its services."""

    def __init__(self, services: Iterable[str], is_ready: Callable[[], bool]) -> None:
        self._services = frozenset({"", *services})
        self._is_ready = is_ready

    async def check(self, request: bytes, call: Call) -> bytes:
        """Raises GrpcError for a service that is not here."""
        service = parse(health_pb2.HealthCheckRequest, request).service
        if service not in self._services:
            known = ", ".join(sorted(self._services - {""}))
            raise GrpcError("NOT_FOUND", f'there is no service "{service[:200]}"; there are {known}')
        return self._written(service)

    async def watch(self, requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        """The status now, and again whenever it is another one."""
        request = await anext(requests, None)
        if request is None:
            raise GrpcError("INVALID_ARGUMENT", "the request is missing")
        service = parse(health_pb2.HealthCheckRequest, request).service
        told = None
        while True:
            status = self._written(service)
            if status != told:
                told = status
                yield status
            await asyncio.sleep(_LOOK_S)

    def _written(self, service: str) -> bytes:
        if service not in self._services:
            status = _STATUSES.SERVICE_UNKNOWN
        else:
            status = _STATUSES.SERVING if self._is_ready() else _STATUSES.NOT_SERVING
        written: bytes = health_pb2.HealthCheckResponse(status=status).SerializeToString()
        return written
