"""Read ModelInferRequest, and write ModelInferResponse and ModelStreamInferResponse."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod

from app.grpc.contents import CONTENTS, contents_parts, read_contents, read_large_contents, write_contents
from app.grpc.messages import Message, ModelInferResponse, ModelStreamInferResponse
from app.grpc.received import ReceivedInfer, Span
from app.protocols.open_inference.content_tensors import decode_files, holds_files
from app.protocols.open_inference.datatypes import Raw, check_num_strings, decode_tensor, encode_tensor
from app.protocols.open_inference.infer_request import read_requested_output, refuse_shared_memory
from app.protocols.open_inference.infer_types import InputTensor, OutputTensor, Parameter, ParsedRequest
from app.protocols.shared.codec import LONG_ELEMENTS
from app.protocols.shared.json.shapes import MAX_RANK, read_sizes
from frameworks.core.errors import InvalidInput
from frameworks.core.protobuf_wire import write_field, write_head
from frameworks.types import ModelSpec

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
_MOST_KEPT_ID = 128
"""Characters of a request's id, up to which the head of its responses is kept. Clients choose the id."""


def parse_request(received: ReceivedInfer, spec: ModelSpec) -> ParsedRequest:
    """Read a ModelInferRequest for a model. Raises InvalidInput, which names the field of the message."""
    message, raw, contents, serialized, _ = received
    inputs = message.inputs
    if raw and len(raw) != len(inputs):
        raise InvalidInput(
            "raw_input_contents", f"expected one entry per input in their order, {len(inputs)} in all, got {len(raw)}"
        )
    if contents is not None:
        _check_strings(inputs)
    given = [
        _read_input(
            tensor, f"inputs[{i}]", raw[i] if raw else None, None if contents is None else contents[i], serialized, spec
        )
        for i, tensor in enumerate(inputs)
    ]
    outputs = [
        read_requested_output(output.name, read_parameters(output.parameters)) for output in message.outputs
    ] or None
    return ParsedRequest(given, outputs, message.id, read_parameters(message.parameters))


def read_parameters(parameters: Mapping[str, Message]) -> dict[str, Parameter]:
    """Return the parameters as Python values. An InferParameter without a value is dropped."""
    if not parameters:
        return {}
    chosen = {name: (parameter, parameter.WhichOneof("parameter_choice")) for name, parameter in parameters.items()}
    return {name: getattr(parameter, choice) for name, (parameter, choice) in chosen.items() if choice}


def is_typed(received: ReceivedInfer) -> bool:
    """Return whether the tensors of a request are in typed contents."""
    return not received.raw and bool(received.message.inputs)


def _read_input(
    tensor: Message, field: str, raw: Raw | None, spans: list[Span] | None, serialized: bytes, spec: ModelSpec
) -> InputTensor:
    """`spans`: of the contents in a large message; None: `tensor` holds them."""
    if tensor.parameters:
        refuse_shared_memory(tensor.parameters, f"{field}.parameters.")
    shape = read_sizes(tensor.shape[: MAX_RANK + 1], f"{field}.shape")
    has_files = holds_files(tensor.name, tensor.datatype, spec)
    if raw is not None:
        # MLServer's converter sends empty contents beside raw ones.
        is_filled = tensor.HasField("contents") and tensor.contents.ByteSize() > 0
        if is_filled if spans is None else any(start < end for start, end in spans):
            reason = "expected none beside raw_input_contents; send one of the two for all inputs"
            raise InvalidInput(f"{field}.contents", reason)
        view = memoryview(raw)
        value = decode_files(view, shape, field) if has_files else decode_tensor(view, tensor.datatype, shape, field)
    elif spans is None:
        value = read_contents(tensor.contents, tensor.datatype, shape, field, has_files)
    else:
        value = read_large_contents(serialized, spans, tensor.datatype, shape, field, has_files)
    if not tensor.parameters:
        return InputTensor(tensor.name, tensor.datatype, value)
    return InputTensor(tensor.name, tensor.datatype, value, read_parameters(tensor.parameters))


def _check_strings(inputs: Iterable[Message]) -> None:
    """Raise InvalidInput if the request has too many strings: they are read one by one."""
    shapes = [read_sizes(each.shape[: MAX_RANK + 1], "inputs.shape") for each in inputs if each.datatype == "BYTES"]
    check_num_strings(sum(map(prod, shapes)), "inputs")


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
    # All but the contents is the same in most responses without an id, and in those of one stream.
    longest_id = _MOST_KEPT_ID if parameters else 0
    if not is_typed and len(request_id) <= longest_id and sum([each.value.size for each in tensors]) < large_elements:
        outputs = tuple([(each.name, each.datatype, each.value.shape) for each in tensors])
        options = tuple([(name, type(value), value) for name, value in parameters.items()])
        parts: list[Part] = [_described(request_id, model, version, options, outputs)]
        for tensor in tensors:
            raw = encode_tensor(tensor.value, tensor.datatype)
            parts += (_raw_head(len(raw)), raw)
        return b"".join(parts)
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


@lru_cache(maxsize=256)
def _raw_head(size: int) -> bytes:
    return write_head(_RAW, size)


@lru_cache(maxsize=256)
def _described(
    request_id: str,
    model: str,
    version: str,
    options: tuple[tuple[str, type, Parameter], ...],
    outputs: tuple[tuple[str, str, tuple[int, ...]], ...],
) -> bytes:
    """Return a ModelInferResponse without the contents of its outputs. The types tell 1 from True."""
    response = ModelInferResponse(model_name=model, model_version=version, id=request_id)
    for option, _, value in options:
        _write_parameter(response.parameters[option], value)
    for name, datatype, shape in outputs:
        response.outputs.add(name=name, datatype=datatype, shape=shape)
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
