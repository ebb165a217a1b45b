"""Build gRPC messages that cost a server the most for their size, for tests and for `make bench PARTS=hostile`.

Each function returns the serialized message of one call. `size`: the bytes of the message, about. None of them needs
more than a few milliseconds for a megabyte, so that the sender is not the slow side.
"""

import struct

from app.grpc.messages import (
    ModelInferRequest,
    ModelMetadataRequest,
    PredictRequest,
    RepositoryModelLoadRequest,
)
from frameworks.core.protobuf_wire import VARINT, write_field, write_varint

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
METADATA = "/inference.GRPCInferenceService/ModelMetadata"
LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
PREDICT = "/inference.InferenceService/Predict"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
WATCH = "/grpc.health.v1.Health/Watch"

# Numbers of fields in inference.proto.
_NAME, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = 1, 4, 5, 6, 7
_SHAPE, _CONTENTS = 3, 5
_FP32, _INT64, _STRINGS = 6, 3, 8


def empty_inputs(model: str, size: int) -> bytes:
    """Return a ModelInferRequest with an empty input for every two bytes."""
    return _named(model) + write_field(_INPUTS, b"") * (size // 2)


def empty_outputs(model: str, size: int) -> bytes:
    """Return a ModelInferRequest with an empty requested output for every two bytes."""
    return _named(model) + write_field(_OUTPUTS, b"") * (size // 2)


def empty_raw_contents(model: str, size: int) -> bytes:
    """Return a ModelInferRequest with an empty entry of raw_input_contents for every two bytes."""
    return _named(model) + write_field(_RAW, b"") * (size // 2)


def many_parameters(model: str, size: int) -> bytes:
    """Return a ModelInferRequest whose parameters all have different names of eight characters."""
    count = size // 16
    entries = (write_field(_PARAMETERS, write_field(1, b"%08x" % i) + b"\x12\x02\x08\x01") for i in range(count))
    return _named(model) + b"".join(entries)


def long_model_name(size: int) -> bytes:
    """Return a ModelInferRequest for a model with a name of `size` characters."""
    return _named("x" * size)


def long_input_name(model: str, size: int) -> bytes:
    """Return a ModelInferRequest whose only input has a name of `size` characters."""
    message = ModelInferRequest(model_name=model)
    message.inputs.add(name="x" * size, datatype="FP32", shape=[1])
    message.raw_input_contents.append(bytes(4))
    return _serialized(message)


def long_output_name(model: str, size: int, with_parameter: bool = False) -> bytes:
    """Return a ModelInferRequest that requests an output with a name of `size` characters.

    `with_parameter`: the output has a parameter that is refused by its name.
    """
    message = ModelInferRequest(model_name=model)
    output = message.outputs.add(name="x" * size)
    if with_parameter:
        output.parameters["shared_memory_region"].string_param = "a"
    message.inputs.add(name="x", datatype="FP32", shape=[1])
    message.raw_input_contents.append(bytes(4))
    return _serialized(message)


def long_parameter_name(model: str, size: int) -> bytes:
    """Return a ModelInferRequest with a parameter whose name has `size` characters."""
    message = ModelInferRequest(model_name=model)
    message.parameters["x" * size].bool_param = True
    message.inputs.add(name="x", datatype="FP32", shape=[1])
    message.raw_input_contents.append(bytes(4))
    return _serialized(message)


def long_shape(model: str, size: int) -> bytes:
    """Return a ModelInferRequest whose input has a dimension for every byte."""
    shape = write_field(_SHAPE, b"\x01" * size)
    return _named(model) + write_field(_INPUTS, _input("x", "FP32", shape))


def raw_strings(model: str, size: int, text: bytes = b"", tensor: str = "x") -> bytes:
    """Return a ModelInferRequest with a raw BYTES tensor of as many strings as fit."""
    entry = struct.pack("<I", len(text)) + text
    count = size // len(entry)
    shape = write_field(_SHAPE, write_varint(count))
    return _named(model) + write_field(_INPUTS, _input(tensor, "BYTES", shape)) + write_field(_RAW, entry * count)


def typed_strings(model: str, size: int, tensor: str = "x") -> bytes:
    """Return a ModelInferRequest with a BYTES tensor of empty strings in bytes_contents."""
    count = size // 2
    return _typed(model, tensor, "BYTES", count, write_field(_STRINGS, b"") * count)


def typed_floats(model: str, size: int, packed: bool = True, tensor: str = "x") -> bytes:
    """Return a ModelInferRequest with an FP32 tensor in fp32_contents. `packed`: as protobuf writes them."""
    count = size // (4 if packed else 5)
    contents = write_field(_FP32, bytes(4 * count)) if packed else (write_varint(_FP32 << 3 | 5) + bytes(4)) * count
    return _typed(model, tensor, "FP32", count, contents)


def typed_integers(model: str, size: int, tensor: str = "x") -> bytes:
    """Return a ModelInferRequest with an INT64 tensor in int64_contents, one byte for each of its numbers."""
    return _typed(model, tensor, "INT64", size, write_field(_INT64, b"\x01" * size))


def empty_contents(model: str, size: int) -> bytes:
    """Return a ModelInferRequest with an input whose contents are repeated, each time empty."""
    contents = write_field(_CONTENTS, b"") * (size // 2)
    return _named(model) + write_field(_INPUTS, _input("x", "FP32", write_field(_SHAPE, b"\x00")) + contents)


def unknown_fields(model: str, size: int) -> bytes:
    """Return a ModelInferRequest with a field that it does not know for every two bytes."""
    return _named(model) + (write_varint(15 << 3 | VARINT) + b"\x01") * (size // 2)


def long_varints(model: str, size: int) -> bytes:
    """Return a ModelInferRequest of bytes that never end a number."""
    return _named(model) + b"\xff" * size


def predict_floats(model: str, size: int, packed: bool = True) -> bytes:
    """Return a PredictRequest with `size` bytes of numbers. `packed`: as protobuf writes them."""
    name: bytes = PredictRequest(model_name=model).SerializeToString()
    count = size // (4 if packed else 5)
    data = write_field(1, bytes(4 * count)) if packed else (write_varint(1 << 3 | 5) + bytes(4)) * count
    return data + name


def predict_shape(model: str, size: int) -> bytes:
    """Return a PredictRequest with a dimension for every byte."""
    name: bytes = PredictRequest(model_name=model).SerializeToString()
    return name + write_field(2, b"\x01" * size)


def long_name_metadata(size: int) -> bytes:
    """Return a ModelMetadataRequest for a model with a name of `size` characters."""
    return _serialized(ModelMetadataRequest(name="x" * size))


def load_parameters(model: str, size: int) -> bytes:
    """Return a RepositoryModelLoadRequest with an empty parameter for every two bytes."""
    return _serialized(RepositoryModelLoadRequest(model_name=model)) + write_field(3, b"") * (size // 2)


HOSTILE_TO_FLOAT_MODEL = {
    "empty inputs": empty_inputs,
    "empty outputs": empty_outputs,
    "empty raw contents": empty_raw_contents,
    "empty contents": empty_contents,
    "many parameters": many_parameters,
    "long input name": long_input_name,
    "long output name": long_output_name,
    "long parameter name": long_parameter_name,
    "long shape": long_shape,
    "raw strings": raw_strings,
    "typed strings": typed_strings,
    "unknown fields": unknown_fields,
    "numbers without an end": long_varints,
}
"""Name → builder(model, size) of messages for ModelInfer that a model with one FP32 input `x` must refuse."""


def _named(model: str) -> bytes:
    return write_field(_NAME, model.encode())


def _input(name: str, datatype: str, rest: bytes) -> bytes:
    return write_field(1, name.encode()) + write_field(2, datatype.encode()) + rest


def _typed(model: str, tensor: str, datatype: str, count: int, contents: bytes) -> bytes:
    rest = write_field(_SHAPE, write_varint(count)) + write_field(_CONTENTS, contents)
    return _named(model) + write_field(_INPUTS, _input(tensor, datatype, rest))


def _serialized(message: object) -> bytes:
    serialized: bytes = message.SerializeToString()  # type: ignore[attr-defined]
    return serialized
