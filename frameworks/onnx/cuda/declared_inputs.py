"""Read the inputs of a graph from its file: TensorRT needs their shapes before a session is opened.

Source: the field numbers of onnx.proto, which never change.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path

from frameworks.core.protobuf_wire import BYTES, VARINT, read_varint
from frameworks.onnx.graph_summary import fields_of

_GRAPH = 7
_INITIALIZER, _INPUT = 5, 11
_TENSOR_DATA_TYPE, _TENSOR_NAME = 2, 8
_FLOAT, _FLOAT16 = 1, 10
# More than one dimension is all that is asked; a file may state gigabytes of them.
_BYTES_OF_TWO = 20


@dataclass(frozen=True, slots=True)
class DeclaredInputs:
    """`shapes`: of each input without a default in the graph; None is a free dimension, and an undeclared shape.

    `is_half`: the graph has weights in f16, and none in f32 of more than one dimension.
    """

    shapes: dict[str, tuple[int | None, ...] | None] = field(default_factory=dict)
    is_half: bool = False


def read_declared_inputs(file: Path) -> DeclaredInputs:
    """Read the inputs of a graph. Those of an invalid graph are empty: ONNX Runtime names its fault."""
    shapes: dict[str, tuple[int | None, ...] | None] = {}
    initializers: set[str] = set()
    dtypes: set[int] = set()
    try:
        with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
            for graph_start, graph_stop in _messages(content, 0, len(content), _GRAPH):
                for number, kind, start, stop in fields_of(content, graph_start, graph_stop):
                    if kind == BYTES and number == _INPUT:
                        name, shape = _input(content, start, stop)
                        shapes[name] = shape
                    elif kind == BYTES and number == _INITIALIZER:
                        name, dtype, num_dimensions = _initializer(content, start, stop)
                        initializers.add(name)
                        if num_dimensions > 1:
                            dtypes.add(dtype)
    except (ValueError, IndexError, OSError):
        return DeclaredInputs()
    required = {name: shape for name, shape in shapes.items() if name not in initializers}
    return DeclaredInputs(required, _FLOAT16 in dtypes and _FLOAT not in dtypes)


def _messages(content: mmap, position: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    for number, kind, start, stop in fields_of(content, position, end):
        if kind == BYTES and number == wanted:
            yield start, stop


def _input(content: mmap, start: int, stop: int) -> tuple[str, tuple[int | None, ...] | None]:
    """Return the name and the shape of a ValueInfoProto: name 1, type 2, tensor type 1, shape 2, dimension 1."""
    name = b""
    shape: tuple[int | None, ...] | None = None
    for number, kind, begin, end in fields_of(content, start, stop):
        if kind == BYTES and number == 1:
            name = content[begin:end]
        elif kind == BYTES and number == 2:
            for tensor in _messages(content, begin, end, 1):
                for declared in _messages(content, *tensor, 2):
                    shape = tuple(_dimension(content, *each) for each in _messages(content, *declared, 1))
    return name.decode(), shape


def _dimension(content: mmap, start: int, stop: int) -> int | None:
    """Return the size of a dimension, None where it has a name or nothing."""
    for number, kind, begin, end in fields_of(content, start, stop):
        if kind == VARINT and number == 1:
            size = read_varint(content, begin, end)[0]
            return size if 0 < size < 2**63 else None
    return None


def _initializer(content: mmap, start: int, stop: int) -> tuple[str, int, int]:
    """Return the name, the dtype and the number of dimensions of a TensorProto."""
    name, dtype, num_dimensions = b"", 0, 0
    for number, kind, begin, end in fields_of(content, start, stop):
        if kind == BYTES and number == _TENSOR_NAME:
            name = content[begin:end]
        elif kind == VARINT and number == _TENSOR_DATA_TYPE:
            dtype = read_varint(content, begin, end)[0]
        elif number == 1:
            num_dimensions += _num_packed(content, begin, end) if kind == BYTES else 1
    return name.decode(), dtype, num_dimensions


def _num_packed(content: mmap, start: int, stop: int) -> int:
    """Return how many numbers are packed, of the first bytes: each ends with a byte below 128."""
    return sum(byte < 0x80 for byte in content[start : min(stop, start + _BYTES_OF_TWO)])
