"""Put the answers to the requests of a window into columns, in the order of the input."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from extensions.offline.columns import json_field, to_column
from extensions.offline.contract import Generated, RowAnswer, RunFailed, RunModelDescription, Shape, WrongCommand
from frameworks.tasks.types import TaskAnswer
from frameworks.types import ClassifyAnswer, EmbedAnswer, MultiVectorAnswer, SparseAnswer

Array = np.ndarray[Any, Any]
Answers = list[tuple[list[int], RowAnswer]]
"""The positions of rows in the window, and their answer."""

TASK_COLUMNS = {
    "embed": ("embedding",),
    "classify": ("label", "score", "labels", "scores"),
    "generate": ("generated", "finish_reason", "tokens_generated"),
}
"""Task → the columns of its results; a tensor model has one for each output."""
_VECTOR_COLUMNS = {"dense": TASK_COLUMNS["embed"], "multi": ("embeddings",), "sparse": ("indices", "values")}
_PREDICTION = "prediction"

_GENERATED = (
    ("generated", "text", pa.string()),
    ("finish_reason", "finish_reason", pa.string()),
    ("tokens_generated", "tokens_generated", pa.int64()),
)
"""Column, attribute of Generated and type."""


def result_columns(description: RunModelDescription, outputs: list[str] | None, prefix: str) -> list[str]:
    """Return the names of the columns that the run adds."""
    if description.reads:
        names: tuple[str, ...] = (_PREDICTION,)
    elif description.task == "embed":
        names = _VECTOR_COLUMNS[description.vectors]
    else:
        names = TASK_COLUMNS.get(description.task, tuple(outputs or description.outputs))
    return [prefix + name for name in names]


def check_names(schema: pa.Schema, names: list[str]) -> None:
    """Raise WrongCommand where the input has a column with the name of a result."""
    for name in names:
        if name in schema.names:
            raise WrongCommand(f'INPUT: expected no column "{name}", which holds results; say --prefix PREFIX')


def with_results(table: pa.Table, answers: Answers, shapes: Mapping[str, Shape], prefix: str) -> pa.Table:
    """Return the rows that have an answer, with the columns of their results. `shapes`: of the outputs."""
    by_position = {position: (answer, i) for positions, answer in answers for i, position in enumerate(positions)}
    order = sorted(by_position)
    if len(order) < table.num_rows:
        table = table.take(pa.array(order, pa.int64()))
    if not order:
        return table
    rows = [by_position[position] for position in order]
    for field, column in _columns(rows, shapes):
        table = table.append_column(field.with_name(prefix + field.name), column)
    return table


def _columns(rows: list[tuple[RowAnswer, int]], shapes: Mapping[str, Shape]) -> list[tuple[pa.Field, pa.Array]]:
    first = rows[0][0]
    match first:
        case EmbedAnswer():
            return [
                _tensors("embedding", _pick(rows, lambda answer: answer.embeddings), (-1, *first.embeddings.shape[1:]))
            ]
        case MultiVectorAnswer():
            return [_tensors("embeddings", _pick(rows, lambda answer: answer.vectors), None)]
        case SparseAnswer():
            return [
                _tensors("indices", _pick(rows, lambda answer: answer.indices), None),
                _tensors("values", _pick(rows, lambda answer: answer.values), None),
            ]
        case TaskAnswer():
            field = json_field(_PREDICTION)
            return [(field, to_column(field, _pick(rows, lambda answer: answer.predictions)))]
        case ClassifyAnswer():
            return _labels(_pick(rows, lambda answer: answer.predictions))
        case Generated():
            return [
                (pa.field(name, kind), pa.array([getattr(answer, attribute) for answer, _ in rows], kind))
                for name, attribute, kind in _GENERATED
            ]
        case dict():
            return [_tensors(name, _pick_output(rows, name), shapes.get(name)) for name in first]


def _pick(rows: list[tuple[RowAnswer, int]], of: Callable[[Any], Any]) -> list[Any]:
    return [of(answer)[i] for answer, i in rows]


def _pick_output(rows: list[tuple[RowAnswer, int]], name: str) -> list[Any]:
    values = []
    for answer, i in rows:
        assert isinstance(answer, dict)
        value = answer[name]
        if not isinstance(value, np.ndarray | list) or len(value) <= i:
            raise RunFailed(f'output "{name}": expected a value for each row, got less; leave it out with --outputs')
        values.append(value[i])
    return values


def _labels(predictions: list[list[tuple[str, float]]]) -> list[tuple[pa.Field, pa.Array]]:
    columns: list[tuple[str, pa.DataType, list[Any]]] = [
        ("label", pa.string(), [row[0][0] if row else None for row in predictions]),
        ("score", pa.float32(), [row[0][1] if row else None for row in predictions]),
        ("labels", pa.list_(pa.string()), [[label for label, _ in row] for row in predictions]),
        ("scores", pa.list_(pa.float32()), [[score for _, score in row] for row in predictions]),
    ]
    return [(pa.field(name, kind), pa.array(values, kind)) for name, kind, values in columns]


def _tensors(name: str, rows: list[Any], shape: Shape) -> tuple[pa.Field, pa.Array]:
    """Return the column of an output: scalars, lists of fixed size where the model declares it, or JSON."""
    if not all(isinstance(row, np.ndarray | np.generic | str) for row in rows):
        return json_field(name), pa.array([orjson.dumps(row, option=_NUMPY).decode() for row in rows], pa.string())
    first = np.asarray(rows[0])
    kind = pa.string() if first.dtype.kind in "OU" else pa.from_numpy_dtype(first.dtype)
    is_fixed = shape is not None and len(shape) == first.ndim + 1 and -1 not in shape[1:] and kind != pa.string()
    if is_fixed or first.ndim == 0:
        values = np.stack(rows)
        column = pa.array(values.reshape(-1), kind)
        for size in reversed(values.shape[1:]):
            column = pa.FixedSizeListArray.from_arrays(column, size)
        return pa.field(name, column.type), column
    for _ in range(first.ndim):
        kind = pa.list_(kind)
    return pa.field(name, kind), pa.array([np.asarray(row).tolist() for row in rows], kind)


_NUMPY = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
