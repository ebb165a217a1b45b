"""Columns that hold JSON: values of JSON Lines and CSV that no Arrow type holds without a guess."""

from collections.abc import Iterable
from typing import Any

import orjson
import pyarrow as pa

from app.protocols.shared.json.output import to_json_value

_JSON_MARK = {b"roundhouse": b"json"}

_ARROW_TYPES = {
    "null": pa.string(),
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
}
_KINDS: dict[type, str] = {type(None): "null", bool: "bool", int: "int", float: "float", str: "string"}


class Unreadable:
    """The value of a text column whose bytes are not UTF-8."""


UNREADABLE = Unreadable()


def merge_kind(seen: str | None, value: Any) -> str:
    """Return the kind of a column that held values of kind `seen`, and now holds `value`.

    `json` holds everything. None: no value was seen.
    """
    kind = _KINDS.get(type(value), "json")
    if kind == "int" and not -(2**63) <= value < 2**63:
        kind = "json"
    if seen in (None, "null", kind):
        return kind
    assert seen is not None
    if kind == "null":
        return seen
    return "float" if {seen, kind} == {"int", "float"} else "json"


def field_of(name: str, kind: str) -> pa.Field:
    """Return the Arrow field of a column of this kind."""
    if kind == "json":
        return json_field(name)
    return pa.field(name, _ARROW_TYPES[kind])


def json_field(name: str) -> pa.Field:
    """Return a text field whose values are JSON. JSON Lines are written with the values themselves."""
    return pa.field(name, pa.string(), metadata=_JSON_MARK)


def is_json(field: pa.Field) -> bool:
    return bool(field.metadata) and field.metadata.get(b"roundhouse") == b"json"


def to_column(field: pa.Field, values: Iterable[Any]) -> pa.Array:
    """Return the column of Python values of JSON."""
    if is_json(field):
        values = [None if value is None else _as_json(value) for value in values]
    return pa.array(values, type=field.type)


def _as_json(value: Any) -> str:
    """Return JSON; predictions of tasks may hold arrays."""
    return orjson.dumps(to_json_value(value), option=orjson.OPT_SERIALIZE_NUMPY).decode()


def to_values(table: pa.Table, name: str) -> list[Any]:
    """Return the values of a column, those of JSON decoded; UNREADABLE for text that is not UTF-8."""
    column = table.column(name)
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = [_decode(scalar) for scalar in column]
    if is_json(table.schema.field(name)):
        return [None if value is None else orjson.loads(value) for value in values]
    return values


def to_value(table: pa.Table, name: str, position: int) -> Any:
    """Return one value of a column, as `to_values` does."""
    value = _decode(table.column(name)[position])
    return orjson.loads(value) if isinstance(value, str) and is_json(table.schema.field(name)) else value


def _decode(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return UNREADABLE


def is_text(field: pa.Field) -> bool:
    """Whether the column may hold texts."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
