"""Read from a graph's file, without loading it, where its weights are and which operators it has.

Sources: protobuf's wire format; the field numbers of onnx.proto, which never change.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

# Message → its fields that may contain a node or a TensorProto, and their messages.
_CHILD_MESSAGES: dict[str, dict[int, str]] = {
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
_OPERATOR, _DOMAIN = 4, 7
# Protobuf refuses larger messages, so a larger file cannot be a graph.
_MAX_GRAPH_BYTES = 2**31 - 1

_STANDARD_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_WORK_DEPENDS_ON_VALUES = frozenset(
    {
        *("Loop", "Scan", "If", "SequenceMap", "Range", "Tile", "Expand", "ConstantOfShape", "Resize", "Upsample"),
        *("Pad", "OneHot", "AffineGrid", "CenterCropPad", "Col2Im", "MaxUnpool", "MelWeightMatrix", "BlackmanWindow"),
        *("HammingWindow", "HannWindow", "STFT", "DFT", "SplitToSequence", "NonMaxSuppression", "StringSplit"),
        *("RegexFullMatch", "StringNormalizer", "TfIdfVectorizer", "Multinomial", "CastMap"),
    }
)
"""ONNX operators whose amount of work depends on their inputs' values, not only on shapes."""


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """Contents of a graph's file.

    `external_files`: existing files of external data. `operators`: like `Gemm`; of other domains like
    `com.microsoft.Gelu`. `external_locations`: the external files as the graph names them. All are empty for an invalid
    graph.
    """

    external_files: frozenset[Path] = frozenset()
    operators: frozenset[str] = frozenset()
    external_locations: frozenset[str] = frozenset()

    @property
    def runs_by_shape(self) -> bool:
        """Whether the shapes of its inputs decide how long a run takes. Unknown operators may do anything."""
        known = not any("." in operator for operator in self.operators)
        return bool(self.operators) and known and self.operators.isdisjoint(_WORK_DEPENDS_ON_VALUES)


def read_graph_summary(file: Path) -> GraphSummary:
    """Read a graph's summary, without reading its weights."""
    if not 0 < file.stat().st_size <= _MAX_GRAPH_BYTES:
        return GraphSummary()
    with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
        files: dict[str, Path] = {}
        operators: set[str] = set()
        try:
            for message, fields in _messages(content):
                if message == "Node":
                    domain = fields.get(_DOMAIN, b"").decode()
                    operator = fields.get(_OPERATOR, b"").decode()
                    operators.add(operator if domain in _STANDARD_DOMAINS else f"{domain}.{operator}")
                elif fields.get(_KEY) == b"location":
                    location = fields.get(_VALUE, b"").decode()
                    if (file.parent / location).is_file():
                        files[location] = file.parent / location
        except (ValueError, IndexError, OSError):
            return GraphSummary()
        return GraphSummary(frozenset(files.values()), frozenset(operators), frozenset(files))


def _messages(content: mmap) -> Iterator[tuple[str, dict[int, bytes]]]:
    """Yield every Node and Entry with those of its fields that are needed. Raises ValueError or IndexError for bytes
    that are not protobuf.
    """
    wanted = {"Node": (_OPERATOR, _DOMAIN), "Entry": (_KEY, _VALUE)}
    pending = [("Model", 0, len(content))]
    while pending:
        message, position, end = pending.pop()
        fields: dict[int, bytes] = {}
        for field, start, stop in _counted_fields(content, position, end):
            if field in wanted.get(message, ()):
                fields[field] = content[start:stop]
            elif inner := _CHILD_MESSAGES[message].get(field):
                pending.append((inner, start, stop))
        if message in wanted:
            yield message, fields


def _counted_fields(content: mmap, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, start, stop) of the fields of a message that hold bytes; skip the others."""
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
    """Return a number in groups of seven bits, lowest first, and the position after it."""
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
