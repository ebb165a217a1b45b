"""Step 1, DECODE: the body of /infer → a request for one model. Synchronous: a parsed body lives only within it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from app.api.json_body import Document, Node, Unsure, json_name, parse, parse_exact, read_flat
from app.api.native.fields import COMMON_FIELDS, FIELDS, FIELDS_TO_COME, OPTIONS, QUESTION_FIELDS
from app.api.native.tensors import check_shape, narrow, read_tensor, read_value
from frameworks.errors import InvalidInput, UnknownField, VersionNotFound
from frameworks.types import (
    DEFAULT_PRIORITY,
    LAST_PRIORITY,
    Array,
    ModelSpec,
    TensorBatch,
    TensorType,
    TextRequest,
    Value,
    ValueSpec,
)

MAX_TEXTS = 100_000
_KNOWN = FIELDS | FIELDS_TO_COME
# Fields that were found to go together, in their order → the question: callers ask in the same words again and again.
_questions: dict[tuple[str, ...], str] = {}
_MOST_QUESTIONS = 256


class NativeRequest(NamedTuple):
    """What was asked, and in which form the answer mirrors it.

    `spec`: of the model that it is for. `flat`: input_data came as a flat list. `timeout_ms` None: the caller named no
    deadline.
    """

    question: str
    request: TensorBatch | TextRequest
    spec: ModelSpec
    flat: bool = False
    priority: int = DEFAULT_PRIORITY
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """The model that a path names; None where the body has to."""

    model: str | None = None
    version: str | None = None


def decode(body: bytes, target: Target, find_spec: Callable[[str, str | None], ModelSpec]) -> NativeRequest:
    """Reads a body for the model that path or body name.

    `find_spec(name, version)` is asked as soon as the name is known, before any tensor is decoded, and raises what
    keeps the model from answering. Raises InvalidJson, InvalidInput, UnknownField.
    """
    flat = read_flat(body)
    if flat is not None:
        request = _read_flat(*flat, target, find_spec)
        if request is not None:
            return request
    document = parse(body)
    try:
        request = _read(document, target, find_spec)
    except Unsure:
        return _read(parse_exact(body), target, find_spec)
    except InvalidInput:
        if not document.is_proven():
            # What seemed flat and of the wrong length may be ragged: the slower way then says so instead.
            _read(parse_exact(body), target, find_spec)
        raise
    if document.is_proven():
        return request
    # An array that seemed flat may hide a nest, or a bracket stands in a string: the slower way tells.
    return _read(parse_exact(body), target, find_spec)


def _read_flat(
    name: Any, numbers: Array, target: Target, find_spec: Callable[[str, str | None], ModelSpec]
) -> NativeRequest | None:
    """The commonest question by itself, in a third of the time; None where it is not as simple as it looked, and where
    it has to be refused, for which `_read` has the words.
    """
    model = target.model if name is None else name
    if type(model) is not str or target.model not in (None, model):
        return None
    spec = find_spec(model, target.version)
    sole = spec.sole_input
    if sole is None or not isinstance(sole.type, TensorType) or spec.framework == "pytorch":
        return None
    shape = sole.type.shape
    if shape is None or shape.count(-1) != 1 or "float" not in sole.type.dtype:
        return None
    tensor = narrow(numbers, sole.type.dtype, "input_data")
    try:
        # numpy solves the one free dimension.
        tensor = tensor.reshape(shape)
    except ValueError:
        return None
    return NativeRequest("input_data", TensorBatch({sole.name: tensor}, spec.first_output), spec, True)


def _read(document: Document, target: Target, find_spec: Callable[[str, str | None], ModelSpec]) -> NativeRequest:
    if not document.is_object(document.root):
        raise InvalidInput("body", f"is {json_name(document.root)}; wants a JSON object")
    fields = document.members(document.root, _KNOWN)
    names = tuple(fields)
    question = _questions.get(names)
    if question is None and not FIELDS_TO_COME.isdisjoint(names):
        name = next(name for name in names if name in FIELDS_TO_COME)
        raise InvalidInput(name, "is not served by this version; leave it out")
    spec = _find_spec(fields, target, find_spec)
    if question is None:
        question = _question_of(names)
        if len(_questions) < _MOST_QUESTIONS:
            _questions[names] = question
    flat = False
    request: TensorBatch | TextRequest
    match question:
        case "text":
            request = _read_text(document, fields, spec)
        case "inputs":
            request = _read_inputs(document, fields, spec)
        case _:
            request, flat = _read_input_data(document, fields, spec)
    if len(names) == 1:
        return NativeRequest(question, request, spec, flat)
    priority = _count(fields, "priority") or DEFAULT_PRIORITY
    if priority > LAST_PRIORITY:
        raise InvalidInput("priority", f"is {priority}; wants a whole number from 1 (first) to {LAST_PRIORITY}")
    return NativeRequest(question, request, spec, flat, priority, _count(fields, "timeout_ms"))


def _question_of(names: tuple[str, ...]) -> str:
    """The question that a body with these fields asks. Raises InvalidInput where they do not go together."""
    questions = [name for name in QUESTION_FIELDS if name in names]
    if len(questions) != 1:
        came = " and ".join(questions) or "none of them came"
        raise InvalidInput(
            questions[-1] if questions else "input_data",
            f"exactly one of {', '.join(QUESTION_FIELDS)} is wanted; {came}",
        )
    question = questions[0]
    for name in names:
        if name not in OPTIONS[question] and name not in COMMON_FIELDS and name != question:
            raise InvalidInput(
                name, f"does not go with {question}, whose options are {', '.join(sorted(OPTIONS[question]))}"
            )
    return question


def _find_spec(fields: dict[str, Node], target: Target, find_spec: Callable[[str, str | None], ModelSpec]) -> ModelSpec:
    try:
        return find_spec(*_name_and_version(fields, target))
    except VersionNotFound as error:
        if target.version is not None:
            raise
        # One version of a model is served at a time so far: as a field of the body this is a wrong value.
        raise InvalidInput("version", error.message) from None


def _name_and_version(fields: dict[str, Node], target: Target) -> tuple[str, str | None]:
    if target.model is not None and "model_name" not in fields and "version" not in fields:
        return target.model, target.version
    name, version = fields.get("model_name"), fields.get("version")
    for field, value, in_path in (("model_name", name, target.model), ("version", version, target.version)):
        if field in fields and not isinstance(value, str):
            raise InvalidInput(field, f"is {json_name(value)}; wants a string")
        if in_path is not None and value not in (None, in_path):
            raise InvalidInput(
                field, f'is "{value[:200]}", and the path names "{in_path[:200]}"; leave one of them out'
            )
    model = target.model or name
    if not model:
        raise InvalidInput("model_name", "is missing; name the model here or post to /models/{name}/infer")
    return model, target.version or version


def _read_text(document: Document, fields: dict[str, Node], spec: ModelSpec) -> TextRequest:
    if spec.text is None:
        raise InvalidInput("text", f"this model takes no text; its inputs are {_describe(spec)}")
    for option, task in (("normalize", "embed"), ("top_k", "classify")):
        if option in fields and spec.task != task:
            raise InvalidInput(option, f"goes with {task} models; this one's task is {spec.task}")
    node = fields["text"]
    texts = document.python(node) if document.is_array(node) else [node]
    if len(texts) > MAX_TEXTS:
        raise InvalidInput("text", f"{len(texts)} texts; a request takes at most {MAX_TEXTS}, send several")
    if strangers := set(map(type, texts)) - {str}:
        at = next(i for i, text in enumerate(texts) if type(text) in strangers)
        raise InvalidInput(
            f"text[{at}]" if document.is_array(node) else "text", f"is {json_name(texts[at])}; wants a string"
        )
    return TextRequest(
        texts=texts,
        normalize=_boolean(fields, "normalize"),
        truncate=_boolean(fields, "truncate") is not False,
        top_k=_count(fields, "top_k"),
    )


def _read_inputs(document: Document, fields: dict[str, Node], spec: ModelSpec) -> TensorBatch:
    _refuse_text_only(spec, "inputs")
    node = fields["inputs"]
    if not document.is_object(node):
        raise InvalidInput(
            "inputs", f"is {json_name(node)}; wants an object of name → array; the model's inputs are {_describe(spec)}"
        )
    members = document.members(node, spec.inputs_by_name, within="inputs.")
    values: dict[str, Value] = {}
    for declared in spec.inputs:
        if declared.name in members:
            field = f"inputs.{declared.name}"
            value = read_value(document, members[declared.name], declared.type, field)
            if isinstance(value, np.ndarray):
                check_shape(value.shape, declared.shape, field)
            values[declared.name] = value
        elif declared.required:
            raise InvalidInput(f"inputs.{declared.name}", f"is missing; the model wants {_describe(spec)}")
    return TensorBatch(values, _output_names(document, fields, spec))


def _read_input_data(document: Document, fields: dict[str, Node], spec: ModelSpec) -> tuple[TensorBatch, bool]:
    """The batch, and whether it came as a flat list."""
    _refuse_text_only(spec, "input_data")
    sole = spec.sole_input
    if sole is None or not isinstance(sole.type, TensorType):
        raise InvalidInput(
            "input_data", f"fits a model with exactly one required tensor; send inputs: {_describe(spec)}"
        )
    names = _output_names(document, fields, spec) or spec.first_output
    if len(names) != 1:
        raise InvalidInput("outputs", "input_data is answered with one output; name one, or send inputs instead")
    wanted = sole.type
    batch_size = _count(fields, "batch_size")
    if document.is_object(fields["input_data"]):
        raise InvalidInput("input_data", "is an object; wants numbers, flat or nested (named tensors go in inputs)")
    tensor, flat = read_tensor(document, fields["input_data"], wanted, "input_data")
    if flat and wanted.shape is not None:
        tensor = _reshape_flat(tensor, wanted.shape, batch_size)
    elif batch_size not in (None, tensor.shape[0] if tensor.ndim else 1):
        raise InvalidInput(
            "batch_size", f"is {batch_size}, and input_data has {tensor.shape[0] if tensor.ndim else 1} rows"
        )
    check_shape(tensor.shape, wanted.shape, "input_data")
    return TensorBatch({sole.name: tensor}, names), flat


def _reshape_flat(flat: Array, declared: tuple[int, ...], batch_size: int | None) -> Array:
    """A flat list in the declared shape: one free dimension is solved from the count; with several, `batch_size`
    (default 1) fixes the first and at most one other is solved. Raises InvalidInput where that does not come out even.
    """
    shape = list(declared)
    if declared[0] == -1 and (batch_size is not None or declared.count(-1) > 1):
        shape[0] = batch_size or 1
    free = [i for i, size in enumerate(shape) if size == -1]
    wants = f"the model wants {list(declared)} (-1 is free)"
    if len(free) > 1:
        raise InvalidInput("input_data", f"{wants}; a flat list cannot say that shape: send it nested")
    known = 1
    for size in shape:
        known *= size if size != -1 else 1
    if free:
        if known == 0 or flat.size % known:
            raise InvalidInput("input_data", f"holds {flat.size} values, no multiple of {known}; {wants}")
        shape[free[0]] = flat.size // known
    elif known != flat.size:
        raise InvalidInput("input_data", f"holds {flat.size} values, and shape {shape} takes {known}; {wants}")
    if batch_size is not None and shape[0] != batch_size:
        raise InvalidInput(
            "batch_size", f"is {batch_size}, and the {flat.size} values of input_data are {shape[0]} rows; {wants}"
        )
    return flat.reshape(shape)


def _refuse_text_only(spec: ModelSpec, question: str) -> None:
    if spec.framework == "pytorch":
        raise InvalidInput(question, f"this model's task is {spec.task}; send the field text")


def _output_names(document: Document, fields: dict[str, Node], spec: ModelSpec) -> tuple[str, ...] | None:
    if "outputs" not in fields:
        return None
    node = fields["outputs"]
    names = document.python(node) if document.is_array(node) else None
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise InvalidInput("outputs", f"wants a list of different names out of {', '.join(spec.outputs_by_name)}")
    for name in names:
        if name not in spec.outputs_by_name:
            raise UnknownField.among(name[:200], spec.outputs_by_name, within="outputs.")
    return tuple(names)


def _boolean(fields: dict[str, Node], name: str) -> bool | None:
    value = fields.get(name)
    if value is None and name not in fields:
        return None
    if isinstance(value, bool):
        return value
    raise InvalidInput(name, f"is {json_name(value)}; wants true or false")


def _count(fields: dict[str, Node], name: str) -> int | None:
    if name not in fields:
        return None
    value = fields[name]
    if type(value) is int and 1 <= value < 2**31:
        return value
    came = value if type(value) in (int, float) else json_name(value)
    raise InvalidInput(name, f"is {came}; wants a whole number of 1 or more")


def _describe(spec: ModelSpec) -> str:
    return ", ".join(_describe_one(declared) for declared in spec.inputs)


def _describe_one(declared: ValueSpec) -> str:
    return f"{declared.name}: {declared.type} {list(declared.shape) if declared.shape is not None else ''}".rstrip()
