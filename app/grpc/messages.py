"""Load the messages of inference.proto, health.proto and reflection.proto as classes.

They have a descriptor pool of their own, because a process may also hold a client's classes of the same names. This
command writes services.binpb:

    python -m grpc_tools.protoc --proto_path=app/grpc --descriptor_set_out=app/grpc/services.binpb \\
        inference.proto health.proto reflection.proto

A test compares it with the three files.
"""

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from app.grpc.call import GrpcError
from app.protocols.shared.errors import MAX_MANAGEMENT_BYTES, TooLarge

PACKAGE = "inference"
INFERENCE_SERVICE = f"{PACKAGE}.GRPCInferenceService"
PREDICT_SERVICE = f"{PACKAGE}.InferenceService"
HEALTH_SERVICE = "grpc.health.v1.Health"
REFLECTION_SERVICE = "grpc.reflection.v1.ServerReflection"

Message = Any
"""An instance of one of these classes; a type checker does not know them, because they are made at run time."""


def _load() -> descriptor_pool.DescriptorPool:
    files = descriptor_pb2.FileDescriptorSet.FromString(
        resources.files(__package__).joinpath("services.binpb").read_bytes()
    )
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _load()
"""The descriptors, for server reflection."""


def _message(name: str, package: str = PACKAGE) -> Message:
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{package}.{name}"))


ModelConfigRequest = _message("ModelConfigRequest")
ModelConfigResponse = _message("ModelConfigResponse")
ModelInferRequest = _message("ModelInferRequest")
ModelInferResponse = _message("ModelInferResponse")
ModelMetadataRequest = _message("ModelMetadataRequest")
ModelMetadataResponse = _message("ModelMetadataResponse")
ModelReadyRequest = _message("ModelReadyRequest")
ModelReadyResponse = _message("ModelReadyResponse")
ModelStatisticsRequest = _message("ModelStatisticsRequest")
ModelStatisticsResponse = _message("ModelStatisticsResponse")
ModelStreamInferResponse = _message("ModelStreamInferResponse")
PredictRequest = _message("PredictRequest")
PredictResponse = _message("PredictResponse")
RepositoryIndexRequest = _message("RepositoryIndexRequest")
RepositoryIndexResponse = _message("RepositoryIndexResponse")
RepositoryModelLoadRequest = _message("RepositoryModelLoadRequest")
RepositoryModelLoadResponse = _message("RepositoryModelLoadResponse")
RepositoryModelUnloadRequest = _message("RepositoryModelUnloadRequest")
RepositoryModelUnloadResponse = _message("RepositoryModelUnloadResponse")
ServerLiveRequest = _message("ServerLiveRequest")
ServerLiveResponse = _message("ServerLiveResponse")
ServerMetadataRequest = _message("ServerMetadataRequest")
ServerMetadataResponse = _message("ServerMetadataResponse")
ServerReadyRequest = _message("ServerReadyRequest")
ServerReadyResponse = _message("ServerReadyResponse")
HealthCheckRequest = _message("HealthCheckRequest", "grpc.health.v1")
HealthCheckResponse = _message("HealthCheckResponse", "grpc.health.v1")
ServerReflectionRequest = _message("ServerReflectionRequest", "grpc.reflection.v1")
ServerReflectionResponse = _message("ServerReflectionResponse", "grpc.reflection.v1")


def parse_small(kind: Message, serialized: bytes) -> Message:
    """Parse a message of class `kind` that is no inference. Raises GrpcError, also for one of too many bytes."""
    if len(serialized) > MAX_MANAGEMENT_BYTES:
        raise GrpcError("RESOURCE_EXHAUSTED", TooLarge.for_management().message)
    return parse(kind, serialized)


def parse(kind: Message, serialized: bytes) -> Message:
    """Parse a message of class `kind`. Raises GrpcError if the bytes are not one."""
    try:
        return kind.FromString(serialized)
    except DecodeError as error:
        raise GrpcError("INVALID_ARGUMENT", f"expected a {kind.DESCRIPTOR.full_name}, got {error}") from None
