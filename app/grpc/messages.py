"""The messages of inference.proto, as classes.

They live in a pool of their own: a process may hold a client's classes of the same names too. inference.binpb is made
by

    python -m grpc_tools.protoc --proto_path=app/grpc --descriptor_set_out=app/grpc/inference.binpb inference.proto

a test holds the two files against each other.
"""

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from app.grpc.call import GrpcError

PACKAGE = "inference"
INFERENCE_SERVICE = f"{PACKAGE}.GRPCInferenceService"
PREDICT_SERVICE = f"{PACKAGE}.InferenceService"

Message = Any
"""An instance of one of these classes, which are made at run time and so known to no type checker."""


def _load() -> descriptor_pool.DescriptorPool:
    files = descriptor_pb2.FileDescriptorSet.FromString(
        resources.files(__package__).joinpath("inference.binpb").read_bytes()
    )
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _load()
"""The descriptors, for those who ask the server what it speaks."""


def _message(name: str) -> Message:
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


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


def parse(kind: Message, serialized: bytes) -> Message:
    """A message of this class. Raises GrpcError where the bytes are none."""
    try:
        return kind.FromString(serialized)
    except DecodeError as error:
        raise GrpcError("INVALID_ARGUMENT", f"the message is no {kind.DESCRIPTOR.full_name}: {error}") from None
