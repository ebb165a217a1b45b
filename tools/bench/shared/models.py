"""Write the graphs of the benchmarks. Two compute almost nothing, so the server is measured; one is slow."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_IR_VERSION = 9
_OPSET = 18


def write_image_model(file: Path) -> None:
    """`image` float32 [N, 3, 224, 224] → `mean` float32 [N, 3]."""
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])
    node = helper.make_node("ReduceMean", ["image", "axes"], ["mean"], keepdims=0)
    _write(file, [node], ("image", ["N", 3, 224, 224]), ("mean", ["N", 3]), [axes])


def vector_weights() -> np.ndarray[Any, Any]:
    """float32 [16, 16]: `y` is `x` times these."""
    return np.random.default_rng(0).random((16, 16), dtype=np.float32)


def write_vector_model(file: Path) -> None:
    """`x` float32 [N, 16] → `y` float32 [N, 16]."""
    tensor = numpy_helper.from_array(vector_weights(), "weights")
    node = helper.make_node("MatMul", ["x", "weights"], ["y"])
    _write(file, [node], ("x", ["N", 16]), ("y", ["N", 16]), [tensor])


def write_scaled_encoder(source: Path, folder: Path, factor: float) -> None:
    """Write a copy of an encoder's folder whose first output is multiplied by `factor`, to recognise its answers."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("model.onnx"))
    model = onnx.load(source / "model.onnx")
    name = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["unscaled" if output == name else output for output in node.output]
    model.graph.initializer.append(numpy_helper.from_array(np.array(factor, np.float32), "factor"))
    model.graph.node.append(helper.make_node("Mul", ["unscaled", "factor"], [name]))
    onnx.save(model, folder / "model.onnx")


def write_slow_model(file: Path, turns: int) -> None:
    """Write `x` float32 [1, 1] → `y` float32 [1, 1] with this number of matrix products; one row, so never batched."""
    size = 128
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((size, size)))[0].astype(np.float32)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["still"]),
            helper.make_node("MatMul", ["state", "rotation"], ["next_state"]),
        ],
        "turn",
        [
            helper.make_tensor_value_info("turn_number", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [size, size]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next_state", TensorProto.FLOAT, [size, size]),
        ],
    )
    nodes = [
        helper.make_node("Add", ["rotation", "x"], ["start"]),
        helper.make_node("Loop", ["turns", "", "start"], ["end"], body=body),
        helper.make_node("ReduceMean", ["end"], ["y"], keepdims=1),
    ]
    constants = [
        numpy_helper.from_array(rotation, "rotation"),
        helper.make_tensor("turns", TensorProto.INT64, [], [turns]),
    ]
    _write(file, nodes, ("x", [1, 1]), ("y", [1, 1]), constants)


def _write(
    file: Path,
    nodes: list[onnx.NodeProto],
    source: tuple[str, list[int | str]],
    result: tuple[str, list[int | str]],
    constants: list[onnx.TensorProto],
) -> None:
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name, shape in (source, result)
    )
    graph = helper.make_graph(nodes, "bench", inputs, outputs, constants)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION), str(file)
    )
