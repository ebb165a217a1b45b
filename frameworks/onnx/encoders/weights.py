"""Find the weights of transformers' encoder in an exported graph.

The exporters of torch keep the names of embeddings, biases and norms. The weights of a Linear are transposed, and have
no name of theirs: the node names them, by the scopes of its module, or the bias that is added to the product.
"""

import ast
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
from onnx import GraphProto, NodeProto, TensorProto

from frameworks.onnx.graph_summary import GraphSummary
from frameworks.types import Array

_TABLE_INPUTS = frozenset({"input_ids", "attention_mask"})
_INPUTS = _TABLE_INPUTS | {"token_type_ids"}
_QUANTIZED = ("Quantize", "QLinear", "Integer")
_SCOPES = "pkg.torch.onnx.name_scopes"
_PRODUCTS = ("MatMul", "Gemm")
_FIRST_MODULE = "0"
"""Of sentence-transformers: the encoder. The modules behind it are read from their files."""
_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


class NotAnEncoder(Exception):
    """The graph is not recognised, for the reason in the message."""


def read_weights(file: Path, summary: GraphSummary) -> dict[str, Array]:
    """Return the weights of an encoder by transformers' names, float32, those of a Linear as [outputs, inputs].

    Raises NotAnEncoder, and what onnx raises on files that it cannot read.
    """
    _check_operators(summary)
    graph = onnx.load(str(file)).graph
    inputs = {each.name for each in graph.input} - {each.name for each in graph.initializer}
    if not _TABLE_INPUTS <= inputs <= _INPUTS:
        raise NotAnEncoder(f"it reads {', '.join(sorted(inputs))}, not input_ids and attention_mask")
    tensors = {each.name: each for each in graph.initializer}
    copies = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Identity"}
    # Weights with equal numbers are one tensor, and copies of it, or an input of several modules.
    tensors |= {copy: tensors[origin] for copy, origin in copies.items() if origin in tensors}
    tensors = dict(_vectors(graph, tensors)) | tensors
    products = dict(_products(graph, tensors))
    found = {name: tensor for name, tensor in tensors.items() if _is_path(name) and name not in products}
    linears = {f"{path}.weight" if path else name: name for name, (path, _) in products.items()}
    names = _without_wrapper([*found, *linears])
    if not names:
        raise NotAnEncoder("none of its weights has the name of a module")
    state = {}
    for name, own in names.items():
        tensor = found[name] if name in found else tensors[linears[name]]
        if tensor.data_type in _NARROW:
            kind = TensorProto.DataType.Name(tensor.data_type).lower()
            raise NotAnEncoder(f"its weights are {kind}; export it in float32")
        if tensor.data_type == TensorProto.FLOAT and tensor.dims:
            array: Array = onnx.numpy_helper.to_array(tensor)
            state[own] = array.T if name in linears and products[linears[name]][1] else array
    return state


def _check_operators(summary: GraphSummary) -> None:
    """Raise NotAnEncoder for the operators of a graph that is quantized or optimized."""
    if any(part in operator for operator in summary.operators for part in _QUANTIZED):
        raise NotAnEncoder("its weights are quantized; serve the graph of floats")
    fused = sorted(operator for operator in summary.operators if "." in operator)
    if fused:
        raise NotAnEncoder(f"it has the operators {', '.join(fused)} of an optimizer; export it without optimization")


def _vectors(graph: GraphProto, tensors: Mapping[str, TensorProto]) -> Iterator[tuple[str, TensorProto]]:
    """Yield the biases and the weights of norms by the paths of all modules that read them."""
    for node in graph.node:
        for name in node.input:
            if name in tensors and len(tensors[name].dims) == 1 and _is_path(name) and (path := _path_of(node)):
                yield f"{path}.{name.rpartition('.')[2]}", tensors[name]


def _products(graph: GraphProto, tensors: Mapping[str, TensorProto]) -> Iterator[tuple[str, tuple[str, bool]]]:
    """Yield the weights of products by name, the path of their module, "" for one that has a name, and whether they are
    transposed.
    """
    biases = {
        value: other
        for node in graph.node
        if node.op_type == "Add"
        for value, other in (node.input, reversed(node.input))
        if other in tensors and other.endswith(".bias")
    }
    for node in graph.node:
        if node.op_type not in _PRODUCTS or node.input[1] not in tensors or len(tensors[node.input[1]].dims) != 2:
            continue
        is_transposed = not any(each.name == "transB" and each.i for each in node.attribute)
        bias = node.input[2] if len(node.input) > 2 else biases.get(node.output[0], "")
        path = "" if _is_path(node.input[1]) else _path_of(node) or bias.removesuffix(".bias")
        yield node.input[1], (path, is_transposed)


def _path_of(node: NodeProto) -> str:
    """Return the path of the module that a node computes, by the exporter's scopes; "" where it states none."""
    for each in node.metadata_props:
        if each.key == _SCOPES:
            scopes = ast.literal_eval(each.value)
            return str(scopes[-2]) if len(scopes) > 1 else ""
    return ".".join(node.name.split("/")[1:-1])


def _is_path(name: str) -> bool:
    """Return whether a name is that of a weight of a module, and not one that an exporter made."""
    return "." in name and "::" not in name and "/" not in name


def _without_wrapper(names: list[str]) -> dict[str, str]:
    """Return the names of an encoder, and what they are without the modules around it."""
    parts = {name: name.split(".") for name in names if _is_path(name)}
    if any(each[0] == _FIRST_MODULE for each in parts.values()):
        parts = {name: each for name, each in parts.items() if each[0] == _FIRST_MODULE}
    columns = zip(*parts.values(), strict=False)
    num_shared = len([*itertools.takewhile(lambda column: len({*column}) == 1, columns)])
    return {name: ".".join(each[num_shared:]) for name, each in parts.items()}
