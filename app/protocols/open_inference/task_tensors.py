"""Inputs and outputs of models with a task: a BYTES tensor for each field, and JSON for each prediction."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from app.protocols.open_inference.image_tensors import FILE_INPUTS, read_files
from app.protocols.shared.json.output import to_json_value
from frameworks.core.errors import InvalidInput
from frameworks.tasks.inputs import build_request
from frameworks.tasks.parameters import check_parameters
from frameworks.tasks.types import TaskAnswer, TaskRequest, TaskSpec
from frameworks.types import Array

PARAMETERS_INPUT = "parameters"
PREDICTIONS_OUTPUT = "predictions"

_JSON_MEMBERS = frozenset({"table", "word_boxes"})


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
