"""ONNX graphs that take much time, much memory or external files."""

import math
import time
from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from frameworks.types import Array
from tests.support.models.onnx_graphs import model_of, session


def weighted(factor: float, megabytes: float) -> onnx.ModelProto:
    """x [n, k] → y = factor · x, by a matrix of so many megabytes; k is `side(megabytes)`."""
    weights = numpy_helper.from_array(np.eye(side(megabytes), dtype=np.float32) * np.float32(factor), "weights")
    shape = ("n", side(megabytes))
    model = model_of([helper.make_node("MatMul", ["x", "weights"], ["y"])], [("x", "float32", shape)],
                     [("y", "float32", shape)])  # fmt: skip
    model.graph.initializer.append(weights)
    return model


def side(megabytes: float) -> int:
    """The rows and columns of a square matrix of floats of so many megabytes."""
    return round(math.sqrt(megabytes * 1e6 / 4))


def slow(milliseconds: float, rows: int | str = "n") -> onnx.ModelProto:
    """x [rows, 4] → y = x, after about so many milliseconds of one core, however many rows. With `rows` 1 no two
    requests share a run.
    """
    return looping(max(1, round(milliseconds * _iterations_per_ms())), rows)


def blow_up() -> onnx.ModelProto:
    """rows [1] → zeros: so many of them. The one graph whose small question can ask for all the memory there is."""
    return model_of(
        [helper.make_node("ConstantOfShape", ["rows"], ["zeros"])],
        [("rows", "int64", (1,))],
        [("zeros", "float32", ("n",))],
    )


def hoards() -> onnx.ModelProto:
    """x [n] → y = x. Eight rows at once, or a row of 1000 or more, take more memory than there is address space: the
    allocator refuses them, as it would others on a smaller machine.
    """
    numbers = {"eight": 8, "thousand": 1000, "one": 1, "petabyte": 2**50}
    nodes = [
        helper.make_node("Shape", ["x"], ["rows"]),
        helper.make_node("Div", ["rows", "eight"], ["eights"]),
        helper.make_node("Div", ["x", "thousand"], ["thousands"]),
        helper.make_node("ReduceMax", ["thousands"], ["thousands_at_most"], keepdims=1),
        helper.make_node("Add", ["eights", "thousands_at_most"], ["too_much"]),
        helper.make_node("Min", ["too_much", "one"], ["once"]),
        helper.make_node("Mul", ["once", "petabyte"], ["more"]),
        helper.make_node("Add", ["more", "one"], ["bytes"]),
        helper.make_node(
            "ConstantOfShape", ["bytes"], ["hoard"], value=helper.make_tensor("v", TensorProto.INT8, [1], [0])
        ),
        helper.make_node("ReduceMax", ["hoard"], ["nothing"], keepdims=1),
        helper.make_node("Cast", ["nothing"], ["zeros"], to=TensorProto.INT64),
        helper.make_node("Add", ["x", "zeros"], ["y"]),
    ]
    weights = {name: np.array([value], np.int64) for name, value in numbers.items()}
    return model_of(nodes, [("x", "int64", ("n",))], [("y", "int64", ("n",))], weights)


def external_data(location: str, numbers: int = 4) -> onnx.ModelProto:
    """x [n] → y = x + w [n], n = `numbers`; w's bytes are in the file `location` (see `external_bytes`)."""
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [("x", "float32", (numbers,))],
        [("y", "float32", (numbers,))],
    )
    weight = TensorProto(name="w", dims=[numbers], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "0", "length": str(4 * numbers)}.items():
        weight.external_data.add(key=key, value=value)
    model.graph.initializer.append(weight)
    return model


def external_bytes(numbers: int = 4) -> bytes:
    """Content of the file of `external_data`: the float32 numbers 0, 1, 2, …"""
    return np.arange(numbers, dtype=np.float32).tobytes()


def looping(iterations: int | None, rows: int | str = 1) -> onnx.ModelProto:
    """x → y = x after `iterations` products of matrices, 64 by 64. None: as many as the largest number of x says."""
    matrix = np.roll(np.eye(64, dtype=np.float32), 1, axis=0)  # a rotation: numbers neither grow nor vanish
    tensor = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("MatMul", ["before", "matrix"], ["after"]), helper.make_node("Identity", ["go"], ["go_on"])],
        "body",
        [
            tensor("i", TensorProto.INT64, ()),
            tensor("go", TensorProto.BOOL, ()),
            tensor("before", TensorProto.FLOAT, (64, 64)),
        ],
        [tensor("go_on", TensorProto.BOOL, ()), tensor("after", TensorProto.FLOAT, (64, 64))],
    )
    weights: dict[str, Array] = {"matrix": matrix, "zero": np.array(0, np.float32)}
    if iterations is None:
        counting = [
            helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
            helper.make_node("Cast", ["largest"], ["iterations"], to=TensorProto.INT64),
        ]
    else:
        counting = []
        weights["iterations"] = np.array(iterations, np.int64)
    return model_of(
        [
            *counting,
            helper.make_node("ReduceSum", ["x"], ["seed"], keepdims=0),
            helper.make_node("Mul", ["seed", "zero"], ["nothing"]),
            helper.make_node("Add", ["matrix", "nothing"], ["start"]),
            helper.make_node("Loop", ["iterations", "", "start"], ["end"], body=body),
            helper.make_node("ReduceSum", ["end"], ["sum"], keepdims=0),
            helper.make_node("Mul", ["sum", "zero"], ["still_nothing"]),
            helper.make_node("Add", ["x", "still_nothing"], ["y"]),
        ],
        [("x", "float32", (rows, 4))],
        [("y", "float32", (rows, 4))],
        weights,
    )


@cache
def _iterations_per_ms() -> float:
    """How fast this machine turns the loop, so that `slow` takes about what it is asked for."""
    iterations, took_ms = 1000, 0.0
    feeds = {"x": np.ones((1, 4), np.float32)}
    while took_ms < 20:
        iterations *= 2
        running = session(looping(iterations))
        started_s = time.perf_counter()
        running.run(None, feeds)
        took_ms = (time.perf_counter() - started_s) * 1000
    return iterations / took_ms
