"""Write ModelInferResponse and ModelStreamInferResponse."""

from collections.abc import Iterable, Mapping, Sequence

from app.grpc.contents import CONTENTS, contents_parts, write_contents
from app.grpc.messages import Message, ModelInferResponse, ModelStreamInferResponse
from app.grpc.wire import write_field, write_head
from app.protocols.open_inference.datatypes import encode_tensor
from app.protocols.open_inference.infer_types import OutputTensor, Parameter
from app.protocols.shared.codec import LONG_ELEMENTS

_FIELDS = ModelInferResponse.DESCRIPTOR.fields_by_name
_OUTPUTS = _FIELDS["outputs"].number
_RAW = _FIELDS["raw_output_contents"].number
_CONTENTS = _FIELDS["outputs"].message_type.fields_by_name["contents"].number
_INFER_RESPONSE = ModelStreamInferResponse.DESCRIPTOR.fields_by_name["infer_response"].number
_SETTERS: tuple[tuple[type, str], ...] = (
    (bool, "bool_param"),
    (int, "int64_param"),
    (float, "double_param"),
    (str, "string_param"),
)

Part = bytes | memoryview


def serialize_response(
    request_id: str,
    is_typed: bool,
    tensors: Sequence[OutputTensor],
    model: str,
    version: str,
    parameters: Mapping[str, Parameter],
    large_elements: int = LONG_ELEMENTS,
) -> bytes:
    """Return a serialized ModelInferResponse.

    Its contents are typed if those of the request are (`is_typed`) and if all datatypes have typed contents; otherwise
    all are raw. `large_elements`: from so many on, the tensors do not pass through protobuf. Call it in a thread then.
    """
    response = ModelInferResponse(model_name=model, model_version=version, id=request_id)
    for name, value in parameters.items():
        _write_parameter(response.parameters[name], value)
    is_raw, elements = not is_typed, 0
    for tensor in tensors:
        elements += tensor.value.size
        if tensor.datatype not in CONTENTS:
            is_raw = True
    if elements >= large_elements:
        # Joining long parts releases the interpreter's lock, which protobuf holds while it copies.
        return b"".join((response.SerializeToString(), *_parts(tensors, is_raw)))
    for tensor in tensors:
        output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.value.shape)
        if is_raw:
            response.raw_output_contents.append(bytes(encode_tensor(tensor.value, tensor.datatype)))
        else:
            write_contents(output.contents, tensor)
    serialized: bytes = response.SerializeToString()
    return serialized


def serialize_stream_response(serialized: bytes) -> bytes:
    """Return a ModelStreamInferResponse with a serialized ModelInferResponse."""
    return write_field(_INFER_RESPONSE, serialized)


def _parts(tensors: Sequence[OutputTensor], is_raw: bool) -> Iterable[Part]:
    """Yield the fields of the tensors in the wire format."""
    for tensor in tensors:
        described = ModelInferResponse.InferOutputTensor(
            name=tensor.name, datatype=tensor.datatype, shape=tensor.value.shape
        ).SerializeToString()
        contents = [] if is_raw else _with_head(_CONTENTS, contents_parts(tensor))
        yield from _with_head(_OUTPUTS, [described, *contents])
    if is_raw:
        for tensor in tensors:
            yield from _with_head(_RAW, [encode_tensor(tensor.value, tensor.datatype)])


def _with_head(number: int, parts: list[Part]) -> list[Part]:
    """Return the parts of one field of wire type BYTES."""
    return [write_head(number, sum(map(len, parts))), *parts]


def _write_parameter(parameter: Message, value: Parameter) -> None:
    setattr(parameter, next(name for kind, name in _SETTERS if isinstance(value, kind)), value)
