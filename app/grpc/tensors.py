"""Convert tensors and parameters: read a ModelInferRequest, write a ModelInferResponse."""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from app.grpc.messages import Message, ModelInferResponse
from app.protocols.json_tensors import narrow
from app.protocols.open_inference.datatypes import DTYPES, decode_tensor, encode_tensor, numpy_dtype
from app.protocols.open_inference.infer_request import read_requested_output, refuse_shared_memory
from app.protocols.open_inference.infer_types import InputTensor, OutputTensor, Parameter, ParsedRequest
from app.protocols.shapes import read_sizes
from frameworks.errors import InvalidInput
from frameworks.types import NUMPY_DTYPES, Array


class _Contents(NamedTuple):
    """The field of InferTensorContents that holds a datatype, and the numpy dtype into which it is read."""

    field: str
    dtype: np.dtype[Any]


_INT = _Contents("int_contents", np.dtype(np.int64))
_UINT = _Contents("uint_contents", np.dtype(np.int64))
_CONTENTS = {
    "BOOL": _Contents("bool_contents", np.dtype(np.bool_)),
    "INT8": _INT,
    "INT16": _INT,
    "INT32": _INT,
    "INT64": _Contents("int64_contents", np.dtype(np.int64)),
    "UINT8": _UINT,
    "UINT16": _UINT,
    "UINT32": _UINT,
    "UINT64": _Contents("uint64_contents", np.dtype(np.uint64)),
    "FP32": _Contents("fp32_contents", np.dtype(np.float32)),
    "FP64": _Contents("fp64_contents", np.dtype(np.float64)),
    "BYTES": _Contents("bytes_contents", np.dtype(object)),
}
_FIELDS = sorted({contents.field for contents in _CONTENTS.values()})


def parse_request(message: Message) -> ParsedRequest:
    """Read a ModelInferRequest. Raises InvalidInput, which names the field of the message."""
    raw = message.raw_input_contents
    inputs = message.inputs
    if raw and len(raw) != len(inputs):
        raise InvalidInput(
            "raw_input_contents", f"expected one entry per input in their order, {len(inputs)} in all, got {len(raw)}"
        )
    given = [_read_input(tensor, f"inputs[{i}]", raw[i] if raw else None) for i, tensor in enumerate(inputs)]
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


def write_response(
    request: Message, tensors: Iterable[OutputTensor], model: str, version: str, parameters: Mapping[str, Parameter]
) -> Message:
    """Return a ModelInferResponse. Its contents are typed if those of the request are typed and if all datatypes have
    typed contents; otherwise all are raw.
    """
    response = ModelInferResponse(model_name=model, model_version=version, id=request.id)
    tensors = list(tensors)
    is_raw = not _is_typed(request) or any(tensor.datatype not in _CONTENTS for tensor in tensors)
    for tensor in tensors:
        output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.value.shape)
        if is_raw:
            response.raw_output_contents.append(bytes(encode_tensor(tensor.value, tensor.datatype)))
        else:
            _write_contents(output.contents, tensor)
    for name, value in parameters.items():
        _write_parameter(response.parameters[name], value)
    return response


def _is_typed(request: Message) -> bool:
    return bool(request.inputs) and not request.raw_input_contents


def _read_input(tensor: Message, field: str, raw: bytes | None) -> InputTensor:
    if tensor.parameters:
        refuse_shared_memory(tensor.parameters, f"{field}.parameters.")
    shape = read_sizes(list(tensor.shape), f"{field}.shape")
    if raw is None:
        value = _read_contents(tensor, shape, field)
    elif tensor.HasField("contents"):
        raise InvalidInput(
            f"{field}.contents", "expected none beside raw_input_contents; send one of the two for all inputs"
        )
    else:
        value = decode_tensor(memoryview(raw), tensor.datatype, shape, field)
    if not tensor.parameters:
        return InputTensor(tensor.name, tensor.datatype, value)
    return InputTensor(tensor.name, tensor.datatype, value, read_parameters(tensor.parameters))


def _read_contents(tensor: Message, shape: tuple[int, ...], field: str) -> Array:
    datatype = tensor.datatype
    contents = _CONTENTS.get(datatype)
    if contents is None:
        numpy_dtype(datatype, field)  # raises for an unknown datatype
        raise InvalidInput(
            f"{field}.datatype", f"expected a datatype with typed contents, got {datatype}; send raw_input_contents"
        )
    elements = getattr(tensor.contents, contents.field)
    if len(elements) != prod(shape):
        others = [name for name in _FIELDS if name != contents.field and getattr(tensor.contents, name)]
        hint = f"; send {datatype} in {contents.field}, not in {others[0]}" if others else ""
        reason = f"expected {prod(shape)} elements for shape {list(shape)}, got {len(elements)}{hint}"
        raise InvalidInput(f"{field}.contents.{contents.field}", reason)
    if datatype == "BYTES":
        return _read_strings(elements, field).reshape(shape)
    value = np.array(elements, contents.dtype)
    return narrow(value, DTYPES[datatype], f"{field}.contents").reshape(shape)


def _read_strings(elements: Iterable[bytes], field: str) -> Array:
    texts = []
    for i, element in enumerate(elements):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"{field}.contents.bytes_contents[{i}]", f"expected UTF-8, got {error.reason} at byte {error.start}"
            ) from None
    array = np.empty(len(texts), NUMPY_DTYPES["string"])
    array[:] = texts
    return array


def _write_contents(contents: Message, tensor: OutputTensor) -> None:
    elements: Any = tensor.value.reshape(-1).tolist()
    if tensor.datatype == "BYTES":
        elements = [element.encode() for element in elements]
    getattr(contents, _CONTENTS[tensor.datatype].field).extend(elements)


def _write_parameter(parameter: Message, value: Parameter) -> None:
    setters: tuple[tuple[type, str], ...] = (
        (bool, "bool_param"),
        (int, "int64_param"),
        (float, "double_param"),
        (str, "string_param"),
    )
    setattr(parameter, next(name for kind, name in setters if isinstance(value, kind)), value)
