"""Read requests of tasks: `text`, `image`, `audio` and `video` of an /infer body with their `parameters`."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson

from app.protocols.native.fields import COMMON_FIELDS, FILE_INPUTS, PARAMETERS
from app.protocols.shared.fields.media import check_num_files, decode_file
from app.protocols.shared.json.body import Document, Node
from frameworks.core.errors import InvalidInput
from frameworks.media.kinds import Kind
from frameworks.tasks.inputs import build_request
from frameworks.tasks.parameters import check_parameters
from frameworks.tasks.types import TaskRequest, TaskSpec
from frameworks.types import ModelSpec

_NO_PARAMETERS = COMMON_FIELDS | {PARAMETERS, "text"}


def read_task(document: Document, fields: dict[str, Node], spec: ModelSpec) -> TaskRequest:
    """Read the inputs and the parameters of a body. Raises InvalidInput, UnknownField."""
    assert spec.pipeline is not None
    values = {name: document.python(node) for name, node in fields.items() if name not in COMMON_FIELDS}
    parameters = check_parameters(spec.pipeline, values.pop(PARAMETERS, None))
    return task_request(spec.pipeline, values, parameters)


def read_task_files(field: str, files: Sequence[bytes], options: Mapping[str, Any], spec: ModelSpec) -> TaskRequest:
    """Build the request for files of the field `image`, `audio` or `video`. `options`: `parameters` and `text` as JSON.

    Raises InvalidInput, UnknownField.
    """
    assert spec.pipeline is not None
    given = options.get(PARAMETERS, "{}")
    try:
        # Its length is bounded where a form or a query is read.
        named = orjson.loads(given)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(PARAMETERS, f"expected a JSON object as text, got other text ({error})") from None
    if isinstance(named, dict):
        plain = {name: value for name, value in options.items() if name not in _NO_PARAMETERS}
        named = {**plain, **named}
    parameters = check_parameters(spec.pipeline, named)
    values: dict[str, Any] = {field: list(files) if len(files) != 1 else files[0]}
    if "text" in options:
        values["text"] = _text_of_file(spec.pipeline, options["text"])
    return task_request(spec.pipeline, values, parameters)


def _text_of_file(task: TaskSpec, text: str) -> Any:
    """Return the text beside a file: JSON where the task reads an object of texts. Raises InvalidInput."""
    if not task.members or "text" in task.reads:
        return text
    try:
        given = orjson.loads(text)
    except orjson.JSONDecodeError:
        given = None
    # A list has one object for each file.
    objects = given if isinstance(given, list) else [given]
    if not all(isinstance(each, dict) for each in objects):
        raise InvalidInput(
            "text", f"expected a JSON object as text with {' and '.join(task.members)}, got another text"
        )
    return given


def task_request(task: TaskSpec, values: Mapping[str, Any], parameters: dict[str, Any]) -> TaskRequest:
    """Return the request for the input fields of a body. Raises InvalidInput, UnknownField."""
    for name in values:
        if name not in task.inputs and name != "text":
            raise InvalidInput(name, f"expected {_fields_of(task)} for a model of task {task.name}; remove it")
    splits = parameters.get("is_split_into_words") is True
    columns = {name: _column(task, name, value, splits) for name, value in values.items()}
    if not columns:
        field = (*task.inputs, "text")[0]
        raise InvalidInput(field, f"expected {_fields_of(task)} for a model of task {task.name}, got nothing; send it")
    counts = {name: len(column) for name, column in columns.items()}
    count = max(counts.values())
    for name, number in counts.items():
        if number != count:
            raise InvalidInput(name, f"expected {count} values, as many as of the other fields, got {number}")
    inputs: list[dict[str, Any]] = []
    for number in range(count):
        one: dict[str, Any] = {}
        for name, column in columns.items():
            value = column[number]
            one |= value if isinstance(value, dict) else {name: value}
        inputs.append(one)
    first = next(iter(columns))
    is_list = isinstance(values[first], list) and count > 1
    return build_request(task, inputs, parameters, [f"{first}[{i}]" if is_list else first for i in range(count)])


def _fields_of(task: TaskSpec) -> str:
    """Name the fields of a body, for an error message."""
    texts = [name for name in task.members if name in task.required]
    named = [*task.inputs, *([f"text with {' and '.join(texts)}"] if texts else [])]
    return " and ".join(named)


def _column(task: TaskSpec, name: str, value: Any, splits: bool) -> list[Any]:
    """Return the values of a field, one for each input. `splits`: a text is a list of words."""
    if name not in FILE_INPUTS:
        is_one = not isinstance(value, list) or (splits and not any(isinstance(each, list) for each in value))
        return [value] if is_one else value
    given = value if isinstance(value, list) else [value]
    kind = cast("Kind", name)
    if task.files_per_input == 1:
        check_num_files(len(given), kind, name)
        is_list = isinstance(value, list) and len(given) > 1
        return [_file(each, kind, f"{name}[{i}]" if is_list else name) for i, each in enumerate(given)]
    groups = given if all(isinstance(each, list) for each in given) else [given]
    for i, group in enumerate(groups):
        if len(group) != task.files_per_input:
            raise InvalidInput(
                f"{name}[{i}]", f"expected {task.files_per_input} files for each input, got {len(group)}"
            )
    check_num_files(len(groups) * task.files_per_input, kind, name)
    return [[_file(each, kind, f"{name}[{i}][{j}]") for j, each in enumerate(group)] for i, group in enumerate(groups)]


def _file(value: Any, kind: Kind, field: str) -> bytes:
    """Return a file: one that is bytes already, or base64 of JSON. Raises InvalidInput."""
    if value == b"":
        raise InvalidInput(field, "expected a file, got an empty one")
    return value if isinstance(value, bytes) else decode_file(value, kind, field)
