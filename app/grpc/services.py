"""Map full method names to handlers, and serve the two standard services: health and reflection."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from app.grpc.call import Call, GrpcError, Stream, StreamingCall, Unary
from app.grpc.handler import GrpcHandler
from app.grpc.infer import InferCalls
from app.grpc.messages import (
    HEALTH_SERVICE,
    INFERENCE_SERVICE,
    POOL,
    PREDICT_SERVICE,
    REFLECTION_SERVICE,
    HealthCheckRequest,
    HealthCheckResponse,
    Message,
    ServerReflectionRequest,
    ServerReflectionResponse,
    parse_small,
)
from app.grpc.predict import PredictCalls
from app.grpc.streams import OpenStreams, next_request
from app.inference.pipeline import Pipeline

# Both have the same messages. Clients try the first and fall back to the second, which is not listed.
_REFLECTION_SERVICES = (REFLECTION_SERVICE, "grpc.reflection.v1alpha.ServerReflection")
_SERVICES = (INFERENCE_SERVICE, PREDICT_SERVICE, HEALTH_SERVICE)
# Interval between two checks of a watched service.
_WATCH_INTERVAL_S = 0.5
# Checks until a watch ends, which takes an hour. The client watches again; grpcio's own clients do so by themselves.
_MAX_CHECKS = 7200
# Time that a watch or reflection waits for the client's next request.
_IDLE_S = 30.0
# Open watches and reflections, each. A client needs one.
_MAX_STREAMS = 256
_MAX_STREAMS_ON_ONE_CONNECTION = 8
_NOT_FOUND = 5


def build_methods(
    pipeline: Pipeline, management: Mapping[str, Unary], default_model: str | None
) -> tuple[dict[str, Unary], dict[str, Stream]]:
    """Return the methods with one request and one response, and those in which either side may send more.

    `management`: of `management_methods`. `default_model`: for a Predict that names no model.
    """
    handler = GrpcHandler(pipeline)
    infer = InferCalls(handler)
    health = HealthCalls(_SERVICES, lambda: pipeline.lifecycle.is_ready)
    reflection_calls = ReflectionCalls((*_SERVICES, REFLECTION_SERVICE))
    unary: dict[str, Unary] = {
        f"/{INFERENCE_SERVICE}/ModelInfer": infer.model_infer,
        f"/{PREDICT_SERVICE}/Predict": PredictCalls(handler, default_model).predict,
        f"/{HEALTH_SERVICE}/Check": health.check,
        **management,
    }
    streams: dict[str, Stream] = {
        f"/{INFERENCE_SERVICE}/ModelStreamInfer": infer.model_stream_infer,
        f"/{HEALTH_SERVICE}/Watch": health.watch,
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
        service = parse_small(HealthCheckRequest, request).service
        if service not in self._services:
            known = ", ".join(sorted(self._services - {""}))
            raise GrpcError("NOT_FOUND", f'service: expected one of {known}, got "{service[:200]}"')
        return self._status(service)

    async def watch(self, requests: AsyncIterator[bytes], call: StreamingCall) -> None:
        """Send the status now and after every change. Raises GrpcError after an hour."""
        with self._streams.count(call):
            request = await next_request(requests, _IDLE_S)
            if request is None:
                raise GrpcError("INVALID_ARGUMENT", "expected a HealthCheckRequest, got the end of the stream")
            service = parse_small(HealthCheckRequest, request).service
            last_status = None
            for _ in range(_MAX_CHECKS):
                status = self._status(service)
                if status != last_status:
                    last_status = status
                    await call.send(status)
                await asyncio.sleep(_WATCH_INTERVAL_S)
            raise GrpcError("UNAVAILABLE", "a watch ends after an hour; watch again")

    def _status(self, service: str) -> bytes:
        if service not in self._services:
            status = HealthCheckResponse.SERVICE_UNKNOWN
        else:
            status = HealthCheckResponse.SERVING if self._is_ready() else HealthCheckResponse.NOT_SERVING
        serialized: bytes = HealthCheckResponse(status=status).SerializeToString()
        return serialized


class ReflectionCalls:
    """Serve `ServerReflectionInfo`, for tools such as grpcurl."""

    def __init__(self, services: Iterable[str]) -> None:
        """`services`: those that are listed."""
        self._services = sorted(services)
        self._streams = OpenStreams("ServerReflectionInfo", _MAX_STREAMS, _MAX_STREAMS_ON_ONE_CONNECTION)

    async def server_reflection_info(self, requests: AsyncIterator[bytes], call: StreamingCall) -> None:
        with self._streams.count(call):
            while (request := await next_request(requests, _IDLE_S)) is not None:
                asked = parse_small(ServerReflectionRequest, request)
                response = ServerReflectionResponse(valid_host=asked.host, original_request=asked)
                try:
                    self._answer(asked, response)
                except KeyError:
                    response.error_response.error_code = _NOT_FOUND
                    response.error_response.error_message = "expected a name of this server's descriptors; list them"
                await call.send(response.SerializeToString())

    def _answer(self, asked: Message, response: Message) -> None:
        """Fill the response. Raises KeyError if there is no such descriptor."""
        kind = asked.WhichOneof("message_request")
        if kind == "list_services":
            for name in self._services:
                response.list_services_response.service.add(name=name)
        elif kind == "all_extension_numbers_of_type":
            # No message of this server has extensions.
            found = POOL.FindMessageTypeByName(asked.all_extension_numbers_of_type)
            response.all_extension_numbers_response.base_type_name = found.full_name
        elif kind == "file_by_filename":
            _add_file(response, POOL.FindFileByName(asked.file_by_filename))
        elif kind == "file_containing_symbol":
            _add_file(response, POOL.FindFileContainingSymbol(asked.file_containing_symbol))
        else:
            raise KeyError(kind)


def _add_file(response: Message, descriptor: FileDescriptor) -> None:
    """Add a file to a response; it imports no others."""
    file = FileDescriptorProto()
    descriptor.CopyToProto(file)
    response.file_descriptor_response.file_descriptor_proto.append(file.SerializeToString())
