"""Decode and encode predict of KServe's first protocol: a list of instances in, a prediction for each of them out.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol; the row format of TensorFlow Serving
is the same.
"""

import base64
import binascii
from functools import partial
from typing import Any

import numpy as np
import orjson
from pydantic import Field

from app.inference.contract import NamedRequest
from app.protocols.open_inference.content_tensors import FILE_INPUTS
from app.protocols.open_inference.datatypes import DTYPES
from app.protocols.open_inference.errors import OpenInferenceErrorResponse, error_body
from app.protocols.open_inference.infer_body import read_parameters
from app.protocols.open_inference.infer_request import check_request, read_timeout_ms
from app.protocols.open_inference.infer_response import output_tensors
from app.protocols.open_inference.infer_types import InferRequest, InputTensor, Parameters, ParsedRequest
from app.protocols.open_inference.signature import Signature, TensorSignature, reads_content, signature_for
from app.protocols.shared.bodies import Body, ResponseBody
from app.protocols.shared.codec import AnswerContext, JsonCodec, StreamWriter, Target
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.texts import MAX_TEXTS
from app.protocols.shared.json.body import Document, Node, describe_type, describe_value
from app.protocols.shared.json.output import list_to_json, to_json_value
from app.protocols.shared.json.reading import read_named
from app.protocols.shared.json.tensors import read_tensor
from app.protocols.shared.routes import Route, RouteDescription
from frameworks.core.errors import InvalidInput
from frameworks.images.spec import ImageRequest
from frameworks.tasks.types import TaskRequest
from frameworks.types import Array, ModelSpec, TensorBatch, TensorType, TextRequest

MAX_OBJECTS = MAX_TEXTS
"""Instances of one request that are objects, which are read one by one."""

_FIELDS = frozenset({"instances", "parameters", "signature_name"})
_SIGNATURES = (None, "serving_default")
_BASE64 = "b64"


class PredictRequest(Body):
    """The inputs of a model, row by row."""

    instances: list[Any] = Field(
        description='A row for each prediction: of the only input, or an object of name → row. {"b64"}: bytes.',
        examples=[[[0.0, 0.5, 1.0]]],
    )
    parameters: dict[str, Any] | None = Field(None, description="As of /v2/models/{name}/infer.")
    signature_name: str | None = Field(None, pattern="^serving_default$", description="Models have one signature.")


class PredictResponse(ResponseBody):
    """The outputs of a model, row by row."""

    predictions: list[Any] = Field(
        description="For each instance the row of the only output, or an object of name → row."
    )


class PredictCodec(JsonCodec):
    """As Codec of app/protocols/shared/codec.py."""

    def read(self, body: bytes, target: Target) -> NamedRequest:
        return read_named(body, partial(_read_document, target))

    def encode(self, decoded: InferRequest, answer: Any, context: AnswerContext) -> bytes:
        outputs = [(tensor.name, tensor.value) for tensor in output_tensors(decoded, answer)]
        count = _num_instances(decoded)
        for name, value in outputs:
            if value.ndim == 0 or len(value) != count:
                raise InvalidInput(
                    "instances",
                    f"expected a model with an output row for each of {count} instances, got {name} of shape "
                    f"{list(value.shape)}; send the request to /v2/models/{context.model}/infer",
                )
        if len(outputs) == 1:
            predictions = to_json_value(outputs[0][1])
        else:
            rows = range(count)
            predictions = list_to_json(rows, lambda row: {name: to_json_value(value[row]) for name, value in outputs})
        return orjson.dumps({"predictions": predictions}, option=orjson.OPT_SERIALIZE_NUMPY)

    def stream_writer(self, decoded: InferRequest, context: AnswerContext) -> StreamWriter:
        raise AssertionError("models that generate text are refused")

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return error_body(_renamed(error))


def _renamed(error: ErrorReply) -> ErrorReply:
    """Replace the fields of texts and of tensors by `instances`."""
    field = error.field or ""
    if field.startswith(("text[", "image[")):
        return error.with_field("instances" + field[field.index("[") :])
    if field in ("text", "image", "inputs") or field.startswith("inputs."):
        return error.with_field("instances")
    return error


def _read_document(target: Target, document: Document) -> NamedRequest:
    if not document.is_object(document.root):
        raise InvalidInput("body", f"expected an object, got {describe_type(document.root)}")
    fields = document.members(document.root, _FIELDS)
    parameters = read_parameters(document, fields, "parameters")
    decode = partial(_decode, document, target, fields, parameters)
    return NamedRequest(target.model, target.version, decode, partial(read_timeout_ms, parameters))


def _decode(
    document: Document, target: Target, fields: dict[str, Node], parameters: Parameters, spec: ModelSpec
) -> InferRequest:
    if spec.generation is not None:
        raise InvalidInput(
            "instances",
            "expected a model that generates no text, got one whose task is generate; send a prompt to "
            f"/v1/completions, or to /v2/models/{target.model}/generate",
        )
    if fields.get("signature_name") not in _SIGNATURES:
        given = describe_value(fields["signature_name"])
        raise InvalidInput("signature_name", f'expected "serving_default", got {given}; omit the field')
    node = fields.get("instances")
    if not document.is_array(node):
        given = describe_type(node) if "instances" in fields else "nothing"
        raise InvalidInput("instances", f"expected a list with a row for each prediction, got {given}")
    inputs = _read_instances(document, node, spec)
    return check_request(ParsedRequest(inputs, parameters=parameters), spec)


def _read_instances(document: Document, node: Node, spec: ModelSpec) -> list[InputTensor]:
    """Return the rows of each input as one tensor. Raises InvalidInput, UnknownField."""
    signature = signature_for(spec)
    required = [each for each in signature.inputs.values() if each.required]
    if len(required) == 1:
        try:
            return [_read_rows(document, node, required[0], signature)]
        except InvalidInput:
            # Numbers are read at once: only a list that they do not fill may have objects.
            if not _has_objects(document, node):
                raise
    items = document.items(node)
    if len(items) > MAX_OBJECTS:
        raise InvalidInput("instances", f"expected at most {MAX_OBJECTS} objects, got {len(items)}; split the request")
    return _read_objects(document, items, spec)


def _has_objects(document: Document, node: Node) -> bool:
    return any(document.is_object(each) for each in document.items(node)[:1])


def _read_rows(document: Document, node: Node, declared: TensorSignature, signature: Signature) -> InputTensor:
    value, _ = read_tensor(document, node, TensorType(DTYPES[declared.datatype], None), "instances")
    if signature.reads_texts and value.ndim and value.size != len(value):
        raise InvalidInput("instances", f"expected one text or image for each prediction, got {list(value.shape)}")
    return InputTensor(declared.name, declared.datatype, value)


def _read_objects(document: Document, items: list[Node], spec: ModelSpec) -> list[InputTensor]:
    """Return the rows of instances that are objects of name → row, or of `b64` for the only input."""
    signature, columns = signature_for(spec), dict[str, list[Array]]()
    for index, item in enumerate(items):
        within = f"instances[{index}]"
        if not document.is_object(item):
            raise InvalidInput(within, f"expected an object of name → row, got {describe_type(item)}")
        if index == 0 and reads_content(spec):
            signature = _signature_of_names(document, item, spec)
        row = _members_of(document, item, signature, within)
        if columns and columns.keys() != row.keys():
            raise InvalidInput(within, f"expected {', '.join(columns)}, as in the first one, got {', '.join(row)}")
        for name, member in row.items():
            values = columns.setdefault(name, [])
            values.append(_read_row(document, member, signature.inputs[name], f"{within}.{name}"))
            if values[-1].shape != values[0].shape:
                shapes = f"{list(values[0].shape)}, as in the first one, got {list(values[-1].shape)}"
                raise InvalidInput(f"{within}.{name}", f"expected shape {shapes}")
    return [InputTensor(name, signature.inputs[name].datatype, np.stack(rows)) for name, rows in columns.items()]


def _signature_of_names(document: Document, item: Node, spec: ModelSpec) -> Signature:
    """Return the signature of the graph if an object has an input that only the graph has."""
    content, graph = signature_for(spec), signature_for(spec, of_graph=True)
    known = {*content.inputs, *content.other_names, *graph.inputs, _BASE64}
    names = document.members(item, known, within="instances[0].").keys()
    return graph if names - {*content.inputs, *content.other_names, _BASE64} else content


def _members_of(document: Document, item: Node, signature: Signature, within: str) -> dict[str, Node]:
    """Return the row of each input by its name."""
    known = {*signature.inputs, *signature.other_names, _BASE64}
    members = document.members(item, known, within=f"{within}.")
    if _BASE64 in members and _BASE64 not in signature.inputs:
        required = [each.name for each in signature.inputs.values() if each.required]
        if len(required) != 1 or len(members) != 1:
            raise InvalidInput(within, 'expected an object of name → {"b64": …}, got b64 without a name')
        return {required[0]: item}
    return {signature.other_names.get(name, name): member for name, member in members.items()}


def _read_row(document: Document, node: Node, declared: TensorSignature, field: str) -> Array:
    if declared.datatype == "BYTES" and document.is_object(node):
        encoded = document.members(node, {_BASE64}, within=f"{field}.").get(_BASE64)
        if not isinstance(encoded, str):
            raise InvalidInput(f"{field}.{_BASE64}", f"expected base64, got {describe_type(encoded)}")
        # The files of images are decoded with the request.
        return np.array(encoded if declared.name in FILE_INPUTS else _decoded(encoded, field), dtype=object)
    value, _ = read_tensor(document, node, TensorType(DTYPES[declared.datatype], None), field)
    return value


def _decoded(encoded: str, field: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise InvalidInput(f"{field}.{_BASE64}", f"expected base64 of UTF-8 text, got an error: {error}") from None


def _num_instances(decoded: InferRequest) -> int:
    request = decoded.request
    if isinstance(request, TensorBatch):
        return len(next(iter(request.inputs.values()))) if request.inputs else 0  # type: ignore[arg-type]
    if isinstance(request, TaskRequest):
        return len(request.inputs)
    assert isinstance(request, TextRequest | ImageRequest)
    return len(request.texts if isinstance(request, TextRequest) else request.images)


_DESCRIPTION = RouteDescription(
    "open_inference",
    "Predict from instances, by KServe's first protocol",
    PredictRequest,
    PredictResponse,
    OpenInferenceErrorResponse,
)
# GET of the path is OpenAI's description of an adapter called `predict`.
ROUTES = (Route("/v1/models/{name}:predict", PredictCodec(), _DESCRIPTION, frozenset({"GET", "HEAD"})),)
