"""Tensors of models that read files or have a task: BYTES whose elements are files or texts, and predictions as JSON.

Files are base64 where the tensor is in JSON.
"""

from collections.abc import Mapping
from math import prod
from struct import Struct
from typing import Any

import numpy as np
import orjson

from app.protocols.open_inference.datatypes import Raw
from app.protocols.shared.fields.images import check_num_images, decode_image
from app.protocols.shared.json.output import to_json_value
from frameworks.core.errors import InvalidInput
from frameworks.tasks.inputs import build_request
from frameworks.tasks.parameters import check_parameters
from frameworks.tasks.types import TaskAnswer, TaskRequest, TaskSpec
from frameworks.types import Array, ModelSpec

PARAMETERS_INPUT = "parameters"
PREDICTIONS_OUTPUT = "predictions"
IMAGE_INPUT = "image"
FILE_INPUTS = frozenset({IMAGE_INPUT, "audio", "video"})

_JSON_MEMBERS = frozenset({"table", "word_boxes"})
_LENGTH_BYTES = 4
_UNPACK_LENGTH = Struct("<I").unpack_from


def holds_files(name: str, datatype: object, spec: ModelSpec) -> bool:
    """Whether the elements of an input are files, not text in UTF-8."""
    if name not in FILE_INPUTS or datatype != "BYTES":
        return False
    return name in spec.pipeline.inputs if spec.pipeline is not None else name == IMAGE_INPUT and spec.image is not None


def decode_files(buffer: Raw, shape: tuple[int, ...], field: str) -> Array:
    """Decode a binary BYTES tensor of files: each is its length, as 32 bits, and its bytes. Raises InvalidInput."""
    view, end, at = memoryview(buffer), len(buffer), 0
    count = prod(shape)
    check_num_images(count, field)
    files: list[bytes] = []
    for index in range(count):
        start = at + _LENGTH_BYTES
        size = _UNPACK_LENGTH(view, at)[0] if start <= end else 0
        at = start + size
        if start > end or at > end:
            raise InvalidInput(field, f"expected {count} images, got {end} bytes that end within image {index}")
        files.append(bytes(view[start:at]))
    if at != end:
        raise InvalidInput(field, f"expected {at} bytes for {count} images, got {end}")
    return as_objects(files).reshape(shape)


def as_objects(files: list[bytes]) -> Array:
    """Return the files as a flat array of objects."""
    objects = np.empty(len(files), dtype=object)
    objects[:] = files
    return objects


def read_files(value: Array, name: str = IMAGE_INPUT) -> list[bytes]:
    """Return the files of the tensor `name`, of shape [n] or [n, 1]. Raises InvalidInput."""
    field = f"inputs.{name}"
    if not (value.ndim == 1 or (value.ndim == 2 and value.shape[1] == 1)):
        raise InvalidInput(field, f"expected shape [-1] or [-1, 1] (-1 is free), got {list(value.shape)}")
    check_num_images(value.size, field)
    flat = value.reshape(-1).tolist()
    files = [
        each if isinstance(each, bytes) else decode_image(each, f"{field}.data[{index}]")
        for index, each in enumerate(flat)
    ]
    if b"" in files:
        raise InvalidInput(f"{field}.data[{files.index(b'')}]", "expected a file, got an empty one")
    return files


def names_of_inputs(task: TaskSpec) -> dict[str, bool]:
    """Return the names of the inputs of a task, and whether each is required."""
    names = dict.fromkeys((*task.inputs, *task.members))
    return {name: name in task.required for name in names} | {PARAMETERS_INPUT: False}


def read_task(inputs: Mapping[str, Array], task: TaskSpec) -> TaskRequest:
    """Return the request for BYTES tensors of shape [inputs] or [inputs, 1]. Raises InvalidInput, UnknownField."""
    parameters = check_parameters(task, _parameters(inputs.get(PARAMETERS_INPUT)))
    columns = {name: _column(name, value, task) for name, value in inputs.items() if name != PARAMETERS_INPUT}
    if not columns:
        raise InvalidInput("inputs", f"expected {' and '.join(task.required)}, got none of them; send them")
    counts = {name: len(column) for name, column in columns.items()}
    count = max(counts.values())
    for name, number in counts.items():
        if number != count:
            raise InvalidInput(f"inputs.{name}", f"expected {count} elements, as many as of the others, got {number}")
    rows = [{name: column[row] for name, column in columns.items()} for row in range(count)]
    first = next(iter(columns))
    return build_request(task, rows, parameters, [f"inputs.{first}[{row}]" for row in range(count)])


def predictions(answer: TaskAnswer) -> Array:
    """Return the predictions as JSON, an object array [inputs] of str."""
    texts = np.empty(len(answer.predictions), dtype=object)
    for row, prediction in enumerate(answer.predictions):
        texts[row] = orjson.dumps(to_json_value(prediction), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    return texts


def _column(name: str, value: Array, task: TaskSpec) -> list[Any]:
    if name in FILE_INPUTS:
        files = read_files(value, name)
        each = task.files_per_input
        if each == 1:
            return list(files)
        if len(files) % each:
            raise InvalidInput(f"inputs.{name}", f"expected {each} files for each input, got {len(files)}")
        return [files[at : at + each] for at in range(0, len(files), each)]
    texts: list[Any] = value.reshape(-1).tolist()
    if name in _JSON_MEMBERS:
        return [_json(text, f"inputs.{name}[{row}]") for row, text in enumerate(texts)]
    return texts


def _parameters(value: Array | None) -> Any:
    if value is None:
        return None
    if value.size != 1:
        raise InvalidInput(f"inputs.{PARAMETERS_INPUT}", f"expected one JSON object as text, got {value.size} texts")
    return _json(value.reshape(-1)[0], f"inputs.{PARAMETERS_INPUT}")


def _json(text: Any, field: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(field, f"expected JSON as text, got other text ({error})") from None
