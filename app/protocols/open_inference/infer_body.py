"""Decode the body of an infer request: JSON, JSON followed by binary tensors, or the bytes of one tensor.

`read_json` reads every JSON body. `read_one_tensor` reads the most frequent one, a single small float tensor, in a
third of the time. `decode_raw_tensor` reads a body without JSON.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
import orjson

from app.inference.contract import NamedRequest
from app.protocols.open_inference.content_tensors import as_objects, decode_files, holds_files
from app.protocols.open_inference.datatypes import (
    BINARY_ONLY,
    DTYPES,
    check_num_strings,
    decode_tensor,
    describe_binary_only,
    item_bytes,
    numpy_dtype,
)
from app.protocols.open_inference.infer_request import (
    check_request,
    read_requested_output,
    read_timeout_ms,
    refuse_shared_memory,
)
from app.protocols.open_inference.infer_types import (
    InferRequest,
    InputTensor,
    Parameters,
    ParsedRequest,
    RequestedOutput,
)
from app.protocols.open_inference.signature import TensorSignature, signature_for
from app.protocols.shared.codec import Target
from app.protocols.shared.json.body import Document, Node, describe_type, describe_value
from app.protocols.shared.json.reading import read_named
from app.protocols.shared.json.shapes import read_sizes
from app.protocols.shared.json.tensors import narrow, read_tensor
from frameworks.core.errors import InvalidInput
from frameworks.types import DEFAULT_PRIORITY, Array, ModelSpec, TensorBatch, TensorType

# Many clients repeat the model's name, which the path gives, in the body.
FIELDS = frozenset({"id", "inputs", "outputs", "parameters", "model_name", "model_version"})
TENSOR_FIELDS = frozenset({"name", "shape", "datatype", "parameters", "data"})
OUTPUT_FIELDS = frozenset({"name", "parameters"})

_NO_PARAMETERS: Parameters = {}
# The members of a body, and of its input, that `read_one_tensor` reads.
_INPUTS = {"inputs"}
_INPUTS_AND_ID = {"id", "inputs"}
_TENSOR = {"name", "shape", "datatype", "data"}
_FLOATS = frozenset({"FP32", "FP64"})
_NUMBERS = frozenset({int, float})


class BinaryTensors:
    """The bytes behind the JSON of a body: one tensor after the other. `data` None: the request has no such bytes."""

    def __init__(self, data: memoryview | None) -> None:
        self._data = data
        self._offset = self._num_strings = 0

    def rewind(self) -> None:
        """Start again at the first tensor; a body may be read twice."""
        self._offset = self._num_strings = 0

    def decode(self, size: Any, datatype: str, shape: tuple[int, ...], field: str) -> Array:
        """Decode the tensor in the next `size` bytes. Raises InvalidInput."""
        if datatype == "BYTES":
            self._num_strings += prod(shape)
            check_num_strings(self._num_strings, field)
        return decode_tensor(self.take(size, field), datatype, shape, field)

    def take(self, size: Any, field: str) -> memoryview:
        """Return the next `size` bytes. Raises InvalidInput where the body has fewer."""
        if type(size) is not int or size < 0:
            raise InvalidInput(
                f"{field}.binary_data_size", f"expected an integer of 0 or more, got {describe_value(size)}"
            )
        if self._data is None:
            raise InvalidInput(
                f"{field}.binary_data_size",
                "expected the header Inference-Header-Content-Length, the number of bytes of the JSON; send it",
            )
        start, self._offset = self._offset, self._offset + size
        if self._offset > len(self._data):
            raise InvalidInput(
                f"{field}.binary_data_size", f"expected {size} bytes behind the JSON, got {len(self._data) - start}"
            )
        return self._data[start : self._offset]

    def check_end(self) -> None:
        """Raises InvalidInput where bytes are left over."""
        if self._data is not None and self._offset != len(self._data):
            raise InvalidInput(
                "inputs",
                f"expected {self._offset} bytes behind the JSON, got {len(self._data)}; send each binary_data_size",
            )


def read_json(body: bytes, data: memoryview | None, target: Target) -> NamedRequest:
    """Read a JSON body. `data`: the bytes behind it; None where no header gives the length of the JSON.

    Raises InvalidJson, InvalidInput, UnknownField.
    """
    return read_named(body, partial(_read_document, BinaryTensors(data), target))


DecodeWhole = Callable[[bytes, Target, ModelSpec], InferRequest]


def read_one_tensor(body: bytes, target: Target, decode_whole: DecodeWhole) -> NamedRequest | None:
    """Read a short body with one flat FP32 or FP64 tensor and at most an id besides.

    `decode_whole`: decodes the body where the tensor does not fit the model.

    Returns None for every other body, also for an invalid one: `read_json` reads it or writes the error.
    """
    found = _find_one_tensor(body)
    if found is None:
        return None
    tensor, request_id = found
    if type(tensor["name"]) is not str or type(tensor["shape"]) is not list or type(tensor["data"]) is not list:
        return None
    decode = partial(_decode_one_tensor, decode_whole, body, target, tensor, request_id)
    return NamedRequest(target.model, target.version, decode)


def _decode_one_tensor(
    decode_whole: DecodeWhole, body: bytes, target: Target, tensor: dict[str, Any], request_id: str, spec: ModelSpec
) -> InferRequest:
    return _one_tensor(tensor, request_id, spec) or decode_whole(body, target, spec)


def _one_tensor(tensor: dict[str, Any], request_id: str, spec: ModelSpec) -> InferRequest | None:
    """Return the request for a flat tensor of floats; None for any other. Raises InvalidInput for too large numbers."""
    name, shape, datatype, data = tensor["name"], tensor["shape"], tensor["datatype"], tensor["data"]
    signature = signature_for(spec)
    declared = signature.inputs.get(name)
    if declared is None or len(signature.inputs) > 1 or signature.unsupported or signature.binary_only:
        return None
    if datatype != declared.datatype or datatype not in _FLOATS or not _shape_fits(shape, declared.shape):
        return None
    if not _NUMBERS.issuperset(map(type, data)):
        return None
    try:
        value = narrow(np.array(data, np.float64), DTYPES[datatype], f"inputs.{name}.data").reshape(shape)
    except (ValueError, OverflowError):
        return None
    batch = TensorBatch({name: value}, signature.output_names)
    return InferRequest(batch, spec, signature.all_outputs, request_id, DEFAULT_PRIORITY, None)


def decode_raw_tensor(body: memoryview, spec: ModelSpec) -> InferRequest:
    """Decode a body that is the bytes of the model's one required input; the outputs are binary, as in Triton.

    Raises InvalidInput.
    """
    required = [tensor for tensor in signature_for(spec).inputs.values() if tensor.required]
    if len(required) != 1:
        raise InvalidInput(
            "inputs", f"expected a model with one required input, got {len(required)}; send JSON that names them"
        )
    declared = required[0]
    if holds_files(declared.name, declared.datatype, spec):
        value = as_objects([bytes(body)])
    else:
        value = _decode_string(body, declared) if declared.datatype == "BYTES" else _decode_numbers(body, declared)
    inputs = [InputTensor(declared.name, declared.datatype, value)]
    return check_request(ParsedRequest(inputs, parameters={"binary_data_output": True}), spec)


def _read_document(binary: BinaryTensors, target: Target, document: Document) -> NamedRequest:
    if not document.is_object(document.root):
        raise InvalidInput("body", f"expected a JSON object, got {describe_type(document.root)}")
    fields = document.members(document.root, FIELDS)
    parameters = read_parameters(document, fields, "parameters")
    decode = partial(_decode, document, binary, fields, parameters)
    return NamedRequest(target.model, target.version, decode, partial(read_timeout_ms, parameters))


def _decode(
    document: Document, binary: BinaryTensors, fields: dict[str, Node], parameters: Parameters, spec: ModelSpec
) -> InferRequest:
    inputs = fields.get("inputs")
    if not document.is_array(inputs):
        given = describe_type(inputs) if "inputs" in fields else "nothing"
        raise InvalidInput(
            "inputs", f'expected a list of tensors like {{"name", "shape", "datatype", "data"}}, got {given}'
        )
    binary.rewind()
    tensors = [_read_input(document, node, i, binary, spec) for i, node in enumerate(document.items(inputs))]
    binary.check_end()
    return check_request(
        ParsedRequest(tensors, _read_outputs(document, fields), _read_id(fields), parameters),
        spec,
    )


def _read_input(document: Document, node: Node, index: int, binary: BinaryTensors, spec: ModelSpec) -> InputTensor:
    field = f"inputs[{index}]"
    if not document.is_object(node):
        raise InvalidInput(field, f"expected an object, got {describe_type(node)}")
    members = document.members(node, TENSOR_FIELDS, within=f"{field}.")
    name, datatype = _read_name(members, field), members.get("datatype")
    field = f"inputs.{name[:200]}"
    numpy_dtype(datatype, field)
    assert isinstance(datatype, str)
    shape = read_sizes(document.python(members.get("shape")), f"{field}.shape")
    parameters = _NO_PARAMETERS
    if "parameters" in members:
        parameters = read_parameters(document, members, f"{field}.parameters")
        refuse_shared_memory(parameters, f"{field}.")
        size = parameters.get("binary_data_size")
        if size is not None:
            if members.get("data") is not None:
                raise InvalidInput(field, "expected data or binary_data_size, got both; leave one out")
            if holds_files(name, datatype, spec):
                value = decode_files(binary.take(size, field), shape, field)
            else:
                value = binary.decode(size, datatype, shape, field)
            return InputTensor(name, datatype, value, parameters)
    if "data" not in members:
        raise InvalidInput(field, "expected data, got nothing; send it, or binary_data_size and bytes behind the JSON")
    return InputTensor(name, datatype, _read_data(document, members["data"], datatype, shape, field), parameters)


def _read_data(document: Document, node: Node, datatype: str, shape: tuple[int, ...], field: str) -> Array:
    """Read numbers or strings, flat or nested in the declared shape."""
    if datatype in BINARY_ONLY:
        raise InvalidInput(field, f"{describe_binary_only(datatype)}; send binary_data_size")
    if not document.is_array(node):
        raise InvalidInput(f"{field}.data", f"expected a list, flat or nested, got {describe_type(node)}")
    array, is_flat = read_tensor(document, node, TensorType(DTYPES[datatype], None), f"{field}.data")
    if is_flat:
        if array.size != prod(shape):
            raise InvalidInput(
                field, f"expected {prod(shape)} elements for shape {list(shape)}, got {array.size}; send as many"
            )
        return array if len(shape) == 1 else array.reshape(shape)
    if array.shape != shape:
        raise InvalidInput(field, f"expected data of shape {list(shape)}, got nested data of shape {list(array.shape)}")
    return array


def _read_outputs(document: Document, fields: dict[str, Node]) -> list[RequestedOutput] | None:
    node = fields.get("outputs")
    if node is None:
        return None
    if not document.is_array(node):
        raise InvalidInput("outputs", f'expected a list of objects like {{"name": "…"}}, got {describe_type(node)}')
    return [_read_output(document, item, f"outputs[{i}]") for i, item in enumerate(document.items(node))]


def _read_output(document: Document, node: Node, field: str) -> RequestedOutput:
    if not document.is_object(node):
        raise InvalidInput(field, f"expected an object, got {describe_type(node)}")
    members = document.members(node, OUTPUT_FIELDS, within=f"{field}.")
    name = _read_name(members, field)
    return read_requested_output(name, read_parameters(document, members, f"outputs.{name[:200]}.parameters"))


def read_parameters(document: Document, members: dict[str, Node], field: str) -> Parameters:
    """Return the member `parameters` of an object, empty where it has none. Raises InvalidInput."""
    node = members.get("parameters")
    if node is None:
        return _NO_PARAMETERS
    if not document.is_object(node):
        raise InvalidInput(field, f"expected an object, got {describe_type(node)}")
    parameters: Parameters = document.python(node)
    return parameters


def _read_name(members: dict[str, Node], field: str) -> str:
    name = members.get("name")
    if not isinstance(name, str):
        given = describe_type(name) if "name" in members else "nothing"
        raise InvalidInput(f"{field}.name", f"expected a string, got {given}")
    return name


def _read_id(fields: dict[str, Node]) -> str:
    given = fields.get("id")
    if given is None:
        return ""
    if not isinstance(given, str):
        raise InvalidInput("id", f"expected a string, got {describe_type(given)}")
    return given


def _find_one_tensor(body: bytes) -> tuple[dict[str, Any], str] | None:
    """Return the members of the only input and the request's id."""
    try:
        root = orjson.loads(body)
    except ValueError:
        return None
    if type(root) is not dict or (root.keys() != _INPUTS and root.keys() != _INPUTS_AND_ID):
        return None
    inputs, request_id = root["inputs"], root.get("id", "")
    if type(inputs) is not list or len(inputs) != 1 or type(request_id) is not str:
        return None
    tensor = inputs[0]
    return (tensor, request_id) if type(tensor) is dict and tensor.keys() == _TENSOR else None


def _shape_fits(shape: list[Any], declared: tuple[int, ...] | None) -> bool:
    if declared is None or len(shape) != len(declared):
        return False
    for size, expected in zip(shape, declared, strict=True):
        if type(size) is not int or size < 0 or expected not in (size, -1):
            return False
    return True


def _decode_string(body: memoryview, declared: TensorSignature) -> Array:
    """Decode the whole body as one UTF-8 string without a length."""
    try:
        text = str(body, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"inputs.{declared.name}", f"expected UTF-8 text, got {error.reason}") from None
    return np.array([text], dtype=object).reshape([1] * len(declared.shape or (1,)))


def _decode_numbers(body: memoryview, declared: TensorSignature) -> Array:
    """Decode numbers; their count gives one free dimension. With several free ones, the first counts as one row."""
    field = f"inputs.{declared.name}"
    expects = f"the model expects {declared.datatype} {list(declared.shape or ())}"
    shape = list(declared.shape or (-1,))
    if shape.count(-1) > 1 and shape[0] == -1:
        shape[0] = 1
    free = [axis for axis, size in enumerate(shape) if size == -1]
    if len(free) > 1:
        raise InvalidInput(field, f"{expects}; bytes alone do not give that shape: send JSON with the shape")
    if free:
        step = item_bytes(declared.datatype) * prod(size for size in shape if size != -1)
        if not step or len(body) % step:
            raise InvalidInput(field, f"expected a multiple of {step} bytes, got {len(body)}; {expects}")
        shape[free[0]] = len(body) // step
    return decode_tensor(body, declared.datatype, tuple(shape), field)
