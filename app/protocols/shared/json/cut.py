"""Cut the one long array of numbers out of a body: compiled code reads the array, simdjson the rest.

A cut body is for requests that succeed. Where the array or the rest is unusual, and for most errors, the whole body is
read again without the cut.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from app.protocols.shared.json.body import Node, NumberKind, SimdDocument, is_container
from app.protocols.shared.json.numerals.reader import reader
from frameworks.types import Array

_SEARCHED_BYTES = 1024
"""The array begins and ends so near to the ends of the body."""
_NUMERIC = b"0123456789+-.eE,[] \t\r\n"
_STAND_IN = "\x1anumbers"
_DTYPES: dict[str, Any] = {"float": np.float64, "float32": np.float32, "int": np.int64}


class NotCut(Exception):
    """The body has to be read without the cut."""


class CutArray:
    """The node of the array. `start`, `end`: the places of its brackets in the body. `is_read`: as numbers."""

    __slots__ = ("end", "is_read", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end, self.is_read = start, end, False


def cut(body: bytes) -> "CutDocument | None":
    """Return a document with the one long array cut out; None where there is none, or no code for it is loaded."""
    if type(body) is not bytes:
        return None
    head, tail = body[:_SEARCHED_BYTES], body[-_SEARCHED_BYTES:]
    start = head.find(b"[", len(head.rstrip(_NUMERIC)))
    end = body.rfind(b"]", len(body) - len(tail), len(body) - len(tail.lstrip(_NUMERIC)))
    # Between several arrays there are names.
    if start < 0 or end < 0 or body.find(b'"', start, end) >= 0 or not reader.is_ready(len(body)):
        return None
    try:
        return CutDocument(body, CutArray(start, end))
    except (ValueError, RuntimeError):
        return None


class CutDocument(SimdDocument):
    """The Document of `body.py`. The array is of unknown content until `numbers` reads it. All methods raise NotCut."""

    def __init__(self, body: bytes, array: CutArray) -> None:
        """Raises ValueError, RuntimeError where the rest is invalid."""
        super().__init__(b'%b"\\u001a%b"%b' % (body[: array.start], _STAND_IN[1:].encode(), body[array.end + 1 :]))
        if is_container(self.root) and self.root.mini.count(b"\\u001a") != 1:
            raise ValueError("the body has the stand-in itself")
        self._whole = body
        self.array = array
        self.root = self._node(self.root)

    def members(self, node: Node, known: Collection[str], within: str = "") -> dict[str, Node]:
        return {name: self._node(value) for name, value in super().members(node, known, within).items()}

    def is_array(self, node: Node) -> bool:
        return node is self.array or super().is_array(node)

    def items(self, array: Node) -> list[Node]:
        if array is self.array:
            raise NotCut
        return [self._node(each) for each in super().items(array)]

    def python(self, node: Node) -> Any:
        if node is self.array or (is_container(node) and b"\\u001a" in node.mini):
            raise NotCut
        return super().python(node)

    def numbers(self, node: Node, kind: NumberKind) -> tuple[Array, tuple[int, ...]]:
        if node is not self.array:
            return super().numbers(node, kind)
        read = None
        if kind in _DTYPES:
            read = reader.read(self._whole, self.array.start, self.array.end, np.dtype(_DTYPES[kind]))
        if read is None:
            raise NotCut
        self.array.is_read = True
        return read

    def shapes_are_certain(self) -> bool:
        return self.array.is_read and super().shapes_are_certain()

    def _node(self, value: Node) -> Node:
        return self.array if value == _STAND_IN else value
