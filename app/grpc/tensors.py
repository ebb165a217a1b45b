"""Read the tensors and parameters of a ModelInferRequest."""

from collections.abc import Iterable, Mapping
from math import prod

from app.grpc.contents import read_contents, read_large_contents
from app.grpc.messages import Message
from app.grpc.received import ReceivedInfer, Span
from app.protocols.open_inference.datatypes import Raw, check_num_strings, decode_tensor
from app.protocols.open_inference.image_tensors import decode_files, holds_files
from app.protocols.open_inference.infer_request import read_requested_output, refuse_shared_memory
from app.protocols.open_inference.infer_types import InputTensor, Parameter, ParsedRequest
from app.protocols.shared.json.shapes import MAX_RANK, read_sizes
from frameworks.core.errors import InvalidInput
from frameworks.types import Array, ModelSpec


def parse_request(received: ReceivedInfer, spec: ModelSpec) -> ParsedRequest:
    """Read a ModelInferRequest for a model. Raises InvalidInput, which names the field of the message."""
    message, raw, contents, serialized, _ = received
    inputs = message.inputs
    if raw and len(raw) != len(inputs):
        raise InvalidInput(
            "raw_input_contents", f"expected one entry per input in their order, {len(inputs)} in all, got {len(raw)}"
        )
    if contents is None:
        given = [_read_input(tensor, f"inputs[{i}]", raw[i] if raw else None, spec) for i, tensor in enumerate(inputs)]
    else:
        _check_strings(inputs)
        given = [
            _read_large_input(tensor, f"inputs[{i}]", raw[i] if raw else None, contents[i], serialized, spec)
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


def _read_input(tensor: Message, field: str, raw: Raw | None, spec: ModelSpec) -> InputTensor:
    if tensor.parameters:
        refuse_shared_memory(tensor.parameters, f"{field}.parameters.")
    shape = read_sizes(tensor.shape[: MAX_RANK + 1], f"{field}.shape")
    has_files = holds_files(tensor.name, tensor.datatype, spec)
    if raw is None:
        value = read_contents(tensor.contents, tensor.datatype, shape, field, has_files)
    elif tensor.HasField("contents"):
        raise _both_contents(field)
    else:
        value = _decode_raw(raw, tensor.datatype, shape, field, has_files)
    if not tensor.parameters:
        return InputTensor(tensor.name, tensor.datatype, value)
    return InputTensor(tensor.name, tensor.datatype, value, read_parameters(tensor.parameters))


def _read_large_input(
    tensor: Message, field: str, raw: Raw | None, contents: list[Span], serialized: bytes, spec: ModelSpec
) -> InputTensor:
    refuse_shared_memory(tensor.parameters, f"{field}.parameters.")
    shape = read_sizes(tensor.shape[: MAX_RANK + 1], f"{field}.shape")
    has_files = holds_files(tensor.name, tensor.datatype, spec)
    if raw is None:
        value = read_large_contents(serialized, contents, tensor.datatype, shape, field, has_files)
    elif contents:
        raise _both_contents(field)
    else:
        value = _decode_raw(raw, tensor.datatype, shape, field, has_files)
    return InputTensor(tensor.name, tensor.datatype, value, read_parameters(tensor.parameters))


def _decode_raw(raw: Raw, datatype: str, shape: tuple[int, ...], field: str, has_files: bool) -> Array:
    view = memoryview(raw)
    return decode_files(view, shape, field) if has_files else decode_tensor(view, datatype, shape, field)


def _both_contents(field: str) -> InvalidInput:
    return InvalidInput(
        f"{field}.contents", "expected none beside raw_input_contents; send one of the two for all inputs"
    )


def _check_strings(inputs: Iterable[Message]) -> None:
    """Raise InvalidInput if the request has too many strings: they are read one by one."""
    shapes = [read_sizes(each.shape[: MAX_RANK + 1], "inputs.shape") for each in inputs if each.datatype == "BYTES"]
    check_num_strings(sum(map(prod, shapes)), "inputs")
