"""Reading a JSON body so that its numbers never become Python objects.

pysimdjson hands a numeric array over as one flat buffer, nesting forgotten; so each array's shape is read apart and
proven before the body counts as read. orjson and numpy are the way where pysimdjson has no wheel, and where a body
leaves room for doubt: slower, and always right.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any, Literal, Protocol

import numpy as np
import orjson

from app.protocols.errors import InvalidJson
from frameworks.errors import InvalidInput, UnknownField
from frameworks.types import Array

simdjson: Any
try:
    import simdjson
except ImportError:  # no wheel for this Python
    simdjson = None

Node = Any
"""A JSON value, of the document that gave it: a scalar of Python, or an array or object to ask the document about."""
NumberKind = Literal["float", "int", "uint"]

_KINDS: dict[NumberKind, tuple[str, Any]] = {
    "float": ("d", np.float64),
    "int": ("i", np.int64),
    "uint": ("u", np.uint64),
}
_MAX_DEPTH = 32  # numpy has no more dimensions than 64, and nobody's tensor has more than 32
_LARGEST_COUNT = 2**24 - 1  # simdjson counts and gives an array's elements up to here; only its buffers have the rest
_LONG_BYTES = 16 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class NonNumericArray(Exception):
    """An array holds something else than numbers of the kind asked for; the message says what."""


class RaggedArray(Exception):
    """The arrays in an array differ in length or depth; the message says where."""


class ExactParseNeeded(Exception):
    """An array is too long for the quick way; read the body again with `parse_exact`."""


class Document(Protocol):
    """One parsed body. All values must be read before the next await: they die with the document.

    `items`, `python` and `numbers` raise ExactParseNeeded as well.
    """

    @property
    def root(self) -> Node: ...

    def members(self, node: Node, known: Collection[str], within: str = "") -> dict[str, Node]:
        """The members of an object. Raises UnknownField for one not `known`, InvalidInput for one given twice.

        `within`: where the object stands, `inputs.`, for the message.
        """
        ...

    def is_array(self, node: Node) -> bool: ...

    def is_object(self, node: Node) -> bool: ...

    def items(self, array: Node) -> list[Node]:
        """What an array holds, if it is to be asked about one by one."""
        ...

    def python(self, node: Node) -> Any:
        """The node in Python's own lists, dicts and scalars."""
        ...

    def numbers(self, node: Node, kind: NumberKind) -> tuple[Array, tuple[int, ...]]:
        """An array's numbers, flat (float64, int64 or uint64), and its shape. Raises NonNumericArray, RaggedArray."""
        ...

    def shapes_are_certain(self) -> bool:
        """Whether every shape that `numbers` gave is certain; if not, read the body again with `parse_exact`."""
        ...


def parse(body: bytes) -> Document:
    """Raises InvalidJson, with the place of the fault."""
    # simdjson passes a byte order mark over, orjson refuses it: one word on it, whichever way the body is read.
    if simdjson is None or body.startswith(_BYTE_ORDER_MARK):
        return parse_exact(body)
    try:
        return _SimdDocument(body)
    except (ValueError, RuntimeError):
        # Bad JSON gets orjson's message, which has line and column; an integer beyond 64 bits is only simdjson's limit.
        return parse_exact(body)


def parse_exact(body: bytes) -> Document:
    """As `parse`, by the slower way that leaves no doubt. Raises InvalidJson."""
    try:
        return _PlainDocument(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise InvalidJson(f"the body is not valid JSON: {error}") from None


def flatten(node: list[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """The elements of a nest of lists, in order, and its shape. Raises RaggedArray."""
    level, shape = node, [len(node)]
    while list in (types := set(map(type, level))):
        lengths = set(map(len, level)) if types == {list} else set()
        if len(lengths) != 1:
            raise RaggedArray(_ragged_at(len(shape), lengths))
        shape.append(lengths.pop())
        if len(shape) > _MAX_DEPTH:
            raise RaggedArray(f"it is nested more than {_MAX_DEPTH} deep")
        level = list(chain.from_iterable(level))
    return level, tuple(shape)


class _SimdDocument:
    def __init__(self, body: bytes) -> None:
        self._body = body
        # A parser of its own costs nothing; one that is shared refuses its next body while a value of the last lives.
        self.root: Node = simdjson.Parser().parse(body)
        # Arrays that `numbers` took for flat, and the brackets that all arrays seen so far must have.
        self._flat_arrays = 0
        self._brackets = 0

    def members(self, node: Node, known: Collection[str], within: str = "") -> dict[str, Node]:
        # The names first: simdjson finds a member by walking the object, which a hostile one makes long.
        names = list(node)
        _check_names(names, known, within)
        if len(names) > 1 and len(names) != len(set(names)):
            twice, _ = Counter(names).most_common(1)[0]
            raise InvalidInput(within + twice, "given twice in one object; leave one")
        return {name: node[name] for name in names}

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
            self._brackets += 1  # at least; a nest in it leaves the count short, and so the doubt
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
            # simdjson does not say which element; the exact way does.
            return _plain_numbers(self.python(node), kind)
        return flat, self._shape(node, flat.size)

    def shapes_are_certain(self) -> bool:
        # A flat array has one bracket. If the body has just the brackets that were predicted, no flat array hides a
        # nest; more of them may also stand in a string, which only the exact way can tell.
        return not self._flat_arrays or _brackets_in(self._body) == self._brackets

    def _shape(self, node: Node, size: int) -> tuple[int, ...]:
        """The shape of a nest; rows are walked, never numbers. `shapes_are_certain` checks flat arrays."""
        self._brackets += 1
        if size and len(node) == size and not self.is_array(node[0]):
            self._flat_arrays += 1
            return (size,)
        level = [node]
        shape: list[int] = []
        while True:
            lengths = set(map(len, level))
            if len(lengths) != 1:
                raise RaggedArray(_ragged_at(len(shape), lengths))
            shape.append(lengths.pop())
            rows = [row for array in level for row in array] if self._is_nest(level[0]) else []
            if not rows:
                break
            if not all(map(self.is_array, rows)):
                raise RaggedArray(_ragged_at(len(shape), set()))
            if len(shape) >= _MAX_DEPTH:
                raise RaggedArray(f"it is nested more than {_MAX_DEPTH} deep")
            self._brackets += len(rows)
            level = rows
        self._flat_arrays += 1
        if len(shape) == 1:
            return (size,)  # the buffer's own size is the truth, however long
        if _LARGEST_COUNT in shape:
            raise ExactParseNeeded
        if int(np.prod(shape)) != size:
            raise RaggedArray("its rows differ in length or depth")
        return tuple(shape)

    def _is_nest(self, array: Node) -> bool:
        return len(array) > 0 and self.is_array(array[0])


def _brackets_in(body: bytes) -> int:
    """How many `[` there are; of a long body numpy counts them eight times as fast as bytes.count."""
    if len(body) < _LONG_BYTES:
        return body.count(b"[")
    return int(np.count_nonzero(np.frombuffer(body, np.uint8) == ord("[")))


class _PlainDocument:
    def __init__(self, root: Any) -> None:
        self.root = root

    def members(self, node: Node, known: Collection[str], within: str = "") -> dict[str, Node]:
        members: dict[str, Node] = node
        _check_names(members, known, within)
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
        return _plain_numbers(node, kind)

    def shapes_are_certain(self) -> bool:
        return True


def _plain_numbers(node: list[Any], kind: NumberKind) -> tuple[Array, tuple[int, ...]]:
    flat, shape = flatten(node)
    types = set(map(type, flat))
    if strangers := types - {int, float}:
        raise NonNumericArray(f"it holds {_JSON_NAMES[strangers.pop()]}, not only numbers")
    if kind != "float" and float in types:
        example = next(value for value in flat if type(value) is float)
        raise NonNumericArray(f"it holds {example!r}, which is no integer of 64 bits")
    try:
        return np.array(flat, dtype=_KINDS[kind][1]), shape
    except OverflowError:
        bounds = np.iinfo(_KINDS[kind][1])
        example = next(value for value in flat if not bounds.min <= value <= bounds.max)
        raise NonNumericArray(f"it holds {example}, outside {bounds.min} to {bounds.max}") from None


_JSON_NAMES: dict[type, str] = {bool: "true or false", str: "a string", type(None): "null", dict: "an object"}


def describe_type(value: Any) -> str:
    """What a caller would call the value: `a string`, `an array`, `null`, …"""
    if isinstance(value, bool | str | dict) or value is None:
        return _JSON_NAMES[type(value)]
    if isinstance(value, int | float):
        return "a number"
    return "an object" if simdjson is not None and isinstance(value, simdjson.Object) else "an array"


def describe_value(value: Any) -> str:
    """What came, in a message that says what is wanted: a number itself, of anything else only what it is."""
    if type(value) in (int, float):
        return str(value)[:40]
    return '""' if value == "" else describe_type(value)


def _check_names(names: Iterable[str], known: Collection[str], within: str) -> None:
    for name in names:
        if name not in known:
            raise UnknownField.among(name[:200], known, within)


def _ragged_at(depth: int, lengths: set[int]) -> str:
    if len(lengths) > 1:
        return f"at depth {depth} its rows have lengths {', '.join(map(str, sorted(lengths)[:4]))}; they must be equal"
    return f"at depth {depth} rows and single values are mixed"
