"""Make request bodies from the description of a model, or read them from a file."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

MAX_FILE_BYTES = 256 * 1024 * 1024
_MAX_VALUES = 1 << 22

_TEXT = (
    "a about after all also an and any are as at be because been before between but by can city could day do down each "
    "early even every few find first for from get give good great had has have he her here high his how if in into is "
    "it its just know large last late like line little long made make many may means more most much must new no not "
    "now number of off old on one only open or other our out over own paper part people place point right river same "
    "say see set she should show side small so some state still stone street such take tell than that the their them "
    "then there these they thing think this those through time to today town two under up use very water way we well "
    "were what when where which while will winter with wood word work world would write year you young"
)
_WORDS = _TEXT.split()

# Zero and one are valid in token ids, masks and segment ids of every vocabulary.
_MAX_INTEGER = 1
_FLOATS = frozenset({"float16", "float32", "float64", "bfloat16", "fp16", "fp32", "fp64", "bf16"})
_STRINGS = frozenset({"string", "bytes"})
_V2_NAMES = {"BF16": "FP32"}


class CannotMake(Exception):
    """No input can be made from this description; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Made:
    """How inputs are made. `rows`: texts or rows of tensors of a request. `length`: of every other free dimension.

    `words`: fewest and most words of a text. `distinct`: number of different requests.
    """

    rows: int = 1
    length: int = 16
    words: tuple[int, int] = (8, 32)
    max_tokens: int = 32
    is_streamed: bool = True
    distinct: int = 64
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Body:
    """The body of one request. `is_streamed`: it asks for server-sent events."""

    content: bytes
    is_streamed: bool = False
    is_generation: bool = False


def made_bodies(protocol: str, model: str, description: dict[str, Any], made: Made) -> list[Body]:
    """Return bodies of different random inputs. `description`: of the model; empty for OpenAI protocols.

    Raises CannotMake.
    """
    draw = random.Random(made.seed)  # noqa: S311 - no secret
    return [_body(protocol, model, description, made, draw) for _ in range(made.distinct)]


def bodies_of_file(file: Path, protocol: str, model: str) -> list[Body]:
    """Read JSON Lines: one body a line. OpenAI bodies without a model get this one. Raises OSError, ValueError."""
    size = file.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ValueError(f"--input: expected a file of at most {MAX_FILE_BYTES} bytes, got {size}")
    bodies = [_checked(number, line, protocol, model) for number, line in _lines(file)]
    if not bodies:
        raise ValueError("--input: expected one JSON object a line, got an empty file")
    return bodies


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, line


def _checked(number: int, line: bytes, protocol: str, model: str) -> Body:
    try:
        body = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"--input: line {number}: expected JSON, got {error}") from None
    if not isinstance(body, dict):
        raise ValueError(f"--input: line {number}: expected a JSON object, got another value")
    is_openai = protocol.startswith("openai")
    if is_openai:
        body = {"model": model} | body
    is_streamed = body.get("stream") is True
    if is_openai and is_streamed:
        body.setdefault("stream_options", {"include_usage": True})
    is_generation = protocol in {"openai-chat", "openai-completions"} or "prompt" in body or "messages" in body
    return Body(orjson.dumps(body), is_streamed, is_generation)


def _body(protocol: str, model: str, description: dict[str, Any], made: Made, draw: random.Random) -> Body:
    texts = [_text(made, draw) for _ in range(made.rows)]
    if protocol == "openai-embeddings":
        return Body(orjson.dumps({"model": model, "input": texts}))
    if protocol == "openai-chat":
        return _generation({"model": model, "messages": [{"role": "user", "content": texts[0]}]}, made, is_openai=True)
    if protocol == "openai-completions":
        return _generation({"model": model, "prompt": texts[0]}, made, is_openai=True)
    if protocol == "v2":
        return Body(orjson.dumps({"inputs": [_v2_tensor(each, made, draw) for each in _inputs_of(description)]}))
    task = description.get("task")
    if task == "generate":
        return _generation({"prompt": texts[0]}, made, is_openai=False)
    if task in {"embed", "classify"}:
        return Body(orjson.dumps({"text": texts}))
    if task == "tensor":
        return Body(
            orjson.dumps({"inputs": dict(_native_tensor(each, made, draw) for each in _inputs_of(description))})
        )
    raise CannotMake(f'--model: expected task tensor, embed, classify or generate, got "{task}"; give --input FILE')


def _generation(body: dict[str, Any], made: Made, is_openai: bool) -> Body:
    body["max_tokens"] = made.max_tokens
    if made.is_streamed:
        body["stream"] = True
        if is_openai:
            body["stream_options"] = {"include_usage": True}
    return Body(orjson.dumps(body), made.is_streamed, is_generation=True)


def _text(made: Made, draw: random.Random) -> str:
    return " ".join(draw.choices(_WORDS, k=draw.randint(*made.words)))


def _inputs_of(description: dict[str, Any]) -> list[dict[str, Any]]:
    inputs = description.get("inputs")
    is_list = isinstance(inputs, list) and all(
        isinstance(each, dict) and isinstance(each.get("name"), str) for each in inputs
    )
    if not inputs or not is_list:
        raise CannotMake("--model: expected a model that describes its inputs, got none; give --input FILE")
    return list(inputs)


def _native_tensor(tensor: dict[str, Any], made: Made, draw: random.Random) -> tuple[str, dict[str, Any]]:
    shape = _shape(tensor, made)
    dtype = str(tensor.get("dtype"))
    return tensor["name"], {"data": _values(tensor["name"], dtype, shape, made, draw), "shape": shape}


def _v2_tensor(tensor: dict[str, Any], made: Made, draw: random.Random) -> dict[str, Any]:
    shape = _shape(tensor, made)
    datatype = str(tensor.get("datatype"))
    data = _values(tensor["name"], datatype, shape, made, draw)
    # JSON has no form for BF16 that all servers read.
    return {"name": tensor["name"], "shape": shape, "datatype": _V2_NAMES.get(datatype, datatype), "data": data}


def _shape(tensor: dict[str, Any], made: Made) -> list[int]:
    """Fill the free dimensions: the first with the rows, the others with the length."""
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        raise CannotMake(f'--model: expected a shape of input "{tensor["name"]}", got none; give --input FILE')
    sizes = [size if size >= 0 else (made.length if place else made.rows) for place, size in enumerate(shape)]
    count = 1
    for size in sizes:
        count *= size
    if count > _MAX_VALUES:
        raise CannotMake(f'--model: expected at most {_MAX_VALUES} values of "{tensor["name"]}", got {count}')
    return sizes


def _values(name: str, dtype: str, shape: list[int], made: Made, draw: random.Random) -> list[Any]:
    count = 1
    for size in shape:
        count *= size
    dtype = dtype.lower()
    if dtype in _FLOATS:
        return [round(draw.random(), 4) for _ in range(count)]
    if dtype in _STRINGS:
        return [_text(made, draw) for _ in range(count)]
    if dtype == "bool":
        return [draw.random() < 0.5 for _ in range(count)]
    if dtype.startswith(("int", "uint")):
        return [draw.randint(0, _MAX_INTEGER) for _ in range(count)]
    raise CannotMake(f'--model: expected numbers, texts or booleans as input "{name}", got {dtype}; give --input FILE')
