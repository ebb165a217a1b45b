"""Step 1, DECODE, of the protocol's REST form: a JSON object, with the bytes of its binary tensors behind it."""

from collections.abc import Mapping
from math import prod
from typing import Any

from app.inference.pipeline import FindSpec
from app.protocols.codec import Target
from app.protocols.json_body import Document, Node, describe_type
from app.protocols.json_tensors import read_tensor
from app.protocols.open_inference.datatypes import BINARY_ONLY, DTYPES, from_raw, numpy_dtype
from app.protocols.open_inference.infer_request import (
    read_request,
    read_requested_output,
    read_timeout_ms,
    refuse_shared_memory,
)
from app.protocols.open_inference.infer_types import (
    InferRequest,
    InputTensor,
    Parameter,
    ParsedRequest,
    RequestedOutput,
)
from app.protocols.shapes import read_sizes
from frameworks.errors import InvalidInput
from frameworks.types import Array, ModelSpec, TensorType

Parameters = Mapping[str, Parameter]

# The path names the model; clients that write its name into the body as well are common.
FIELDS = frozenset({"id", "inputs", "outputs", "parameters", "model_name", "model_version"})
TENSOR_FIELDS = frozenset({"name", "shape", "datatype", "parameters", "data"})
OUTPUT_FIELDS = frozenset({"name", "parameters"})
_NONE: Parameters = {}


def read_question(document: Document, binary: "BinaryData", target: Target, find_spec: FindSpec) -> InferRequest:
    """The question of a parsed body. Raises InvalidInput, UnknownField, and what `find_spec` raises."""
    if not document.is_object(document.root):
        raise InvalidInput("body", f"is {describe_type(document.root)}; wants a JSON object")
    fields = document.members(document.root, FIELDS)
    parameters = _read_parameters(document, fields, "parameters")
    spec = find_spec_for(target, parameters, find_spec)
    given = fields.get("inputs")
    if not document.is_array(given):
        came = "is missing" if given is None else f"is {describe_type(given)}"
        raise InvalidInput("inputs", f'{came}; wants a list of tensors like {{"name", "shape", "datatype", "data"}}')
    binary.begin()
    inputs = [_read_input(document, node, i, binary) for i, node in enumerate(document.items(given))]
    binary.check_end()
    question = ParsedRequest(inputs, _read_outputs(document, fields), _read_id(fields), parameters)
    return read_request(question, spec)


def find_spec_for(target: Target, parameters: Parameters, find_spec: FindSpec) -> ModelSpec:
    """As `find_spec`; who waits for a load waits no longer than the request's own timeout."""
    assert target.model is not None
    return find_spec(target.model, target.version, lambda: read_timeout_ms(parameters))


class BinaryData:
    """What comes behind the JSON: the bytes of one tensor after the other. `rest` None: no header said where."""

    def __init__(self, rest: memoryview | None) -> None:
        self._rest = rest
        self._at = 0

    def begin(self) -> None:
        """A body may be read twice."""
        self._at = 0

    def next(self, size: Any, field: str) -> memoryview:
        """The next so many bytes. Raises InvalidInput where they are not there."""
        if type(size) is not int or size < 0:
            raise InvalidInput(f"{field}.binary_data_size", "wants a whole number, 0 or more")
        if self._rest is None:
            raise InvalidInput(
                f"{field}.binary_data_size", "wants the header Inference-Header-Content-Length, where the JSON ends"
            )
        start, self._at = self._at, self._at + size
        if self._at > len(self._rest):
            raise InvalidInput(
                f"{field}.binary_data_size", f"is {size}, and {len(self._rest) - start} bytes are left of the body"
            )
        return self._rest[start : self._at]

    def check_end(self) -> None:
        """Raises InvalidInput where some of it is nobody's."""
        if self._rest is not None and self._at != len(self._rest):
            raise InvalidInput(
                "inputs", f"{len(self._rest) - self._at} bytes come behind the JSON that no binary_data_size speaks of"
            )


def _read_input(document: Document, node: Node, place: int, binary: BinaryData) -> InputTensor:
    field = f"inputs[{place}]"
    if not document.is_object(node):
        raise InvalidInput(field, f"is {describe_type(node)}; wants an object")
    members = document.members(node, TENSOR_FIELDS, within=f"{field}.")
    name, datatype = _read_name(members, field), members.get("datatype")
    field = f"inputs.{name[:200]}"
    numpy_dtype(datatype, field)
    assert isinstance(datatype, str)
    shape = read_sizes(document.python(members.get("shape")), f"{field}.shape")
    parameters = _NONE
    if "parameters" in members:
        parameters = _read_parameters(document, members, f"{field}.parameters")
        refuse_shared_memory(parameters, f"{field}.")
        size = parameters.get("binary_data_size")
        if size is not None:
            if members.get("data") is not None:
                raise InvalidInput(field, "has data in the JSON and binary_data_size; leave one out")
            value = from_raw(binary.next(size, field), datatype, shape, field)
            return InputTensor(name, datatype, value, parameters)
    if "data" not in members:
        raise InvalidInput(field, "has no data; send it, or binary_data_size and the bytes behind the JSON")
    return InputTensor(name, datatype, _read_data(document, members["data"], datatype, shape, field), parameters)


def _read_data(document: Document, node: Node, datatype: str, shape: tuple[int, ...], field: str) -> Array:
    """Flat, or nested as its shape says."""
    if datatype in BINARY_ONLY:
        raise InvalidInput(field, f"is {datatype}, which travels as binary data only (binary_data_size)")
    if not document.is_array(node):
        raise InvalidInput(f"{field}.data", f"is {describe_type(node)}; wants a list, flat or nested")
    array, is_flat = read_tensor(document, node, TensorType(DTYPES[datatype], None), f"{field}.data")
    if is_flat:
        if array.size != prod(shape):
            raise InvalidInput(field, f"has {array.size} elements, and shape {list(shape)} holds {prod(shape)}")
        return array if len(shape) == 1 else array.reshape(shape)
    if array.shape != shape:
        raise InvalidInput(field, f"has nested data of shape {list(array.shape)}, and its shape is {list(shape)}")
    return array


def _read_outputs(document: Document, fields: dict[str, Node]) -> list[RequestedOutput] | None:
    node = fields.get("outputs")
    if node is None:
        return None
    if not document.is_array(node):
        raise InvalidInput("outputs", f'is {describe_type(node)}; wants a list of objects like {{"name": "…"}}')
    return [_read_output(document, item, f"outputs[{i}]") for i, item in enumerate(document.items(node))]


def _read_output(document: Document, node: Node, field: str) -> RequestedOutput:
    if not document.is_object(node):
        raise InvalidInput(field, f"is {describe_type(node)}; wants an object")
    members = document.members(node, OUTPUT_FIELDS, within=f"{field}.")
    name = _read_name(members, field)
    return read_requested_output(name, _read_parameters(document, members, f"outputs.{name[:200]}.parameters"))


def _read_parameters(document: Document, members: dict[str, Node], field: str) -> Parameters:
    node = members.get("parameters")
    if node is None:
        return _NONE
    if not document.is_object(node):
        raise InvalidInput(field, f"is {describe_type(node)}; wants an object")
    parameters: Parameters = document.python(node)
    return parameters


def _read_name(members: dict[str, Node], field: str) -> str:
    name = members.get("name")
    if not isinstance(name, str):
        raise InvalidInput(
            f"{field}.name", "is missing" if name is None else f"is {describe_type(name)}; wants a string"
        )
    return name


def _read_id(fields: dict[str, Node]) -> str:
    given = fields.get("id")
    if given is None:
        return ""
    if not isinstance(given, str):
        raise InvalidInput("id", f"is {describe_type(given)}; wants a string")
    return given
