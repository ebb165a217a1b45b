"""Read from a graph's file, without loading it: where its weights are, its operators, and the uses of its inputs.

Sources: protobuf's wire format; the field numbers of onnx.proto, which never change.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path

from frameworks.core.protobuf_wire import BYTES, FieldReader, read_varint

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
_INPUT, _OUTPUT, _OPERATOR, _ATTRIBUTE, _DOMAIN = 1, 2, 4, 5, 7
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


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_POSITIONS_OF_VALUES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow"), (0,)),
    **dict.fromkeys(("AffineGrid", "CenterCropPad", "DFT", "Div", "Expand", "Mod", "OneHot", "Reshape"), (1,)),
    **dict.fromkeys(("Split", "SplitToSequence", "Squeeze", "Tile", "TopK", "Unsqueeze", "Upsample"), (1,)),
    **dict.fromkeys((f"Reduce{name}" for name in _REDUCTIONS), (1,)),
    **dict.fromkeys(("Col2Im", "Range"), (1, 2)),
    "MaxUnpool": (2,),
    "Resize": (2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
}
"""Inputs of ONNX operators that refuse some values, like 0: sizes, axes, steps, divisors."""
_ROUNDING_NAMES = ("Quantize", "QLinear", "Integer")
"""Parts of the names of operators that round activations to integers. DequantizeLinear rounds nothing."""
_AXIS = b"\x0a\x04axis\x18"
"""Beginning of an attribute `axis` that is an integer; the integer follows."""
_ACTIVATIONS = ("Softmax", "Sigmoid")
_COPYING_OPERATORS = ("Cast", "Identity")
_MAX_COPIES = 16


@dataclass(frozen=True, slots=True)
class ValueUse:
    """How a graph uses a value: as the input at `position` of a node.

    `first_input`, `output`: names of the node's first input and output. `axis`: its attribute, 0 without one.
    """

    operator: str
    position: int
    first_input: str
    output: str
    axis: int = 0


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """Contents of a graph's file.

    `external_files`: existing files of external data. `operators`: like `Gemm`; of other domains like
    `com.microsoft.Gelu`. `external_locations`: the external files as the graph names them. `value_uses`: by name, the
    values that go into operators that refuse some values, also through a Cast. `activations`: values that a Softmax or
    Sigmoid has computed, also through a Cast. All are empty for an invalid graph.
    """

    external_files: frozenset[Path] = frozenset()
    operators: frozenset[str] = frozenset()
    external_locations: frozenset[str] = frozenset()
    value_uses: Mapping[str, ValueUse] = field(default_factory=dict)
    activations: frozenset[str] = frozenset()

    @property
    def runs_by_shape(self) -> bool:
        """Whether the shapes of its inputs decide how long a run takes. Unknown operators may do anything."""
        known = not any("." in operator for operator in self.operators)
        return bool(self.operators) and known and self.operators.isdisjoint(_WORK_DEPENDS_ON_VALUES)

    @property
    def rounds_activations(self) -> bool:
        """Whether activations are quantized: the scale of a row may depend on the other rows of its batch."""
        return any(part in operator for operator in self.operators for part in _ROUNDING_NAMES)


def read_graph_summary(file: Path) -> GraphSummary:
    """Read a graph's summary, without reading its weights."""
    if not 0 < file.stat().st_size <= _MAX_GRAPH_BYTES:
        return GraphSummary()
    with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
        files: dict[str, Path] = {}
        operators: set[str] = set()
        uses: dict[str, ValueUse] = {}
        copies: dict[str, str] = {}
        activations: set[str] = set()
        try:
            for message, fields in _messages(content):
                if message == "Node":
                    domain = _last(fields, _DOMAIN)
                    operator = _last(fields, _OPERATOR)
                    operators.add(operator if domain in _STANDARD_DOMAINS else f"{domain}.{operator}")
                    if domain in _STANDARD_DOMAINS:
                        _add_uses(operator, fields, uses, copies)
                        if operator in _ACTIVATIONS:
                            activations.add(_last(fields, _OUTPUT))
                elif _last(fields, _KEY) == "location":
                    location = _last(fields, _VALUE)
                    if (file.parent / location).is_file():
                        files[location] = file.parent / location
        except (ValueError, IndexError, OSError):
            return GraphSummary()
        _follow_copies(uses, copies)
        activations |= {name for name in copies if not activations.isdisjoint(_origins(name, copies))}
        found = frozenset(files.values()), frozenset(operators), frozenset(files)
        return GraphSummary(*found, uses, frozenset(activations))


_Fields = dict[int, list[bytes]]


def _last(fields: _Fields, number: int) -> str:
    """Return the text of a field that occurs once: protobuf takes the last one."""
    return fields[number][-1].decode() if number in fields else ""


def _add_uses(operator: str, fields: _Fields, uses: dict[str, ValueUse], copies: dict[str, str]) -> None:
    """Add the uses of a node's inputs, or note that its output is a copy of its input."""
    if operator in _COPYING_OPERATORS:
        copies[_last(fields, _OUTPUT)] = _last(fields, _INPUT)
    elif operator in _POSITIONS_OF_VALUES:
        names = [name.decode() for name in fields.get(_INPUT, [])]
        [axis] = [read_varint(raw, len(_AXIS), len(raw))[0] for raw in fields.get(_ATTRIBUTE, [])[:1]] or [0]
        axis -= 2**64 if axis >= 2**63 else 0
        for position in _POSITIONS_OF_VALUES[operator]:
            if position < len(names) and names[position]:
                uses.setdefault(names[position], ValueUse(operator, position, names[0], _first(fields), axis))


def _first(fields: _Fields) -> str:
    """Return the name of a node's first output."""
    return fields[_OUTPUT][0].decode() if _OUTPUT in fields else ""


def _follow_copies(uses: dict[str, ValueUse], copies: dict[str, str]) -> None:
    """Give the origins of a copy the use of the copy."""
    for name, use in list(uses.items()):
        for origin in _origins(name, copies):
            uses.setdefault(origin, use)


def _origins(name: str, copies: dict[str, str]) -> Iterator[str]:
    """Yield the values that a value is a copy of, at a few removes: the nearest first."""
    for _ in range(_MAX_COPIES):
        if name not in copies:
            return
        name = copies[name]
        yield name


def _messages(content: mmap) -> Iterator[tuple[str, _Fields]]:
    """Yield every Node and Entry with those of its fields that are needed. Raises ValueError or IndexError for bytes
    that are not protobuf.
    """
    wanted = {"Node": (_INPUT, _OUTPUT, _OPERATOR, _DOMAIN), "Entry": (_KEY, _VALUE)}
    pending = [("Model", 0, len(content))]
    while pending:
        message, position, end = pending.pop()
        fields: _Fields = {}
        for number, kind, start, stop in fields_of(content, position, end):
            if kind != BYTES:
                continue
            if number in wanted.get(message, ()):
                fields.setdefault(number, []).append(content[start:stop])
            elif inner := _CHILD_MESSAGES[message].get(number):
                pending.append((inner, start, stop))
            if message == "Node" and number == _ATTRIBUTE and content[start : start + len(_AXIS)] == _AXIS:
                fields.setdefault(number, []).append(content[start:stop])
        if message in wanted:
            yield message, fields


def fields_of(content: mmap | bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, wire type, start, stop) of the fields of a message. Raises ValueError or IndexError for bytes that
    are not protobuf.
    """
    for number, kind, _, start, stop in FieldReader(content, sys.maxsize).fields(position, end):
        if not number:
            raise ValueError("no field has number 0")
        yield number, kind, start, stop
