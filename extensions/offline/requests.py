"""Turn a window of rows into requests of the native API. Rows of similar length share a request."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from extensions.offline.columns import UNREADABLE, is_json, is_text, to_values
from extensions.offline.contract import MEDIA, PreparedRows, RowRequest, RunModelDescription, Shape, WrongCommand
from extensions.offline.conversation_images import MESSAGES
from extensions.offline.conversations import (
    PROMPT,
    ConversationRows,
    check_columns,
    explain_images,
    holds_files,
)
from extensions.offline.media import MediaRows, check_column
from extensions.offline.output.writers import python_values

_JSON_MEMBERS = ("table", "word_boxes")
"""Members that are no text."""
_SAY_MESSAGES = "say --columns messages=COLUMN for conversations"


@dataclass(frozen=True, slots=True)
class RowSource:
    """The columns that the model reads, and the options of all requests.

    `column`: of texts or files; "" for tensors and for inputs of several members. `inputs`: input name → column of its
    tensor, or member → column. `field`: of the body: `text`, `prompt`, `messages`, `inputs`, or that of files.
    `root`: the folder of paths; None for texts, for a column with the files themselves, and for conversations whose
    paths are in `folders`, those of the input files.
    """

    column: str
    inputs: Mapping[str, str]
    field: str
    options: Mapping[str, Any]
    root: Path | None = None
    folders: tuple[Path, ...] = ()

    @property
    def reads_files(self) -> bool:
        return self.field in MEDIA

    @property
    def may_read_files(self) -> bool:
        """Whether rows may name files, or hold them."""
        return self.reads_files or self.field == MESSAGES

    def check(self, schema: pa.Schema) -> None:
        """Raise WrongCommand for columns that are absent, or cannot hold texts."""
        for name in [self.column] if self.column else self.inputs.values():
            if name not in schema.names:
                names = ", ".join(schema.names)
                raise WrongCommand(f'column: expected one of {names}, got "{name}"; name a column of INPUT')
        if self.field == MESSAGES:
            check_columns(schema, self.inputs)
        elif self.reads_files:
            check_column(schema, self.column, self.root)
        elif self.column:
            column = schema.field(self.column)
            if not is_text(column):
                remedy = _SAY_MESSAGES if self.field == PROMPT else "name another column"
                raise WrongCommand(
                    f'column: expected a column of texts, got "{self.column}" of {column.type}; {remedy}'
                )

    def prepare(self, table: pa.Table, description: RunModelDescription, file: int = 0) -> PreparedRows:
        """Read the columns of a window. `file`: the index of its input file."""
        if self.field == MESSAGES:
            folder = self.folders[file] if self.root is None else self.root
            return ConversationRows(table, self.inputs, folder, description, self.options)
        if self.reads_files:
            return MediaRows(table, self.column, self.root, self.field, self.options)
        if self.column:
            return TextRows(to_values(table, self.column), self.field, self.options)
        if self.field == "text":
            return MemberRows(table, self.inputs, self.options)
        return TensorRows(table, self.inputs, description.inputs, self.options)

    def explain(self, table: pa.Table, position: int, reason: str) -> str:
        """Return the reason why a row is bad, with the path of its file."""
        if self.field == MESSAGES:
            return explain_images(self.inputs, reason)
        if self.root is None:
            return reason
        return f'{reason} ("{table.column(self.column)[position].as_py()}")'

    def kept(self, table: pa.Table) -> pa.Table:
        """Return the columns that the output repeats: all but one that holds whole files."""
        if self.field == MESSAGES:
            images = [name for name in self.inputs.values() if holds_files(table.schema.field(name))]
            return table.drop_columns(images)
        has_files = self.reads_files and self.root is None
        return table.drop_columns([self.column]) if has_files else table


class TextRows:
    """Texts, or prompts with one text for each request."""

    def __init__(self, texts: list[Any], field: str, options: Mapping[str, Any]) -> None:
        self._texts = texts
        self._field = field
        self._options = options
        self.bad = [(i, _not_text(text, field)) for i, text in enumerate(texts) if type(text) is not str]

    def requests(self, max_rows: int) -> Iterator[RowRequest]:
        texts = self._texts
        order = [i for i, text in enumerate(texts) if type(text) is str]
        order.sort(key=lambda i: len(texts[i]), reverse=True)
        rows = 1 if self._field == PROMPT else max_rows
        for start in range(0, len(order), rows):
            positions = order[start : start + rows]
            yield RowRequest(positions, self.body(positions))

    def body(self, positions: list[int]) -> bytes:
        texts = [self._texts[i] for i in positions]
        return orjson.dumps({self._field: texts if len(texts) > 1 else texts[0], **self._options})


def _not_text(value: Any, field: str) -> str:
    if value is UNREADABLE:
        return "text: expected UTF-8, got other bytes"
    remedy = f"; {_SAY_MESSAGES}" if field == PROMPT and isinstance(value, list) else ""
    return f"text: expected a text, got {'null' if value is None else type(value).__name__}{remedy}"


class MemberRows:
    """Inputs of several members, such as question and context. A text member is no JSON, another one may be."""

    def __init__(self, table: pa.Table, inputs: Mapping[str, str], options: Mapping[str, Any]) -> None:
        """`inputs`: member → column."""
        self._options = options
        self.bad: list[tuple[int, str]] = []
        self._rows: dict[int, dict[str, Any]] = {}
        columns = {name: _member_values(table, name, column) for name, column in inputs.items()}
        for position in range(table.num_rows):
            row = {name: values[position] for name, values in columns.items()}
            absent = [name for name, value in row.items() if value is None or value is UNREADABLE]
            if absent:
                self.bad.append((position, f"{absent[0]}: expected a value, got null or bytes that are not UTF-8"))
            else:
                self._rows[position] = row

    def requests(self, max_rows: int) -> Iterator[RowRequest]:
        order = sorted(self._rows, key=lambda position: len(orjson.dumps(self._rows[position])), reverse=True)
        for start in range(0, len(order), max_rows):
            positions = order[start : start + max_rows]
            yield RowRequest(positions, self.body(positions))

    def body(self, positions: list[int]) -> bytes:
        return orjson.dumps({"text": [self._rows[position] for position in positions], **self._options})


def _member_values(table: pa.Table, member: str, column: str) -> list[Any]:
    values = to_values(table, column)
    is_json_text = member in _JSON_MEMBERS and is_text(table.schema.field(column))
    return [_parse(value) for value in values] if is_json_text else values


class TensorRows:
    """Tensors from columns of scalars, lists or JSON. Rows of equal shapes share a request."""

    def __init__(
        self, table: pa.Table, inputs: Mapping[str, str], shapes: Mapping[str, Shape], options: Mapping[str, Any]
    ) -> None:
        self._options = options
        self.bad: list[tuple[int, str]] = []
        self._rows: dict[int, dict[str, np.ndarray[Any, Any]]] = {}
        # A model with a batch dimension of 1 takes one row at a time.
        self._max_rows = 1 if any((shape := shapes[name]) and shape[0] == 1 for name in inputs) else None
        columns = {name: _column_values(table, column, shapes[name]) for name, column in inputs.items()}
        for position in range(table.num_rows):
            try:
                self._rows[position] = {
                    name: _to_tensor(values[position], inputs[name], shapes[name]) for name, values in columns.items()
                }
            except ValueError as error:
                self.bad.append((position, str(error)))

    def requests(self, max_rows: int) -> Iterator[RowRequest]:
        max_rows = self._max_rows or max_rows
        by_shape: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for position, tensors in self._rows.items():
            by_shape.setdefault(tuple(tensor.shape for tensor in tensors.values()), []).append(position)
        for _, positions in sorted(by_shape.items(), key=lambda item: sum(map(prod, item[0])), reverse=True):
            for start in range(0, len(positions), max_rows):
                chosen = positions[start : start + max_rows]
                yield RowRequest(chosen, self.body(chosen))

    def body(self, positions: list[int]) -> bytes:
        rows = [self._rows[i] for i in positions]
        tensors = {name: _to_json(np.stack([row[name] for row in rows])) for name in rows[0]}
        return orjson.dumps({"inputs": tensors, **self._options}, option=orjson.OPT_SERIALIZE_NUMPY)


def _column_values(table: pa.Table, name: str, shape: Shape) -> list[Any]:
    """Return the values of a column; cells of text are read as JSON, unless the input is one text for each row."""
    field = table.schema.field(name)
    if is_json(field):
        return to_values(table, name)
    values = python_values(table.column(name)) if not is_text(field) else to_values(table, name)
    if is_text(field):
        values = [_parse(value) for value in values]
    return values


def _parse(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def _to_tensor(value: Any, column: str, shape: Shape) -> np.ndarray[Any, Any]:
    """Return one row as an array, in the shape that the model declares. Raises ValueError with the reason."""
    if value is None or value is UNREADABLE:
        raise ValueError(f"{column}: expected a tensor, got {'null' if value is None else 'bytes that are not UTF-8'}")
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{column}: expected a tensor, got lists of different lengths") from None
    if array.dtype.kind not in "biufU":
        raise ValueError(f"{column}: expected numbers or texts, got null or an object among them")
    if shape is not None and array.ndim < len(shape) - 1 and -1 not in shape[1:] and array.size == prod(shape[1:]):
        return array.reshape(shape[1:])
    return array


def _to_json(array: np.ndarray[Any, Any]) -> Any:
    return array.tolist() if array.dtype.kind == "U" else np.ascontiguousarray(array)
