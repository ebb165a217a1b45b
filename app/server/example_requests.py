"""Make a curl line for each task of the loaded models, with an input that suits the model."""

import json
import shlex
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

from app.inference.unnamed_model import kind_of
from frameworks.models.versions.slot import ModelSlot
from frameworks.tasks.types import TaskSpec
from frameworks.types import ModelSpec, OptionalType, TensorType, ValueSpec

_TEXT = "A roundhouse is where engines wait."
_OTHER_TEXT = "Locomotives are kept in a shed."
_MASKED_TEXT = "A roundhouse is where [MASK] wait."
_LABELS = ("railways", "bread")
_QUESTION = "Where do engines wait?"
_MAX_TOKENS = 40
_MAX_SHOWN_ELEMENTS = 64
"""The line of a longer tensor computes it, in place of writing it out."""
_MAX_CHARACTERS = 2000
_SEQUENCE_LENGTH = 4
_WHOLE_SEQUENCE = {"id": 1, "start": True, "end": True}
"""The only step of a sequence."""
_IMAGE_SIDE = 32
_JSON = "-H 'content-type: application/json'"


@dataclass(frozen=True, slots=True)
class Caller:
    """How a client reaches the server. `url`: without a slash at its end. `options`: of curl, for keys and TLS."""

    url: str
    options: tuple[str, ...] = ()

    def get(self, path: str) -> str:
        """Return the line of a GET request."""
        return " ".join(("curl -s", *self.options, self.url + path))

    def post(self, path: str, body: str) -> str:
        """Return the line of a request. `body`: the argument of -d, quoted for a shell."""
        return " ".join(("curl -s", *self.options, self.url + path, _JSON, "-d", body))


def curl_lines(slots: Iterable[ModelSlot], caller: Caller) -> list[str]:
    """Return a line for each task that a loaded model has, with the first model of that task."""
    found: dict[str, str] = {}
    for slot in slots:
        if slot.spec is None:
            continue
        task = slot.framework if slot.spec.is_composite else task_of(slot.spec)
        if task not in found and (line := _line_of(slot, slot.spec, caller)) and len(line) <= _MAX_CHARACTERS:
            found[task] = line
    return list(found.values())


def task_of(spec: ModelSpec) -> str:
    """Return `chat`, `completion`, `embed`, `rerank`, `classify`, `image`, `tensor`, or the name of another task."""
    if spec.pipeline is not None:
        return spec.task
    if spec.generation is not None:
        return "chat" if spec.generation.has_chat_template else "completion"
    return kind_of(spec) or ("tensor" if spec.image is None else "image")


def _line_of(slot: ModelSlot, spec: ModelSpec, caller: Caller) -> str | None:
    """Return the line of one model; None for inputs that a short line cannot hold."""
    name = slot.name
    match task_of(spec):
        case "chat":
            messages = [{"role": "user", "content": _QUESTION}]
            path, body = "/v1/chat/completions", {"model": name, "messages": messages, "max_tokens": _MAX_TOKENS}
        case "completion":
            path, body = "/v1/completions", {"model": name, "prompt": _TEXT, "max_tokens": _MAX_TOKENS}
        case "embed":
            path, body = "/v1/embeddings", {"model": name, "input": [_TEXT, _OTHER_TEXT]}
        case "rerank":
            path, body = "/v1/rerank", {"model": name, "query": _QUESTION, "documents": [_TEXT, _OTHER_TEXT]}
        case "classify":
            path, body = "/infer", {"model_name": name, "text": _TEXT}
        case "image":
            path, body = "/infer", {"model_name": name, "image": _image()}
        case _ if spec.pipeline is not None:
            given = _task_body(spec.pipeline)
            if given is None:
                return None
            path, body = f"/models/{name}/infer", given
        case _:
            return _tensor_line(slot, spec, caller)
    return caller.post(path, shlex.quote(json.dumps(body)))


def _task_body(task: TaskSpec) -> dict[str, Any] | None:
    """Return the body of a request for a task; None for a task whose inputs are too long for a line."""
    texts = {"question": _QUESTION, "context": _TEXT, "query": _QUESTION, "table": {"engine": ["one"], "wheels": ["8"]}}
    members = {name: texts[name] for name in task.required if name in texts}
    if task.files_per_input > 1 or not set(task.required) <= {"text", "image", *texts}:
        return None
    body: dict[str, Any] = {"text": members} if members else {}
    if "text" in task.required:
        body["text"] = _MASKED_TEXT if task.name == "fill-mask" else _TEXT
    if "image" in task.required:
        body["image"] = _image()
    if any(each.name == "candidate_labels" for each in task.parameters):
        body["parameters"] = {"candidate_labels": list(_LABELS)}
    return body


def _tensor_line(slot: ModelSlot, spec: ModelSpec, caller: Caller) -> str | None:
    required = [declared for declared in spec.inputs if declared.required]
    shapes = {declared.name: _shape_of(declared, slot, spec) for declared in required}
    tensors = {declared.name: _element_of(declared) for declared in required}
    if None in shapes.values() or None in tensors.values():
        return None
    known = {name: shape for name, shape in shapes.items() if shape is not None}
    if sum(map(prod, known.values())) <= _MAX_SHOWN_ELEMENTS:
        values = {name: _nested(tensors[name], shape) for name, shape in known.items()}
        sole = spec.sole_input
        given: dict[str, Any] = {"inputs": values} if sole is None else {"input_data": values[sole.name]}
        if spec.state is not None:
            given["sequence"] = _WHOLE_SEQUENCE
        return caller.post("/infer", shlex.quote(json.dumps({"model_name": slot.name} | given)))
    # Written as Python, which repeats the element.
    tensor_texts = [
        f'{name!r}: {{"data": [{tensors[name]!r}] * {prod(shape)}, "shape": {list(shape)}}}'
        for name, shape in known.items()
    ]
    sequence = "" if spec.state is None else f', "sequence": {_WHOLE_SEQUENCE!r}'
    body = f'{{"model_name": {slot.name!r}, "inputs": {{{", ".join(tensor_texts)}}}{sequence}}}'
    program = shlex.quote(f"import json; print(json.dumps({body}))")
    return f"python3 -c {program} | {caller.post('/infer', '@-')}"


def _shape_of(declared: ValueSpec, slot: ModelSlot, spec: ModelSpec) -> tuple[int, ...] | None:
    """Return the shape as at warm-up: free dimensions are 1, those of sequences a few. None: a list or a map."""
    shape = declared.shape
    given = getattr(slot.entry, "input_shape", None)
    if given is not None and declared is spec.inputs[0]:
        shape = tuple(given)
    if shape is None:
        return (1,) if isinstance(declared.type, TensorType) else None
    sequence = spec.sequence
    axis = sequence.axis % len(shape) if sequence is not None and declared.name in sequence.pad_values else None
    return tuple(size if size >= 0 else _SEQUENCE_LENGTH if i == axis else 1 for i, size in enumerate(shape))


def _element_of(declared: ValueSpec) -> Any:
    """Return a value that the model accepts in each place; None where the input holds a list or a map."""
    kind = declared.type.inner if isinstance(declared.type, OptionalType) else declared.type
    if not isinstance(kind, TensorType):
        return None
    return {"string": _TEXT, "bool": False}.get(kind.dtype, 0)


def _nested(element: Any, shape: tuple[int, ...]) -> Any:
    return element if not shape else [_nested(element, shape[1:]) for _ in range(shape[0])]


def _image() -> str:
    """Return a small PNG of one orange, in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" + b"\xff\x8c\x00" * _IMAGE_SIDE
    header = struct.pack(">IIBBBBB", _IMAGE_SIDE, _IMAGE_SIDE, 8, 2, 0, 0, 0)
    pixels = zlib.compress(row * _IMAGE_SIDE, 9)
    return b64encode(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    ).decode()
