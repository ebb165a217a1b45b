"""Step 1, DECODE: the body of /infer → a request for one model. Synchronous: a parsed body lives only within it."""

from typing import NamedTuple

import numpy as np

from app.inference.pipeline import FindSpec, no_timeout_ms
from app.protocols import json_body
from app.protocols.codec import Target
from app.protocols.json_body import Document, Node, describe_type
from app.protocols.json_reading import SHORT_BYTES, read_document
from app.protocols.json_tensors import narrow
from app.protocols.native.fields import COMMON_FIELDS, FIELDS, GENERATION_INPUTS, INPUT_FIELDS, OPTIONS
from app.protocols.native.generation import read_generation
from app.protocols.native.inputs import read_count, read_input_data, read_inputs, read_text
from frameworks.errors import InvalidInput, VersionNotFound
from frameworks.generation.types import GenerateRequest
from frameworks.types import (
    DEFAULT_PRIORITY,
    LAST_PRIORITY,
    ModelSpec,
    TensorBatch,
    TensorType,
    TextRequest,
)

# Fields that were found to go together, in their order → the question: callers ask in the same words again and again.
_questions: dict[tuple[str, ...], str] = {}
_MOST_QUESTIONS = 256


class NativeRequest(NamedTuple):
    """What was asked, and in which form the answer mirrors it.

    `spec`: of the model that it is for. `flat`: input_data came as a flat list. `timeout_ms` None: the caller named no
    deadline.
    """

    question: str
    request: TensorBatch | TextRequest | GenerateRequest
    spec: ModelSpec
    flat: bool = False
    priority: int = DEFAULT_PRIORITY
    timeout_ms: int | None = None
    stream: bool = False


def decode(body: bytes, target: Target, find_spec: FindSpec) -> NativeRequest:
    """Reads a body for the model that path or body name.

    `find_spec(name, version)` is asked as soon as the name is known, before any tensor is decoded, and raises what
    keeps the model from answering; it is asked for "", the one that generates text, where `prompt` or `messages` come
    without a name. Raises InvalidJson, InvalidInput, UnknownField.
    """
    if len(body) < SHORT_BYTES and body.startswith(b"{") and body.count(b"[") == 1:
        request = _decode_flat(body, target, find_spec)
        if request is not None:
            return request
    return read_document(body, lambda document: _read(document, target, find_spec))


def _decode_flat(body: bytes, target: Target, find_spec: FindSpec) -> NativeRequest | None:
    """Decode the most common body, a flat `input_data` with or without `model_name`, in a third of the time.

    `body` has one bracket, so no nested array. Returns None for all other bodies, and for bodies that have to be
    refused, for which `_read` has the error messages.
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
    spec = find_spec(model, target.version, no_timeout_ms)
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


def _read(document: Document, target: Target, find_spec: FindSpec) -> NativeRequest:
    if not document.is_object(document.root):
        raise InvalidInput("body", f"is {describe_type(document.root)}; wants a JSON object")
    fields = document.members(document.root, FIELDS)
    names = tuple(fields)
    question = _questions.get(names)
    spec = _find_spec(fields, target, find_spec)
    if question is None:
        question = _question_of(names)
        if len(_questions) < _MOST_QUESTIONS:
            _questions[names] = question
    flat = stream = False
    request: TensorBatch | TextRequest | GenerateRequest
    match question:
        case "text":
            request = read_text(document, fields, spec)
        case "inputs":
            request = read_inputs(document, fields, spec)
        case "prompt" | "messages":
            request, stream = read_generation(document, fields, spec, question)
        case _:
            request, flat = read_input_data(document, fields, spec)
    if len(names) == 1:
        return NativeRequest(question, request, spec, flat)
    priority = read_count(fields, "priority") or DEFAULT_PRIORITY
    if priority > LAST_PRIORITY:
        raise InvalidInput("priority", f"is {priority}; wants a whole number from 1 (first) to {LAST_PRIORITY}")
    return NativeRequest(question, request, spec, flat, priority, read_count(fields, "timeout_ms"), stream)


def _question_of(names: tuple[str, ...]) -> str:
    """The question that a body with these fields asks. Raises InvalidInput where they do not go together."""
    questions = [name for name in INPUT_FIELDS if name in names]
    if len(questions) != 1:
        came = " and ".join(questions) or "none of them came"
        raise InvalidInput(
            questions[-1] if questions else "input_data",
            f"exactly one of {', '.join(INPUT_FIELDS)} is wanted; {came}",
        )
    question = questions[0]
    for name in names:
        if name not in OPTIONS[question] and name not in COMMON_FIELDS and name != question:
            raise InvalidInput(
                name, f"does not go with {question}, whose options are {', '.join(sorted(OPTIONS[question]))}"
            )
    return question


def _find_spec(fields: dict[str, Node], target: Target, find_spec: FindSpec) -> ModelSpec:
    try:
        return find_spec(*_name_and_version(fields, target), lambda: read_count(fields, "timeout_ms"))
    except VersionNotFound as error:
        if target.version is not None:
            raise
        # As a field of the body this is a wrong value.
        raise InvalidInput("version", error.message) from None


def _name_and_version(fields: dict[str, Node], target: Target) -> tuple[str, str | None]:
    if target.model is not None and "model_name" not in fields and "version" not in fields:
        return target.model, target.version
    name, version = fields.get("model_name"), fields.get("version")
    for field, value, in_path in (("model_name", name, target.model), ("version", version, target.version)):
        if field in fields and not isinstance(value, str):
            raise InvalidInput(field, f"is {describe_type(value)}; wants a string")
        if in_path is not None and value not in (None, in_path):
            raise InvalidInput(
                field, f'is "{value[:200]}", and the path names "{in_path[:200]}"; leave one of them out'
            )
    model = target.model or name
    if model is None and not GENERATION_INPUTS.isdisjoint(fields):
        return "", version
    if not model:
        raise InvalidInput("model_name", "is missing; name the model here or post to /models/{name}/infer")
    return model, target.version or version
