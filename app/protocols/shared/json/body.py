"""Parse a JSON body without converting its numbers to Python objects.

pysimdjson returns a numeric array as one flat buffer without its nesting. Therefore the shape of each array is read
separately, and checked before the body counts as read. orjson and numpy parse the body exactly, but more slowly: where
pysimdjson has no wheel, and where the shape of an array is not certain.
"""

from collections.abc import Collection
from itertools import chain
from typing import Any, Literal, Protocol

import numpy as np
import orjson

from app.protocols.shared.errors import InvalidJson
from app.protocols.shared.json.scan import LongObject
from frameworks.core.errors import InvalidInput, UnknownField
from frameworks.types import Array

simdjson: Any
try:
    import simdjson
except ImportError:  # this Python version has no wheel
    simdjson = None

Node = Any
"""A JSON value of one document: a Python scalar, or an array or object that only the document can read."""
NumberKind = Literal["float", "float32", "int", "uint"]
"""Of `numbers`. With float32 they may be in float32 already, if all of them are in its range."""

_KINDS: dict[NumberKind, tuple[str, Any]] = {
    "float": ("d", np.float64),
    "float32": ("d", np.float64),
    "int": ("i", np.int64),
    "uint": ("u", np.uint64),
}
_MAX_DEPTH = 32  # numpy supports 64 dimensions
_LARGEST_COUNT = 2**24 - 1  # simdjson counts and lists an array's elements up to here; only its buffers are complete
_LONG_BYTES = 16 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class NonNumericArray(Exception):
    """An array holds a value that is not a number of the requested kind; the message describes the value."""


class RaggedArray(Exception):
    """The arrays in an array differ in length or depth; the message gives the depth."""


class ExactParseNeeded(Exception):
    """An array is too long for simdjson; read the body again with `parse_exact`."""


class Document(Protocol):
    """One parsed body. Its values are valid as long as the document; read them before the next await.

    `items`, `python` and `numbers` also raise ExactParseNeeded.
    """

    @property
    def root(self) -> Node: ...

    def members(self, node: Node, known: Collection[str], within: str = "") -> dict[str, Node]:
        """Return the members of an object. Raises UnknownField for an unknown name, InvalidInput for a repeated one.

        `within`: the path of the object, as `inputs.`, for the message.
        """
        ...

    def is_array(self, node: Node) -> bool: ...

    def is_object(self, node: Node) -> bool: ...

    def items(self, array: Node) -> list[Node]:
        """Return the elements of an array as nodes."""
        ...

    def python(self, node: Node) -> Any:
        """Convert a node to Python's lists, dicts and scalars."""
        ...

    def numbers(self, node: Node, kind: NumberKind) -> tuple[Array, tuple[int, ...]]:
        """Return an array's numbers, flat (float64, float32, int64 or uint64), and its shape.

        Raises NonNumericArray, RaggedArray.
        """
        ...

    def shapes_are_certain(self) -> bool:
        """Whether every shape that `numbers` returned is certain; if not, read the body again with `parse_exact`."""
        ...


def parse(body: bytes) -> Document:
    """Parse a body. Raises InvalidJson, whose message has line and column."""
    # simdjson skips a byte order mark and orjson rejects it; every body with one gets the same error.
    if simdjson is None or body.startswith(_BYTE_ORDER_MARK):
        return parse_exact(body)
    try:
        return SimdDocument(body)
    except (ValueError, RuntimeError):
        # orjson's message has line and column, and orjson accepts integers of more than 64 bits.
        return parse_exact(body)


def parse_exact(body: bytes) -> Document:
    """Parse a body with orjson: slower, and with certain shapes. Raises InvalidJson."""
    try:
        return _PlainDocument(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise InvalidJson(f"the body is not valid JSON: {error}") from None


def flatten(node: list[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Return the elements of nested lists, in order, and the shape. Raises RaggedArray."""
    level, shape = node, [len(node)]
    while list in (types := set(map(type, level))):
        lengths = set(map(len, level)) if types == {list} else set()
        if len(lengths) != 1:
            raise RaggedArray(ragged_at(len(shape), lengths))
        shape.append(lengths.pop())
        if len(shape) > _MAX_DEPTH:
            raise RaggedArray(f"it has more than {_MAX_DEPTH} dimensions")
        level = list(chain.from_iterable(level))
    return level, tuple(shape)


class SimdDocument:
    """The Document by simdjson."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        # A new parser costs nothing; a shared one refuses a new body while a value of the last body is referenced.
        self.root: Node = simdjson.Parser().parse(body)
        # The arrays that `numbers` assumed to be flat, and the opening brackets of all arrays that were read.
        self._flat_arrays = 0
        self._brackets = 0

    def members(self, node: Node, known: Collection[str], within: str = "") -> dict[str, Node]:
        members: dict[str, Node] = {}
        read_members(members, node, known, within)
        return members

    def is_array(self, node: Node) -> bool:
        return isinstance(node, simdjson.Array)

    def is_object(self, node: Node) -> bool:
        return isinstance(node, simdjson.Object)

    def items(self, array: Node) -> list[Node]:
        self._brackets += 1
        if len(array) == _LARGEST_COUNT:
            raise ExactParseNeeded
        return list(array)

    def python(self, node: Node) -> Any:
        if isinstance(node, simdjson.Array):
            self._brackets += 1  # a nested array has more, so that its shape stays uncertain
            items = node.as_list()
            if len(self._body) > 2 * _LARGEST_COUNT and (len(items) == _LARGEST_COUNT or list in set(map(type, items))):
                raise ExactParseNeeded
            return items
        return node.as_dict() if isinstance(node, simdjson.Object) else node

    def numbers(self, node: Node, kind: NumberKind) -> tuple[Array, tuple[int, ...]]:
        code, dtype = _KINDS[kind]
        try:
            flat = np.frombuffer(node.as_buffer(of_type=code), dtype)
        except (TypeError, ValueError):
            # simdjson does not report which element is wrong.
            return plain_numbers(self.python(node), kind)
        return flat, self._shape(node, flat.size)

    def shapes_are_certain(self) -> bool:
        # A flat array has one opening bracket. With as many brackets as counted, no array assumed to be flat is nested.
        # Additional brackets can also be part of a string; only the exact parser knows.
        return not self._flat_arrays or _brackets_in(self._body) == self._brackets

    def _shape(self, node: Node, size: int) -> tuple[int, ...]:
        """Return the shape of an array from its rows, without reading numbers; see `shapes_are_certain`."""
        self._brackets += 1
        if size and len(node) == size and not self.is_array(node[0]):
            self._flat_arrays += 1
            return (size,)
        level = [node]
        shape: list[int] = []
        while True:
            lengths = set(map(len, level))
            if len(lengths) != 1:
                raise RaggedArray(ragged_at(len(shape), lengths))
            shape.append(lengths.pop())
            rows = [row for array in level for row in array] if self._is_nested(level[0]) else []
            if not rows:
                break
            if not all(map(self.is_array, rows)):
                raise RaggedArray(ragged_at(len(shape), set()))
            if len(shape) >= _MAX_DEPTH:
                raise RaggedArray(f"it has more than {_MAX_DEPTH} dimensions")
            self._brackets += len(rows)
            level = rows
        self._flat_arrays += 1
        if len(shape) == 1:
            return (size,)  # the size of the buffer is right at every length
        if _LARGEST_COUNT in shape:
            raise ExactParseNeeded
        if int(np.prod(shape)) != size:
            raise RaggedArray("the rows differ in length or depth")
        return tuple(shape)

    def _is_nested(self, array: Node) -> bool:
        return len(array) > 0 and self.is_array(array[0])


def _brackets_in(body: bytes) -> int:
    """Count the opening brackets; in a long body numpy is eight times as fast as bytes.count."""
    if len(body) < _LONG_BYTES:
        return body.count(b"[")
    return int(np.count_nonzero(np.frombuffer(body, np.uint8) == ord("[")))


class _PlainDocument:
    def __init__(self, root: Any) -> None:
        self.root = root

    def members(self, node: Node, known: Collection[str], within: str = "") -> dict[str, Node]:
        members: dict[str, Node] = {}
        read_members(members, node, known, within)
        return members

    def is_array(self, node: Node) -> bool:
        return isinstance(node, list)

    def is_object(self, node: Node) -> bool:
        return isinstance(node, dict)

    def items(self, array: Node) -> list[Node]:
        items: list[Node] = array
        return items

    def python(self, node: Node) -> Any:
        return node

    def numbers(self, node: Node, kind: NumberKind) -> tuple[Array, tuple[int, ...]]:
        return plain_numbers(node, kind)

    def shapes_are_certain(self) -> bool:
        return True


def plain_numbers(node: list[Any], kind: NumberKind) -> tuple[Array, tuple[int, ...]]:
    """Return the numbers of nested lists, flat, and their shape. Raises NonNumericArray, RaggedArray."""
    flat, shape = flatten(node)
    types = set(map(type, flat))
    if others := types - {int, float}:
        raise NonNumericArray(f"{_TYPE_NAMES[others.pop()]} in the array")
    if _KINDS[kind][1] is not np.float64 and float in types:
        example = next(value for value in flat if type(value) is float)
        raise NonNumericArray(f"{example!r} instead of an integer of 64 bits")
    try:
        return np.array(flat, dtype=_KINDS[kind][1]), shape
    except OverflowError:
        bounds = np.iinfo(_KINDS[kind][1])
        example = next(value for value in flat if not bounds.min <= value <= bounds.max)
        raise NonNumericArray(f"{example}, outside {bounds.min} to {bounds.max}") from None


_TYPE_NAMES: dict[type, str] = {bool: "a boolean", str: "a string", type(None): "null", dict: "an object"}


def describe_type(value: Any) -> str:
    """Return the JSON type of a value for an error message: `a string`, `an array`, `null`, …"""
    if isinstance(value, bool | str | dict) or value is None:
        return _TYPE_NAMES[type(value)]
    if isinstance(value, int | float):
        return "a number"
    return "an object" if is_object(value) or isinstance(value, LongObject) else "an array"


def describe_value(value: Any) -> str:
    """Return a number or the empty string itself, and of any other value the JSON type, for an error message."""
    if type(value) in (int, float):
        return str(value)[:40]
    return '""' if value == "" else describe_type(value)


def read_members(members: dict[str, Node], node: Node, known: Collection[str], within: str) -> None:
    """Add the members of a short object. Raises UnknownField, InvalidInput for a repeated name.

    The first wrong name ends it: simdjson finds a member by a linear search, which is slow in a hostile object.
    """
    for name in node:
        if name not in known:
            raise UnknownField.among(name, known, within)
        if name in members:
            raise InvalidInput(within + name, "expected one member of this name, got several; send one")
        members[name] = node[name]


def is_array(node: Node) -> bool:
    """Return whether a node of any short document is an array."""
    return isinstance(node, list) or (simdjson is not None and isinstance(node, simdjson.Array))


def is_object(node: Node) -> bool:
    """Return whether a node of any short document is an object."""
    return isinstance(node, dict) or (simdjson is not None and isinstance(node, simdjson.Object))


def is_container(node: Node) -> bool:
    """Return whether a node of any short document is an array or object."""
    return is_array(node) or is_object(node)


def to_python(node: Node) -> Any:
    """Convert a node of any short document to Python's lists, dicts and scalars."""
    if simdjson is not None:
        if isinstance(node, simdjson.Array):
            return node.as_list()
        if isinstance(node, simdjson.Object):
            return node.as_dict()
    return node


def ragged_at(depth: int, lengths: set[int]) -> str:
    """Describe rows at a depth that have these lengths; none: some are no rows."""
    if len(lengths) > 1:
        return f"the rows at depth {depth} have lengths {', '.join(map(str, sorted(lengths)[:4]))}"
    return f"depth {depth} has both rows and single values"
