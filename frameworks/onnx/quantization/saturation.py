"""Measure which weights ONNX Runtime multiplies exactly on this CPU, and round weights to that range.

The tests of the CPU's flags that ONNX Runtime makes are its own: a product of the largest numbers tells what it uses.
"""

from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from frameworks.quantization.ranges import HALVED, LARGEST_ROW, RANGES, WeightRange
from frameworks.types import Array

# Rows, inputs and outputs: multiples of a SIMD vector, and remainders.
_CHECKED_SHAPES = ((1, 128, 128), (7, 45, 51), (16, 128, 128))
_ZERO_POINT = 128
_OPSET = 13
_IR_VERSION = 8
_TINY = 1e-30


@cache
def exact_range() -> WeightRange:
    """Return the most exact range of weights in which a MatMulInteger of unsigned rows does not saturate."""
    return next((each for each in RANGES if all(map(_is_exact, each.probes))), HALVED)


def round_to_range(weight: Array, weight_range: WeightRange) -> tuple[Array, Array]:
    """Return int8 weights [inputs, outputs] and the float32 scale of each output, as small as the range allows."""
    scale = np.abs(weight).max(axis=0) / weight_range.largest
    if weight_range.largest_unrounded_pair is not None:
        even = np.pad(weight, ((0, len(weight) % 2), (0, 0))).reshape(-1, 2, weight.shape[1])
        for sign in (1, -1):
            sums = np.maximum(sign * even, 0).sum(axis=1).max(axis=0)
            scale = np.maximum(scale, sums / weight_range.largest_unrounded_pair)
    scale = np.maximum(scale, _TINY).astype(np.float32)
    return np.round(weight / scale).astype(np.int8), scale


def _is_exact(probe: tuple[int, ...]) -> bool:
    """Multiply the smallest and the largest unsigned number by weights of both signs, which saturate first."""
    for rows, inputs, outputs in _CHECKED_SHAPES:
        weight = np.resize(np.array(probe, np.int8), inputs)[:, None].repeat(outputs, 1)
        weight[:, ::2] *= -1
        session = ort.InferenceSession(_product(weight).SerializeToString(), providers=["CPUExecutionProvider"])
        for number in (0, LARGEST_ROW):
            given = np.full((rows, inputs), number, np.uint8)
            expected = (given.astype(np.int32) - _ZERO_POINT) @ weight.astype(np.int32)
            if not np.array_equal(session.run(None, {"rows": given})[0], expected):
                return False
    return True


def _product(weight: Array) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["rows", "weight", "row_zero", "weight_zero"], ["product"])],
        "probe",
        [helper.make_tensor_value_info("rows", TensorProto.UINT8, [None, len(weight)])],
        [helper.make_tensor_value_info("product", TensorProto.INT32, [None, weight.shape[1]])],
        [
            numpy_helper.from_array(weight, "weight"),
            numpy_helper.from_array(np.array(_ZERO_POINT, np.uint8), "row_zero"),
            numpy_helper.from_array(np.array(0, np.int8), "weight_zero"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
