"""Make request bodies from the description of a model, or read them from a file."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from app.cli.failures import unusable
from extensions.load_test.inputs.images import image_request, reads_images
from extensions.load_test.inputs.tensors import CannotMake, Made, inputs_of, native_tensor, text

MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_MADE_BYTES = 256 * 1024 * 1024
"""Of all made bodies together. Beyond it, fewer different ones are made."""

_JSON = (("content-type", "application/json"),)
_BINARY_TYPE = ("content-type", "application/octet-stream")
_JSON_BYTES = "inference-header-content-length"


@dataclass(frozen=True, slots=True)
class RequestContent:
    """The body of one request. `is_streamed`: it asks for a response in pieces. `headers`: describe the body."""

    content: bytes
    is_streamed: bool = False
    is_generation: bool = False
    headers: tuple[tuple[str, str], ...] = _JSON


def made_bodies(
    protocol: str, model: str, description: dict[str, Any], made: Made, encoding: str = "json"
) -> list[RequestContent]:
    """Return bodies of different random inputs. `description`: of the model; empty for OpenAI protocols.

    `encoding`: that of the target. Raises CannotMake.
    """
    draw = random.Random(made.seed)  # noqa: S311 - no secret
    bodies: list[RequestContent] = []
    size = 0
    while len(bodies) < made.distinct and size < MAX_MADE_BYTES:
        body = _made(protocol, model, description, made, draw)
        bodies.append(_written(body, model, encoding) if isinstance(body, dict) else body)
        size += len(bodies[-1].content)
    return bodies


def bodies_of_file(file: Path, protocol: str, model: str, encoding: str = "json") -> list[RequestContent]:
    """Read JSON Lines: one body a line. OpenAI bodies without a model get this one. Raises ValueError.

    `encoding`: that of the target, into which the bodies are converted.
    """
    bodies = []
    for number, line in enumerate(_content(file).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            body = _decoded(line)
            # The server judges JSON, also wrong requests.
            is_json = encoding == "json"
            bodies.append(_checked(body, protocol, model) if is_json else _written(body, model, encoding))
        except ValueError as error:
            raise ValueError(f"--input: line {number}: {error}") from None
    if not bodies:
        raise ValueError("--input: expected one JSON object a line, got an empty file")
    return bodies


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            # Not by its size, which a pipe does not have.
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"--input: expected a file of JSON Lines, got {unusable(file, error)}; correct it") from None
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"--input: expected a file of at most {MAX_FILE_BYTES} bytes, got a larger one")
    return content


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"expected JSON, got {error}") from None
    if not isinstance(body, dict):
        raise ValueError("expected a JSON object, got another value")
    return body


def _checked(body: dict[str, Any], protocol: str, model: str) -> RequestContent:
    is_openai = protocol.startswith("openai")
    if is_openai:
        body = {"model": model} | body
    is_streamed = body.get("stream") is True
    if is_openai and is_streamed:
        body.setdefault("stream_options", {"include_usage": True})
    is_generation = protocol in {"openai-chat", "openai-completions"} or "prompt" in body or "messages" in body
    return RequestContent(orjson.dumps(body), is_streamed, is_generation)


def _made(
    protocol: str, model: str, description: dict[str, Any], made: Made, draw: random.Random
) -> RequestContent | dict[str, Any]:
    """Return a body, or the JSON form of a request that has other encodings too."""
    if protocol in {"v2", "grpc"}:
        from extensions.load_test.inputs.open_inference import made_request

        return made_request(description, made, draw)
    texts = [text(made, draw) for _ in range(made.rows)]
    if protocol == "openai-embeddings":
        return RequestContent(orjson.dumps({"model": model, "input": texts}))
    if protocol == "openai-chat":
        return _generation({"model": model, "messages": [{"role": "user", "content": texts[0]}]}, made, is_openai=True)
    if protocol == "openai-completions":
        return _generation({"model": model, "prompt": texts[0]}, made, is_openai=True)
    if reads_images(description, made):
        content, kind = image_request(made, draw)
        return RequestContent(content, headers=(("content-type", kind),))
    task = description.get("task")
    if task == "generate":
        return _generation({"prompt": texts[0]}, made, is_openai=False)
    if task in {"embed", "classify"}:
        return RequestContent(orjson.dumps({"text": texts}))
    if task == "tensor":
        inputs = dict(native_tensor(each, made, draw) for each in inputs_of(description))
        return RequestContent(orjson.dumps({"inputs": inputs}))
    raise CannotMake(f'--model: expected task tensor, embed, classify or generate, got "{task}"; give --input FILE')


def _written(request: dict[str, Any], model: str, encoding: str) -> RequestContent:
    """Write a request of the Open Inference Protocol. Raises CannotMake, ValueError."""
    from extensions.load_test.inputs.open_inference import binary_request, json_request

    if encoding == "protobuf":
        from extensions.load_test.inputs.grpc_messages import infer_request

        return RequestContent(infer_request(request, model), headers=())
    if encoding == "binary":
        content, json_bytes = binary_request(request)
        return RequestContent(content, headers=(_BINARY_TYPE, (_JSON_BYTES, str(json_bytes))))
    return RequestContent(json_request(request))


def _generation(body: dict[str, Any], made: Made, is_openai: bool) -> RequestContent:
    body["max_tokens"] = made.max_tokens
    if made.is_streamed:
        body["stream"] = True
        if is_openai:
            body["stream_options"] = {"include_usage": True}
    return RequestContent(orjson.dumps(body), made.is_streamed, is_generation=True)
