"""Compare the files of messages with services.binpb and with the messages of Triton's client."""

import importlib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from app.grpc import messages
from app.grpc.call import GrpcError

FILES = ("inference.proto", "health.proto", "reflection.proto")
FOLDER = Path(str(resources.files("app.grpc")))


def test_descriptors_equal_compiled_proto_file(tmp_path: Path) -> None:
    compiled = tmp_path / "compiled.binpb"
    arguments = ["protoc", f"--proto_path={FOLDER}", f"--descriptor_set_out={compiled}", *FILES]
    assert protoc.main(arguments) == 0
    of_proto = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())
    of_binpb = descriptor_pb2.FileDescriptorSet.FromString((FOLDER / "services.binpb").read_bytes())
    assert of_binpb == of_proto, "write services.binpb again with the command in app/grpc/messages.py"


def test_every_field_equals_field_of_triton_client() -> None:
    """Compare name, number, type and label, so that each side can read what the other writes."""
    theirs = importlib.import_module("tritonclient.grpc.service_pb2").DESCRIPTOR.pool
    ours = messages.POOL.FindFileByName("inference.proto")
    checked = 0
    for name, message in ours.message_types_by_name.items():
        if name in ("PredictRequest", "PredictResponse"):
            continue
        checked += _check(message, theirs.FindMessageTypeByName(f"inference.{name}"))
    assert checked > 100
    for name, enum in ours.enum_types_by_name.items():
        other = theirs.FindEnumTypeByName(f"inference.{name}")
        assert enum.values_by_name.keys() == other.values_by_name.keys()
        assert all(value.number == other.values_by_name[name].number for name, value in enum.values_by_name.items())


def test_every_method_equals_method_of_triton_client() -> None:
    theirs = importlib.import_module("tritonclient.grpc.service_pb2").DESCRIPTOR
    service = theirs.services_by_name["GRPCInferenceService"]
    for method in messages.POOL.FindServiceByName(messages.INFERENCE_SERVICE).methods:
        other = service.methods_by_name[method.name]
        assert method.input_type.full_name == other.input_type.full_name
        assert method.output_type.full_name == other.output_type.full_name
        assert (method.client_streaming, method.server_streaming) == (other.client_streaming, other.server_streaming)


def test_parse_of_invalid_bytes_raises_invalid_argument() -> None:
    with pytest.raises(GrpcError, match=r"expected a inference\.ModelInferRequest") as raised:
        messages.parse(messages.ModelInferRequest, b"\xff\xff\xff")
    assert raised.value.code == "INVALID_ARGUMENT"


def _check(ours: Any, theirs: Any) -> int:
    """Return how many fields are equal; `theirs` may have more."""
    for name, field in ours.fields_by_name.items():
        other = theirs.fields_by_name[name]
        assert (field.number, field.type) == (other.number, other.type), f"{ours.full_name}.{name}"
        assert field.is_repeated == other.is_repeated
        if field.message_type is not None:
            assert field.message_type.full_name == other.message_type.full_name
        assert (field.containing_oneof is None) == (other.containing_oneof is None)
    nested = sum(_check(each, theirs.nested_types_by_name[each.name]) for each in ours.nested_types)
    return len(ours.fields_by_name) + nested
