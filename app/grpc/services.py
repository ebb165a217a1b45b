"""Map full method names to handlers, and serve the two standard services: health and reflection."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from app.grpc.call import Call, GrpcError, Stream, Unary
from app.grpc.handler import GrpcHandler
from app.grpc.infer import InferCalls
from app.grpc.messages import INFERENCE_SERVICE, POOL, PREDICT_SERVICE, parse_small
from app.grpc.predict import PredictCalls
from app.grpc.streams import OpenStreams, next_request
from app.inference.pipeline import Pipeline

_HEALTH_SERVICE = "grpc.health.v1.Health"
# Both have the same messages. Clients try the first and fall back to the second.
_REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
_SERVICES = (INFERENCE_SERVICE, PREDICT_SERVICE, _HEALTH_SERVICE)
# Interval between two checks of a watched service.
_WATCH_INTERVAL_S = 0.5
# Checks until a watch ends, which takes an hour. The client watches again; grpcio's own clients do so by themselves.
_MAX_CHECKS = 7200
# Time that a watch or reflection waits for the client's next request.
_IDLE_S = 30.0
# Open watches and reflections, each. A client needs one.
_MAX_STREAMS = 256
_MAX_STREAMS_ON_ONE_CONNECTION = 8
_STATUSES = health_pb2.HealthCheckResponse


def build_methods(
    pipeline: Pipeline, management: Mapping[str, Unary], default_model: str | None
) -> tuple[dict[str, Unary], dict[str, Stream]]:
    """Return the methods with one request and one response, and those in which either side may send more.

    `management`: of `management_methods`. `default_model`: for a Predict that names no model.
    """
    handler = GrpcHandler(pipeline)
    infer = InferCalls(handler)
    health = HealthCalls(_SERVICES, lambda: pipeline.lifecycle.is_ready)
    reflection_calls = ReflectionCalls(_SERVICES)
    unary: dict[str, Unary] = {
        f"/{INFERENCE_SERVICE}/ModelInfer": infer.model_infer,
        f"/{PREDICT_SERVICE}/Predict": PredictCalls(handler, default_model).predict,
        f"/{_HEALTH_SERVICE}/Check": health.check,
        **management,
    }
    streams: dict[str, Stream] = {
        f"/{INFERENCE_SERVICE}/ModelStreamInfer": infer.model_stream_infer,
        f"/{_HEALTH_SERVICE}/Watch": health.watch,
    }
    for service in _REFLECTION_SERVICES:
        streams[f"/{service}/ServerReflectionInfo"] = reflection_calls.server_reflection_info
    return unary, streams


class HealthCalls:
    """Serve `Check` and `Watch` of grpc.health.v1, for the whole server (no service named) and for each service."""

    def __init__(self, services: Iterable[str], is_ready: Callable[[], bool]) -> None:
        self._services = frozenset({"", *services})
        self._is_ready = is_ready
        self._streams = OpenStreams("Watch", _MAX_STREAMS, _MAX_STREAMS_ON_ONE_CONNECTION)

    async def check(self, request: bytes, call: Call) -> bytes:
        """Return the status now. Raises GrpcError for an unknown service."""
        service = parse_small(health_pb2.HealthCheckRequest, request).service
        if service not in self._services:
            known = ", ".join(sorted(self._services - {""}))
            raise GrpcError("NOT_FOUND", f'service: expected one of {known}, got "{service[:200]}"')
        return self._status(service)

    async def watch(self, requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        """Yield the status now and after every change. Raises GrpcError after an hour."""
        with self._streams.count(call):
            request = await next_request(requests, _IDLE_S)
            if request is None:
                raise GrpcError("INVALID_ARGUMENT", "expected a HealthCheckRequest, got the end of the stream")
            service = parse_small(health_pb2.HealthCheckRequest, request).service
            last_status = None
            for _ in range(_MAX_CHECKS):
                status = self._status(service)
                if status != last_status:
                    last_status = status
                    yield status
                await asyncio.sleep(_WATCH_INTERVAL_S)
            raise GrpcError("UNAVAILABLE", "a watch ends after an hour; watch again")

    def _status(self, service: str) -> bytes:
        if service not in self._services:
            status = _STATUSES.SERVICE_UNKNOWN
        else:
            status = _STATUSES.SERVING if self._is_ready() else _STATUSES.NOT_SERVING
        serialized: bytes = health_pb2.HealthCheckResponse(status=status).SerializeToString()
        return serialized


class ReflectionCalls:
    """Serve `ServerReflectionInfo` with grpcio's servicer, for tools such as grpcurl."""

    def __init__(self, services: Iterable[str]) -> None:
        """`services`: of inference.proto and grpc.health.v1."""
        pool = descriptor_pool.DescriptorPool()
        for descriptor in (POOL.FindFileByName("inference.proto"), health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            file = descriptor_pb2.FileDescriptorProto()
            descriptor.CopyToProto(file)
            pool.AddSerializedFile(file.SerializeToString())
        self._streams = OpenStreams("ServerReflectionInfo", _MAX_STREAMS, _MAX_STREAMS_ON_ONE_CONNECTION)
        self._servicer = reflection.aio.ReflectionServicer([*services, _REFLECTION_SERVICES[1]], pool)

    async def server_reflection_info(self, requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        with self._streams.count(call):
            async for response in self._servicer.ServerReflectionInfo(_parse_all(requests), None):
                yield response.SerializeToString()


async def _parse_all(requests: AsyncIterator[bytes]) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
    while (request := await next_request(requests, _IDLE_S)) is not None:
        yield parse_small(reflection_pb2.ServerReflectionRequest, request)
