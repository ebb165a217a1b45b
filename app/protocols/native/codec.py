"""Decode and encode JSON of /infer and its path forms. Answers have the form of the request."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import orjson

from app.inference.contract import NamedRequest
from app.inference.unnamed_model import UnnamedModel
from app.protocols.native.fields import (
    COMMON_FIELDS,
    FIELDS,
    GENERATION_INPUTS,
    INPUT_FIELDS,
    OPTIONS,
    PARAMETERS,
    TENSOR_INPUTS,
)
from app.protocols.native.generation import NativeStream, describe_generated, read_generation
from app.protocols.native.images import read_images
from app.protocols.native.inputs import read_count, read_input_data, read_inputs, read_text, with_sequence
from app.protocols.native.parameters import decode_merged, has_own_parameters
from app.protocols.native.tasks import read_task
from app.protocols.shared.codec import LONG_ELEMENTS, AnswerContext, JsonCodec, Target, elements_of
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.model_inputs import explain_expected_input
from app.protocols.shared.json import body as json_body
from app.protocols.shared.json.body import Document, Node, describe_type
from app.protocols.shared.json.output import DIRECT_ELEMENTS, array_to_json, to_json_value
from app.protocols.shared.json.reading import SHORT_BYTES, read_named
from app.protocols.shared.json.tensors import narrow
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import GenerateAnswer, GenerateRequest
from frameworks.images.spec import ImageRequest
from frameworks.tasks.types import TaskAnswer, TaskRequest
from frameworks.types import (
    DEFAULT_PRIORITY,
    LAST_PRIORITY,
    Answer,
    Array,
    ClassifyAnswer,
    CombinedAnswer,
    EmbedAnswer,
    ModelSpec,
    MultiVectorAnswer,
    SparseAnswer,
    TensorBatch,
    TensorType,
    TextRequest,
    Value,
)

# Sets of fields that were checked, in their order, and their input field: clients send the same fields again and again.
_input_fields: dict[tuple[str, ...], str] = {}
_MAX_FIELD_SETS = 256
_GENERATOR = UnnamedModel(("generate",), "model_name")


class NativeRequest(NamedTuple):
    """A decoded body, and the form in which the answer mirrors it.

    `field`: the input field of the body, such as `input_data`. `spec`: of the model that it is for. `flat`: input_data
    is a flat list. `timeout_ms` None: the request names no deadline.
    """

    field: str
    request: TensorBatch | TextRequest | ImageRequest | TaskRequest | GenerateRequest
    spec: ModelSpec
    flat: bool = False
    priority: int = DEFAULT_PRIORITY
    timeout_ms: int | None = None
    stream: bool = False


def read(body: bytes, target: Target) -> NamedRequest:
    """Read the names in a body: the model is that of the path or of the body.

    `prompt` or `messages` without a name are for the only model that generates text. Raises InvalidJson, InvalidInput,
    UnknownField.
    """
    if len(body) < SHORT_BYTES and body.startswith(b"{") and body.count(b"[") == 1:
        named = _read_flat(body, target)
        if named is not None:
            return named
    return read_named(body, partial(_read_document, target))


def _read_flat(body: bytes, target: Target) -> NamedRequest | None:
    """Read the most common body, a flat `input_data` with or without `model_name`, in a third of the time.

    `body` has one bracket, so no nested array. Returns None for all other bodies, and for bodies that have to be
    refused, for which `_read_document` has the error messages.
    """
    simdjson = json_body.simdjson
    if simdjson is None:
        return None
    try:
        root = simdjson.Parser().parse(body)
        names = list(root)
        if names == ["input_data"]:
            model = target.model
        elif names == ["model_name", "input_data"]:
            model = root["model_name"]
        else:
            return None
        numbers = np.frombuffer(root["input_data"].as_buffer(of_type="d"), np.float64)
    except (ValueError, TypeError, RuntimeError, AttributeError):
        return None
    if type(model) is not str or (target.model is not None and target.model != model):
        return None
    return NamedRequest(model, target.version, partial(_decode_flat, body, target, numbers))


def _decode_flat(body: bytes, target: Target, numbers: Array, spec: ModelSpec) -> NativeRequest:
    """Decode the numbers of `_read_flat`; where the model has no one tensor of this shape, decode the whole body."""
    sole = spec.sole_input
    if sole is not None and isinstance(sole.type, TensorType) and spec.framework != "pytorch":
        dtype, shape = sole.type.dtype, sole.type.shape
        if shape is not None and shape.count(-1) == 1 and "float" in dtype:
            tensor = narrow(numbers, dtype, "input_data")
            try:
                # numpy solves the one free dimension.
                tensor = tensor.reshape(shape)
            except ValueError:
                pass
            else:
                return NativeRequest("input_data", TensorBatch({sole.name: tensor}, spec.first_output), spec, True)
    decoded: NativeRequest = read_named(body, partial(_read_document, target)).decode(spec)
    return decoded


def _read_document(target: Target, document: Document) -> NamedRequest:
    if not document.is_object(document.root):
        raise InvalidInput("body", f"expected a JSON object, got {describe_type(document.root)}; send one object")
    fields = document.members(document.root, FIELDS)
    name, version = name_and_version(fields, target)
    decode = partial(decode_merged, _decode) if has_own_parameters(fields) else _decode
    return NamedRequest(name, version, partial(decode, document, fields), partial(read_count, fields, "timeout_ms"))


def _decode(document: Document, fields: dict[str, Node], spec: ModelSpec) -> NativeRequest:
    names = tuple(fields)
    if spec.pipeline is not None and TENSOR_INPUTS.isdisjoint(fields):
        priority, timeout_ms = read_priority(fields), read_count(fields, "timeout_ms")
        return NativeRequest(PARAMETERS, read_task(document, fields, spec), spec, False, priority, timeout_ms)
    field = _input_fields.get(names)
    if field is None:
        field = _input_field_of(names)
        if len(_input_fields) < _MAX_FIELD_SETS:
            _input_fields[names] = field
    flat = stream = False
    request: TensorBatch | TextRequest | ImageRequest | GenerateRequest
    match field:
        case "text":
            request = read_text(document, fields, spec)
        case "image":
            request = read_images(document, fields, spec)
        case "audio" | "video":
            raise InvalidInput(
                field, f"expected a model that reads {field}, got another; {explain_expected_input(spec)}"
            )
        case "inputs":
            request = with_sequence(read_inputs(document, fields, spec), document, fields, spec)
        case "prompt" | "messages":
            request, stream = read_generation(document, fields, spec, field)
        case _:
            request, flat = read_input_data(document, fields, spec)
            request = with_sequence(request, document, fields, spec)
    if len(names) == 1:
        return NativeRequest(field, request, spec, flat)
    priority, timeout_ms = read_priority(fields), read_count(fields, "timeout_ms")
    return NativeRequest(field, request, spec, flat, priority, timeout_ms, stream)


def read_priority(fields: Mapping[str, Node]) -> int:
    """Read `priority`. Raises InvalidInput."""
    priority = read_count(fields, "priority") or DEFAULT_PRIORITY
    if priority > LAST_PRIORITY:
        raise InvalidInput("priority", f"expected an integer from 1 (first) to {LAST_PRIORITY}, got {priority}")
    return priority


def _input_field_of(names: tuple[str, ...]) -> str:
    """Return the input field of a body with these fields. Raises InvalidInput if the fields contradict each other."""
    given = [name for name in INPUT_FIELDS if name in names]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise InvalidInput(
            given[-1] if given else "input_data", f"expected exactly one of {', '.join(INPUT_FIELDS)}, got {found}"
        )
    field = given[0]
    for name in names:
        if name not in OPTIONS[field] and name not in COMMON_FIELDS and name != field:
            options = ", ".join(sorted(OPTIONS[field]))
            raise InvalidInput(name, f"expected an option of {field}, which are {options}, got {name}; leave it out")
    return field


def name_and_version(fields: Mapping[str, Node], target: Target) -> tuple[str | UnnamedModel, str | None]:
    """Return the names of the model and of its version, of the path or the body. Raises InvalidInput."""
    if target.model is not None and "model_name" not in fields and "version" not in fields:
        return target.model, target.version
    name, version = fields.get("model_name"), fields.get("version")
    for field, value, in_path in (("model_name", name, target.model), ("version", version, target.version)):
        if field in fields and not isinstance(value, str):
            raise InvalidInput(field, f"expected a string, got {describe_type(value)}")
        if in_path is not None and value not in (None, in_path):
            raise InvalidInput(
                field, f'expected "{in_path[:200]}" as in the path, got "{value[:200]}"; leave one of them out'
            )
    model = target.model or name
    if model is None and not GENERATION_INPUTS.isdisjoint(fields):
        return _GENERATOR, version
    if not model:
        raise InvalidInput(
            "model_name", "expected a model name, got none; name the model here or post to /models/{name}/infer"
        )
    return model, target.version or version


def encode(native: NativeRequest, answer: Answer | GenerateAnswer, context: AnswerContext) -> bytes:
    """Return the body of a 200."""
    content: dict[str, Any] = {"model_name": context.model, "version": context.version}
    if native.field == "input_data" and isinstance(answer, dict):
        assert isinstance(native.request, TensorBatch)
        assert native.request.output_names is not None
        value = answer[native.request.output_names[0]]
        if isinstance(value, np.ndarray):
            content["output_data"] = value.reshape(-1) if native.flat else value
            content["output_shape"] = value.shape
            is_direct = value.size <= DIRECT_ELEMENTS and value.dtype.kind in "fiub" and value.flags.c_contiguous
            if not is_direct or value.ndim == 0:  # orjson writes no array without dimensions
                content["output_data"] = to_json_value(content["output_data"])
        else:
            content["output_data"], content["output_shape"] = to_json_value(value), _shape(value)
    else:
        content |= _describe(native, answer)
    content["latency_ms"] = round(context.latency_ms, 3)
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def _describe(native: NativeRequest, answer: Answer | GenerateAnswer) -> dict[str, Any]:
    """Return the fields of every response but that to `input_data`."""
    match answer:
        case EmbedAnswer():
            embeddings = array_to_json(answer.embeddings)
            if native.field == "image":
                return {"embeddings": embeddings}
            return {"embeddings": embeddings, "tokens": answer.tokens}
        case MultiVectorAnswer():
            return {"multi_embeddings": [array_to_json(each) for each in answer.vectors], "tokens": answer.tokens}
        case SparseAnswer():
            pairs = zip(answer.indices, answer.values, strict=True)
            vectors = [{"indices": array_to_json(at), "values": array_to_json(values)} for at, values in pairs]
            return {"sparse_embeddings": vectors, "tokens": answer.tokens}
        case CombinedAnswer():
            return {name: value for each in answer.answers for name, value in _describe(native, each).items()}
        case ClassifyAnswer():
            predictions = [
                [{"label": label, "score": score} for label, score in labels] for labels in answer.predictions
            ]
            return {"predictions": predictions}
        case TaskAnswer():
            return {"predictions": answer.predictions}
        case GenerateAnswer():
            assert isinstance(native.request, GenerateRequest)
            return describe_generated(native.request, answer)
        case dict():
            outputs = {
                name: {
                    "dtype": str(native.spec.outputs_by_name[name].type),
                    "shape": _shape(value),
                    "data": to_json_value(value),
                }
                for name, value in answer.items()
            }
            return {"outputs": outputs}
    raise AssertionError(f"/infer has no form for {type(answer).__name__}")


def _shape(value: Value) -> list[int] | None:
    if isinstance(value, np.ndarray):
        return list(value.shape)
    return [len(value)] if isinstance(value, list) else None


class NativeCodec(JsonCodec):
    """The Codec of JSON bodies."""

    read = staticmethod(read)
    encode = staticmethod(encode)

    def is_long_to_write(self, decoded: NativeRequest, answer: Any) -> bool:
        if type(answer) is dict and len(answer) == 1:
            (value,) = answer.values()
            if isinstance(value, np.ndarray):
                return value.size >= LONG_ELEMENTS
        return elements_of(answer) >= LONG_ELEMENTS

    def stream_writer(self, native: NativeRequest, context: AnswerContext) -> NativeStream:
        assert isinstance(native.request, GenerateRequest)
        return NativeStream(native.request.num_choices, context.request_id)

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return orjson.dumps({"error": {"code": error.code, "message": error.message, "request_id": request_id}})
