"""Define filters over metadata: a small typed expression tree, parsed from JSON within bounds.

Other processes receive a filter as a list of plain values.
"""

import math
from dataclasses import dataclass
from typing import Any, assert_never, cast

from frameworks.core.errors import InvalidInput, UnknownField

MAX_NODES = 256
MAX_DEPTH = 16
MAX_VALUES = 4096
"""Values of one `in`."""
MAX_KEY_CHARACTERS = 128

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class AnyOf:
    """The value of `key` equals one of `values`, or it is a list that holds one of them.

    Types are not mixed: 1 equals 1.0, but neither "1" nor true.
    """

    key: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """The value of `key` is a number within the bounds. None: no bound."""

    key: str
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class Exists:
    """The record has a value for `key`; null counts as none."""

    key: str


@dataclass(frozen=True, slots=True)
class Not:
    """The filter does not match. It holds for records without the key."""

    inner: "Filter"


@dataclass(frozen=True, slots=True)
class All:
    """Each of the filters matches; holds for no filters."""

    parts: "tuple[Filter, ...]"


@dataclass(frozen=True, slots=True)
class Any_:  # noqa: N801  (`Any` is typing's)
    """At least one of the filters matches; fails for no filters."""

    parts: "tuple[Filter, ...]"


Filter = AnyOf | Range | Exists | Not | All | Any_

_RANGES = {"gt": "above", "gte": "at_least", "lt": "below", "lte": "at_most"}
_OPERATORS = ("eq", "ne", "in", "nin", *_RANGES, "exists")


def parse_filter(value: object, field: str = "filter") -> Filter:
    """Return the filter that a parsed JSON object states. Raises InvalidInput and UnknownField with its path.

    `{"lang": "en"}` and `{"lang": {"eq": "en"}}` are the same. Keys of one object are joined by "and". Operators:
    `eq`, `ne`, `in`, `nin`, `gt`, `gte`, `lt`, `lte`, `exists`; `$and`, `$or` (lists) and `$not` (object) join filters.
    """
    return _Parser().parse(value, field, 1)


class _Parser:
    """Counts the nodes of one filter."""

    def __init__(self) -> None:
        self._nodes = 0

    def parse(self, value: object, field: str, depth: int) -> Filter:
        if not isinstance(value, dict):
            raise InvalidInput(field, f"expected an object, got {_kind(value)}")
        if depth > MAX_DEPTH:
            raise InvalidInput(field, f"expected at most {MAX_DEPTH} levels, got more; write a flatter filter")
        parts = [self._entry(str(key), inner, f"{field}.{str(key)[:200]}", depth) for key, inner in value.items()]
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _entry(self, key: str, value: object, field: str, depth: int) -> Filter:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise InvalidInput(field, f"expected at most {MAX_NODES} conditions, got more; write a smaller filter")
        if key.startswith("$"):
            return self._join(key, value, field, depth)
        if not 0 < len(key) <= MAX_KEY_CHARACTERS:
            raise InvalidInput(field, f"expected a key of 1 to {MAX_KEY_CHARACTERS} characters, got {len(key)}")
        if not isinstance(value, dict):
            return AnyOf(key, (_scalar(value, field),))
        parts = self._conditions(key, value, field)
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _join(self, key: str, value: object, field: str, depth: int) -> Filter:
        if key == "$not":
            return Not(self.parse(value, field, depth + 1))
        if key not in {"$and", "$or"}:
            raise UnknownField.among(key, ["$and", "$or", "$not"], field.removesuffix(key[:200]))
        if not isinstance(value, list):
            raise InvalidInput(field, f"expected a list of filters, got {_kind(value)}")
        parts = tuple(self.parse(part, f"{field}[{index}]", depth + 1) for index, part in enumerate(value))
        return All(parts) if key == "$and" else Any_(parts)

    def _conditions(self, key: str, value: dict[Any, object], field: str) -> list[Filter]:
        if not value:
            raise InvalidInput(field, f"expected a value or one of {', '.join(_OPERATORS)}, got an empty object")
        bounds = {name: inner for name, inner in value.items() if name in _RANGES}
        parts: list[Filter] = []
        if bounds:
            limits = {_RANGES[name]: _number(inner, f"{field}.{name}") for name, inner in bounds.items()}
            parts.append(Range(key, **limits))
        for name, inner in value.items():
            if name not in bounds:
                self._nodes += 1
                parts.append(_condition(key, str(name), inner, field))
        return parts


def _condition(key: str, name: str, value: object, field: str) -> Filter:
    path = f"{field}.{name}"
    match name:
        case "eq":
            return AnyOf(key, (_scalar(value, path),))
        case "ne":
            return Not(AnyOf(key, (_scalar(value, path),)))
        case "in":
            return AnyOf(key, _scalars(value, path))
        case "nin":
            return Not(AnyOf(key, _scalars(value, path)))
        case "exists":
            if not isinstance(value, bool):
                raise InvalidInput(path, f"expected true or false, got {_kind(value)}")
            return Exists(key) if value else Not(Exists(key))
    raise UnknownField.among(name, _OPERATORS, f"{field}.")


def _scalars(value: object, field: str) -> tuple[Scalar, ...]:
    if not isinstance(value, list):
        raise InvalidInput(field, f"expected a list of values, got {_kind(value)}")
    if len(value) > MAX_VALUES:
        raise InvalidInput(field, f"expected at most {MAX_VALUES} values, got {len(value)}")
    return tuple(_scalar(each, f"{field}[{index}]") for index, each in enumerate(value))


def _scalar(value: object, field: str) -> Scalar:
    if isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return _number(value, field)
    raise InvalidInput(field, f"expected a string, a number, true or false, got {_kind(value)}")


def _number(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(field, f"expected a number, got {_kind(value)}")
    try:
        number = float(cast("float", value))
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidInput(field, "expected a finite number; leave the bound out")
    return number


def _kind(value: object) -> str:
    kinds = {str: "a string", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), "null" if value is None else "another value")


def filter_to_list(where: Filter) -> list[Any]:
    """Return the plain value of a filter: the name of its kind, and its fields."""
    match where:
        case AnyOf(key, values):
            return ["in", key, list(values)]
        case Range(key, above, at_least, below, at_most):
            return ["range", key, above, at_least, below, at_most]
        case Exists(key):
            return ["exists", key]
        case Not(inner):
            return ["not", filter_to_list(inner)]
        case All(parts):
            return ["and", *map(filter_to_list, parts)]
        case Any_(parts):
            return ["or", *map(filter_to_list, parts)]
    assert_never(where)


def filter_from_list(value: list[Any]) -> Filter:
    """Return the filter of `filter_to_list`. Raises ValueError for another list."""
    match value:
        case ["in", str() as key, list() as values]:
            return AnyOf(key, tuple(values))
        case ["range", str() as key, above, at_least, below, at_most]:
            return Range(key, above, at_least, below, at_most)
        case ["exists", str() as key]:
            return Exists(key)
        case ["not", inner]:
            return Not(filter_from_list(inner))
        case ["and", *parts]:
            return All(tuple(map(filter_from_list, parts)))
        case ["or", *parts]:
            return Any_(tuple(map(filter_from_list, parts)))
    raise ValueError("filter: expected a kind and its fields, got another list")
