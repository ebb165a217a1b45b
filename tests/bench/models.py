"""The two graphs of the request figures: almost no computing, so that what is measured is the server."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

_IR_VERSION = 9
_OPSET = 18


def write_image_model(file: Path) -> None:
    """`image` float32 [N, 3, 224, 224] → `mean` float32 [N, 3]."""
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])
    node = helper.make_node("ReduceMean", ["image", "axes"], ["mean"], keepdims=0)
    _write(file, node, ("image", ["N", 3, 224, 224]), ("mean", ["N", 3]), axes)


def write_vector_model(file: Path) -> None:
    """`x` float32 [N, 16] → `y` float32 [N, 16]."""
    weights = np.random.default_rng(0).random((16, 16), dtype=np.float32)
    tensor = helper.make_tensor("weights", TensorProto.FLOAT, [16, 16], weights.tobytes(), raw=True)
    _write(file, helper.make_node("MatMul", ["x", "weights"], ["y"]), ("x", ["N", 16]), ("y", ["N", 16]), tensor)


def _write(
    file: Path,
    node: onnx.NodeProto,
    source: tuple[str, list[int | str]],
    result: tuple[str, list[int | str]],
    constant: onnx.TensorProto,
) -> None:
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name, shape in (source, result)
    )
    graph = helper.make_graph([node], "bench", inputs, outputs, [constant])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION), str(file)
    )
