"""The node models of the onnx package, with their inputs, and what ONNX Runtime alone answers."""

import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, TypeProto, helper, numpy_helper

from tests.support.models.onnx_graphs import ONNX_DTYPES

PARTS = 10
"""The models are divided into so many parts by their names."""

_BFLOAT16 = TensorProto.BFLOAT16
_RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}


class NotCompared(Exception):
    """ONNX Runtime alone does not load or run the model, or JSON cannot carry its values. The message has the kind."""


@dataclass(frozen=True, slots=True)
class NodeModel:
    """A model with its inputs, by name. `is_random`: two runs differ."""

    name: str
    graph: onnx.ModelProto
    inputs: Mapping[str, Any]
    is_random: bool

    def run_alone(self) -> dict[str, Any]:
        """Return each output of raw ONNX Runtime. Raises NotCompared."""
        graph = self.graph.graph
        for argument in (*graph.input, *graph.output):
            _check_dtypes(argument.type)
        _check_finite(self.inputs.values())
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            model = _without_bfloat16(self.graph).SerializeToString()
            session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise NotCompared("does not load") from error
        try:
            outputs = session.run(None, dict(self.inputs))
        except Exception as error:
            raise NotCompared("does not run") from error
        return dict(zip((output.name for output in graph.output), outputs, strict=True))


def node_models(part: int) -> Iterator[NodeModel]:
    """Yield the models of one part, in the order of their names."""
    for case in sorted(_collect(), key=lambda case: str(case.name)):
        if zlib.crc32(case.name.encode()) % PARTS == part:
            values = [_plain(value) for value in case.data_sets[0][0]]
            inputs = {given.name: value for given, value in zip(case.model.graph.input, values, strict=True)}
            is_random = any(node.op_type in _RANDOM for node in case.model.graph.node)
            yield NodeModel(case.name, case.model, inputs, is_random)


@cache
def _collect() -> list[Any]:
    """Return the package's own cases. The outputs of pooling are not computed, which would take most of the time."""
    from onnx.backend.test.case import base
    from onnx.reference.ops import op_pool_common

    def zeros(*arguments: Any, **_: Any) -> Any:
        padded, shape, _kernel, _strides, sizes = arguments[:5]
        return np.zeros([*shape[:2], *sizes], padded.dtype)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original = op_pool_common.pool, base.process_snippet
        op_pool_common.pool, base.process_snippet = zeros, lambda *_: ("", "")
        try:
            from onnx.backend.test.loader import load_node_model_tests

            cases: list[Any] = load_node_model_tests()
            return cases
        finally:
            op_pool_common.pool, base.process_snippet = original


def _plain(value: Any) -> Any:
    if isinstance(value, TensorProto):
        value = numpy_helper.to_array(value)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.name == "bfloat16":
            return array.astype(np.float32)
        return array.astype(object) if array.dtype.kind in "US" else array
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _check_dtypes(kind: TypeProto) -> None:
    """Raise NotCompared for a type that requests cannot have, like float8 or complex numbers."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            if kind.tensor_type.elem_type not in ONNX_DTYPES.values():
                raise NotCompared("has a dtype that requests cannot have")
        case "sequence_type":
            _check_dtypes(kind.sequence_type.elem_type)
        case "optional_type":
            _check_dtypes(kind.optional_type.elem_type)
        case "map_type":
            _check_dtypes(kind.map_type.value_type)
        case _:
            raise NotCompared("has a dtype that requests cannot have")


def _check_finite(values: Any) -> None:
    for value in values:
        if isinstance(value, list):
            _check_finite(value)
        elif isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
            raise NotCompared("has inputs that JSON cannot carry")


def _without_bfloat16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with float32 where its inputs and outputs are bfloat16, which numpy has not."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    for argument in graph.input:
        if argument.type.tensor_type.elem_type == _BFLOAT16:
            for node in graph.node:
                node.input[:] = [f"{name} bits" if name == argument.name else name for name in node.input]
            argument.type.tensor_type.elem_type = TensorProto.FLOAT
            graph.node.insert(0, helper.make_node("Cast", [argument.name], [f"{argument.name} bits"], to=_BFLOAT16))
    for argument in graph.output:
        if argument.type.tensor_type.elem_type == _BFLOAT16:
            for node in graph.node:
                node.output[:] = [f"{name} bits" if name == argument.name else name for name in node.output]
            argument.type.tensor_type.elem_type = TensorProto.FLOAT
            cast = helper.make_node("Cast", [f"{argument.name} bits"], [argument.name], to=TensorProto.FLOAT)
            graph.node.append(cast)
    return copy
