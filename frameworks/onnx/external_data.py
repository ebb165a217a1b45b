"""Which files beside a graph hold its weights: read off the protobuf's outline, without loading anything.

Sources: protobuf's wire format; the field numbers of onnx.proto, which never change.
"""

from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path

# Message → its fields that may lead to a TensorProto, and what they hold.
_ON_THE_WAY: dict[str, dict[int, str]] = {
    "Model": {7: "Graph", 25: "Function"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Function": {7: "Node"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "Entry"},
    "Entry": {},
}
_KEY, _VALUE = 1, 2
# Protobuf refuses larger messages, so a larger file is no graph.
_LARGEST_GRAPH_BYTES = 2**31 - 1


def external_files(file: Path) -> set[Path]:
    """The files that the graph's tensors point to and that are there; none where the graph is none or lies."""
    if not 0 < file.stat().st_size <= _LARGEST_GRAPH_BYTES:
        return set()
    with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
        try:
            return {path for location in _locations(content) if (path := file.parent / location).is_file()}
        except (ValueError, IndexError, OSError):
            return set()


def _locations(content: mmap) -> Iterator[str]:
    """Raises ValueError or IndexError where the bytes are no protobuf."""
    pending = [("Model", 0, len(content))]
    while pending:
        message, position, end = pending.pop()
        entry = {_KEY: b"", _VALUE: b""}
        for field, start, stop in _counted_fields(content, position, end):
            if message == "Entry":
                entry[field] = content[start:stop]
            elif inner := _ON_THE_WAY[message].get(field):
                pending.append((inner, start, stop))
        if entry[_KEY] == b"location":
            yield entry[_VALUE].decode()


def _counted_fields(content: mmap, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(number, start, stop) of the fields of a message that hold bytes; the others are stepped over."""
    while position < end:
        tag, position = _varint(content, position)
        match tag & 7:
            case _ if tag < 8:
                raise ValueError("no field has number 0")
            case 0:
                _, position = _varint(content, position)
            case 1:
                position += 8
            case 2:
                length, position = _varint(content, position)
                if position + length > end:
                    raise ValueError("a field is longer than its message")
                yield tag >> 3, position, position + length
                position += length
            case 5:
                position += 4
            case kind:
                raise ValueError(f"there is no wire type {kind}")


def _varint(content: mmap, position: int) -> tuple[int, int]:
    """A number in groups of seven bits, lowest first, and the position behind it."""
    number = shift = 0
    while True:
        byte = content[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")
