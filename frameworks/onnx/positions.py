"""Find out by a trial how many positions of a text a graph has embeddings for.

Only the part of the graph that computes the positions is run. Sources: the field numbers of onnx.proto, which never
change; `EmbedLayerNormalization` of ONNX Runtime's contributed operators.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path

import onnxruntime as ort

from frameworks.core.errors import InvalidModel
from frameworks.core.protobuf_wire import BYTES, VARINT, read_varint, write_field
from frameworks.onnx.graph_summary import fields_of
from frameworks.onnx.session import plain_message
from frameworks.text.positions import usable_positions
from frameworks.types import Array

# Bounds of the part that computes the positions: it is small, and has no weights.
_MAX_NODES = 500
_MAX_VALUE_BYTES = 1024**2
_MAX_TABLES = 64
_MAX_COPIES = 16
_COPYING_OPERATORS = ("Cast", "DequantizeLinear", "Identity")
_FUSED_TABLE, _FUSED_INDEX = 3, 8
"""Inputs of EmbedLayerNormalization: the table of positions, and its rows."""
_LOG_NOTHING = 4
_OUTPUT_PREFIX = "rows read by "

# Numbers of the fields of Model, Graph, Node, Attribute, Tensor and ValueInfo.
_IR_VERSION, _GRAPH, _OPSET = 1, 7, 8
_NODE, _GRAPH_NAME, _INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 2, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _OPERATOR, _ATTRIBUTE = 1, 2, 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_INTEGER, _ATTRIBUTE_GRAPHS = 1, 3, (6, 11)
_DIMENSION, _TENSOR_NAME, _EXTERNAL_DATA = 1, 8, 13
_VALUE_NAME = 1


@dataclass(slots=True)
class _Node:
    raw: bytes
    inputs: list[str]
    outputs: list[str]
    operator: str = ""
    axis: int = 0
    has_graph: bool = False


@dataclass(frozen=True, slots=True)
class _Tensor:
    """An initializer. `span`: its bytes in the file."""

    dimensions: tuple[int, ...]
    span: tuple[int, int]
    is_external: bool


@dataclass(frozen=True, slots=True)
class _Table:
    """A read of a table of `num_rows` rows. `index`: the value with the rows that are read."""

    num_rows: int
    index: str


@dataclass(slots=True)
class _Graph:
    """The parts of a graph's file. `header`: the fields of the model beside its graph."""

    content: mmap
    header: bytes = b""
    nodes: list[_Node] = field(default_factory=list)
    tensors: dict[str, _Tensor] = field(default_factory=dict)
    inputs: dict[str, bytes] = field(default_factory=dict)
    producers: dict[str, int] = field(default_factory=dict)


def find_usable_positions(file: Path, inputs: Mapping[str, Array]) -> int | None:
    """Return the largest number of tokens of a text, by the tables that a graph reads; None without one of positions.

    `inputs`: of the graph, [texts, tokens], for one text without padding; further rows are padding alone.
    Raises ValueError, IndexError or OSError for a file that is no graph, InvalidModel if the part does not run.
    """
    with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
        graph = _read(content)
        needed = {table: _needed(graph, table.index) for table in _tables(graph)}
        tables = [table for table, nodes in needed.items() if nodes is not None]
        model = _part(graph, [table.index for table in tables], set().union(*filter(None, needed.values())))
    if not tables:
        return None
    indices = _run(model, inputs)
    texts, tokens = next(iter(inputs.values())).shape
    shapes = ((tokens,), (1, tokens), (texts, tokens))
    return usable_positions(
        (table.num_rows, index.reshape(-1, tokens)[0].tolist())
        for table, index in zip(tables, indices, strict=True)
        if index.shape in shapes
    )


def _run(model: bytes, inputs: Mapping[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = _LOG_NOTHING
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        known = {argument.name for argument in session.get_inputs()}
        outputs: list[Array] = session.run(None, {name: value for name, value in inputs.items() if name in known})
        return outputs
    except Exception as error:
        raise InvalidModel(f"the part that numbers the positions does not run: {plain_message(error)}") from error


def _read(content: mmap) -> _Graph:
    """Read the nodes of a graph itself, without those of branches, loops and functions."""
    graph = _Graph(content)
    for number, kind, start, stop in fields_of(content, 0, len(content)):
        if number == _IR_VERSION and kind == VARINT:
            graph.header += bytes([_IR_VERSION << 3]) + content[start:stop]
        elif number == _OPSET and kind == BYTES:
            graph.header += write_field(_OPSET, content[start:stop])
        elif number == _GRAPH and kind == BYTES:
            for inner, _, first, last in fields_of(content, start, stop):
                if inner == _NODE:
                    _add_node(graph, first, last)
                elif inner == _INITIALIZER:
                    _add_tensor(graph, first, last)
                elif inner == _GRAPH_INPUT:
                    graph.inputs[_texts(content, first, last, _VALUE_NAME)[0]] = content[first:last]
    return graph


def _add_node(graph: _Graph, start: int, stop: int) -> None:
    """Add a node; one that holds weights without its bytes."""
    content = graph.content
    operator = next(iter(_texts(content, start, stop, _OPERATOR)), "")
    inputs, outputs = (_texts(content, start, stop, wanted) for wanted in (_NODE_INPUT, _NODE_OUTPUT))
    node = _Node(content[start:stop] if stop - start <= _MAX_VALUE_BYTES else b"", inputs, outputs, operator)
    for number, _, first, last in fields_of(node.raw, 0, len(node.raw)):
        if number == _ATTRIBUTE:
            for inner, _, value, _ in fields_of(node.raw, first, last):
                node.has_graph |= inner in _ATTRIBUTE_GRAPHS
                if inner == _ATTRIBUTE_INTEGER and _texts(node.raw, first, last, _ATTRIBUTE_NAME) == ["axis"]:
                    node.axis = read_varint(node.raw, value, last)[0]
    graph.producers |= {name: len(graph.nodes) for name in outputs if name}
    graph.nodes.append(node)


def _add_tensor(graph: _Graph, start: int, stop: int) -> None:
    """Add an initializer without reading its values."""
    name, is_external = "", False
    dimensions: list[int] = []
    for number, kind, first, last in fields_of(graph.content, start, stop):
        if number == _TENSOR_NAME:
            name = graph.content[first:last].decode()
        elif number == _DIMENSION:
            position = first
            while position < last:  # packed, or a field for each
                size, position = read_varint(graph.content, position, last)
                dimensions.append(size)
        is_external |= number == _EXTERNAL_DATA and kind == BYTES
    graph.tensors[name] = _Tensor(tuple(dimensions), (start, stop), is_external)


def _tables(graph: _Graph) -> list[_Table]:
    """Return the reads of rows of tables that are weights of the graph."""
    found = []
    for node in graph.nodes:
        if node.operator == "Gather" and len(node.inputs) == 2 and not node.axis:
            table, index = node.inputs
        elif node.operator == "EmbedLayerNormalization" and len(node.inputs) > _FUSED_INDEX:
            table, index = node.inputs[_FUSED_TABLE], node.inputs[_FUSED_INDEX]
        else:
            continue
        tensor = graph.tensors.get(_origin(graph, table))
        if tensor is not None and len(tensor.dimensions) > 1 and index:
            found.append(_Table(tensor.dimensions[0], index))
    return found[:_MAX_TABLES]


def _origin(graph: _Graph, name: str) -> str:
    """Return the value that a value is a copy of, perhaps of another dtype."""
    for _ in range(_MAX_COPIES):
        number = graph.producers.get(name)
        if number is None or graph.nodes[number].operator not in _COPYING_OPERATORS:
            break
        name = graph.nodes[number].inputs[0]
    return name


def _needed(graph: _Graph, name: str) -> set[int] | None:
    """Return the indices of the nodes that compute a value; None where these are many, or read weights."""
    nodes: set[int] = set()
    pending = [name]
    while pending:
        value = pending.pop()
        tensor, number = graph.tensors.get(value), graph.producers.get(value)
        if tensor is not None and (tensor.is_external or tensor.span[1] - tensor.span[0] > _MAX_VALUE_BYTES):
            return None
        if number is None or number in nodes:
            continue
        node = graph.nodes[number]
        nodes.add(number)
        if node.has_graph or not node.raw or len(nodes) > _MAX_NODES:
            return None
        pending += node.inputs
    return nodes


def _part(graph: _Graph, outputs: list[str], indices: set[int]) -> bytes:
    """Return a model of these nodes, with the inputs of the graph and these outputs."""
    nodes = [graph.nodes[number] for number in sorted(indices)]
    used = {name for node in nodes for name in node.inputs} | set(outputs)
    parts = [write_field(_NODE, node.raw) for node in nodes]
    # An output may be an input of the graph, or an output twice.
    for position, name in enumerate(outputs):
        copy = f"{_OUTPUT_PREFIX}{position}".encode()
        fields = {_NODE_INPUT: name.encode(), _NODE_OUTPUT: copy, _OPERATOR: b"Identity"}
        parts.append(write_field(_NODE, b"".join(write_field(number, text) for number, text in fields.items())))
        parts.append(write_field(_GRAPH_OUTPUT, write_field(_VALUE_NAME, copy)))
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in used}
    parts += [write_field(_INITIALIZER, graph.content[slice(*tensor.span)]) for tensor in tensors.values()]
    parts += [write_field(_GRAPH_INPUT, raw) for name, raw in graph.inputs.items() if name not in graph.tensors]
    return graph.header + write_field(_GRAPH, write_field(_GRAPH_NAME, b"positions") + b"".join(parts))


def _texts(content: mmap | bytes, start: int, stop: int, wanted: int) -> list[str]:
    """Return the texts of a repeated field of a message."""
    fields = fields_of(content, start, stop)
    return [content[first:last].decode() for number, _, first, last in fields if number == wanted]
