"""Read a long JSON body in pieces, so that no step holds the interpreter's lock for more than a few milliseconds."""

import re
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import orjson

from app.protocols.shared.errors import InvalidJson
from app.protocols.shared.json.body import (
    Document,
    Node,
    NumberKind,
    RaggedArray,
    is_array,
    is_object,
    parse,
    parse_exact,
    plain_numbers,
    ragged_at,
    read_members,
    to_python,
)
from app.protocols.shared.json.scan import (
    BLOCK_BYTES,
    LongArray,
    LongObject,
    UnclosedContainer,
    count_values,
    divide,
)
from frameworks.core.errors import InvalidInput
from frameworks.types import Array

MAX_VALUES = 131_072
"""Values of a body that become Python objects: those of long arrays besides numeric tensors."""
_MAX_DEPTH = 16
_MAX_NODES = 65_536
_MAX_NAME_BYTES = 4096
_NAME = re.compile(rb'[ \t\r\n]*("(?:[^"\\]|\\.)*")[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*")


class LongDocument:
    """The Document of `body.py`. Its nodes are long arrays and objects, and nodes of their pieces."""

    def __init__(self, body: bytes) -> None:
        """Raises InvalidJson."""
        self._body = body
        self._num_values = 0
        self._arrays: list[LongArray] = []
        node = self._long_value(0, len(body), 0)
        self.root: Node = parse(body).root if node is None else node

    def members(self, node: Node, known: Collection[str], within: str = "") -> dict[str, Node]:
        members: dict[str, Node] = {}
        if not isinstance(node, LongObject):
            read_members(members, node, known, within)
            return members
        for start, end in node.pieces:
            long_member = self._long_member(start, end, node.depth)
            if long_member is None:
                read_members(members, self._parse(b"{}", start, end).root, known, within)
            else:
                read_members(members, long_member, known, within)
        return members

    def is_array(self, node: Node) -> bool:
        return isinstance(node, LongArray) or is_array(node)

    def is_object(self, node: Node) -> bool:
        return isinstance(node, LongObject) or is_object(node)

    def items(self, array: Node) -> list[Node]:
        if not isinstance(array, LongArray):
            return [item for item in array]  # noqa: C416 - each step may let another thread run
        items: list[Node] = []
        for item in self._items(array):
            items.append(item)
            if len(items) > _MAX_NODES:
                raise InvalidInput(
                    "body", f"expected lists of at most {_MAX_NODES} objects or tensors, got a longer one"
                )
        return items

    def python(self, node: Node) -> Any:
        if isinstance(node, LongArray):
            return list(self._python_items(node))
        if isinstance(node, LongObject):
            return self._python_members(node)
        return to_python(node)

    def numbers(self, node: Node, kind: NumberKind) -> tuple[Array, tuple[int, ...]]:
        return self._numbers(node, kind, 1) if isinstance(node, LongArray) else plain_numbers(to_python(node), kind)

    def _numbers(self, node: LongArray, kind: NumberKind, level: int) -> tuple[Array, tuple[int, ...]]:
        """As `numbers`. `level`: the dimension of the array's elements, for the message."""
        parts: list[Array] = []
        num_rows = 0
        shapes: set[tuple[int, ...]] = set()
        for start, end in node.pieces:
            element = self._long_value(start, end, node.depth)
            if isinstance(element, LongArray):
                flat, row_shape = self._numbers(element, kind, level + 1)
                shape = (1, *row_shape)
            else:
                flat, shape = self._piece_numbers(start, end, kind)
            parts.append(flat)
            num_rows += shape[0]
            shapes.add(shape[1:])
            if len(shapes) > 1:
                raise _ragged(shapes, level)
        node.is_read = True
        return np.concatenate(parts), (num_rows, *shapes.pop())

    def shapes_are_certain(self) -> bool:
        """Parse each array that was not read, then return true. Raises InvalidJson."""
        for array in self._arrays:
            if not array.is_read:
                self._check(array)
        return True

    def _check(self, node: LongArray | LongObject) -> None:
        """Parse each piece of an array or object. Raises InvalidJson."""
        for start, end in node.pieces:
            if isinstance(node, LongObject):
                long_nodes = list((self._long_member(start, end, node.depth) or {}).values())
            else:
                element = self._long_value(start, end, node.depth)
                long_nodes = [] if element is None else [element]
            if not long_nodes:
                self._parse(b"{}" if isinstance(node, LongObject) else b"[]", start, end)
            for each in long_nodes:
                self._check(each)
        if isinstance(node, LongArray):
            node.is_read = True

    def _items(self, array: LongArray) -> Iterator[Node]:
        for start, end in array.pieces:
            element = self._long_value(start, end, array.depth)
            if element is not None:
                yield element
                continue
            elements = self._parse(b"[]", start, end).root
            self._count(start, end)
            yield from elements
        array.is_read = True

    def _python_items(self, array: LongArray) -> Iterator[Any]:
        for start, end in array.pieces:
            element = self._long_value(start, end, array.depth)
            if element is not None:
                yield self.python(element)
                continue
            elements = self._parse(b"[]", start, end).root
            self._count(start, end)
            yield from to_python(elements)
        array.is_read = True

    def _python_members(self, node: LongObject) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for start, end in node.pieces:
            long_member = self._long_member(start, end, node.depth)
            if long_member is None:
                group = self._parse(b"{}", start, end).root
                self._count(start, end)
                members |= to_python(group)
            else:
                members |= {name: self.python(value) for name, value in long_member.items()}
        return members

    def _piece_numbers(self, start: int, end: int, kind: NumberKind) -> tuple[Array, tuple[int, ...]]:
        document = self._parse(b"[]", start, end)
        numbers = document.numbers(document.root, kind)
        if document.shapes_are_certain():
            return numbers
        document = parse_exact(b"[" + self._body[start:end] + b"]")
        return document.numbers(document.root, kind)

    def _long_value(self, start: int, end: int, depth: int) -> LongArray | LongObject | None:
        """Return the array or object at this place if it is long; its place is that of one value."""
        if end - start <= 2 * BLOCK_BYTES:
            return None
        first = _SPACE.match(self._body, start, end).end()  # type: ignore[union-attr]
        if first == end or self._body[first] == b'"'[0]:
            return None
        if self._body[first] not in b"[{":
            if len(self._body[first:end].rstrip()) > 2 * BLOCK_BYTES:
                raise self._error(f"expected a number of at most {2 * BLOCK_BYTES} characters", first)
            return None
        if depth == _MAX_DEPTH:
            raise self._error(f"expected long arrays at most {_MAX_DEPTH} levels deep", first)
        try:
            pieces, close = divide(self._body, first, end)
        except UnclosedContainer:
            raise self._error("unexpected end of data", end) from None
        is_object = self._body[first] == b"{"[0]
        if self._body[close] != b"]}"[is_object]:
            raise self._error("expected another bracket", close)
        rest = _SPACE.match(self._body, close + 1, end).end()  # type: ignore[union-attr]
        if rest != end:
            raise self._error("unexpected content after document" if depth == 0 else "expected a comma", rest)
        if is_object:
            return LongObject(pieces, depth + 1)
        array = LongArray(pieces, depth + 1)
        self._arrays.append(array)
        return array

    def _long_member(self, start: int, end: int, depth: int) -> dict[str, Node] | None:
        """Return the one member at this place if it is long."""
        if end - start <= 2 * BLOCK_BYTES:
            return None
        name = _NAME.match(self._body, start, min(end, start + _MAX_NAME_BYTES))
        if name is None:
            raise self._error(f"expected a name of at most {_MAX_NAME_BYTES} bytes and a colon", start)
        value = self._long_value(name.end(), end, depth)
        return None if value is None else {orjson.loads(name[1]): value}

    def _parse(self, brackets: bytes, start: int, end: int) -> Document:
        """Parse the elements or members of a piece, in these brackets."""
        body = self._body
        text = brackets[:1] + body[start:end] + brackets[1:]
        if not text[1:-1].strip() and b"," in (body[start - 1 : start], body[end : end + 1]):
            raise self._error("expected a value before or behind the comma", start)
        try:
            return parse(text)
        except InvalidJson:
            raise self._error(*_error_in(text, start)) from None

    def _error(self, reason: str, place: int) -> InvalidJson:
        line = self._body.count(b"\n", 0, place) + 1
        column = place - self._body.rfind(b"\n", 0, place)
        return InvalidJson(f"the body is not valid JSON: {reason}: line {line} column {column} (char {place})")

    def _count(self, start: int, end: int) -> None:
        """Count the values of a piece. Raises InvalidInput past MAX_VALUES."""
        self._num_values += count_values(self._body[start:end])
        if self._num_values > MAX_VALUES:
            raise InvalidInput(
                "body", f"expected at most {MAX_VALUES} values besides numeric tensors, got more; send several requests"
            )


def _ragged(shapes: set[tuple[int, ...]], level: int) -> RaggedArray:
    """Return the error for rows of two shapes."""
    one, other = sorted(shapes)
    for depth, lengths in enumerate(zip(one, other, strict=False), level):
        if lengths[0] != lengths[1]:
            return RaggedArray(ragged_at(depth, set(lengths)))
    return RaggedArray(ragged_at(level + min(len(one), len(other)), set()))


def _error_in(text: bytes, start: int) -> tuple[str, int]:
    """Return the reason why the text of a piece is invalid, and the place in the body."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return error.msg, start + error.pos - 1
    raise AssertionError("the text is valid")
