"""Small ONNX graphs of matrix products: what can be quantized, well or badly."""

import numpy as np
import onnx
from onnx import helper

from frameworks.types import Array
from tests.support.models.onnx_graphs import model_of

SIZE = 64


def weights(seed: int = 3) -> Array:
    """float32 [64, 64]."""
    return (np.random.default_rng(seed).standard_normal((SIZE, SIZE)) / 8).astype(np.float32)


def product(weight: Array | None = None, rows: int | str = "n") -> onnx.ModelProto:
    """x [n, 64] → y = x · weight. The node has no name."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    constant = weights() if weight is None else weight
    return model_of([node], [("x", "float32", (rows, SIZE))], [("y", "float32", (rows, SIZE))], {"w": constant})


def gemm() -> onnx.ModelProto:
    """x [n, 64] → y = x · wᵀ + b, by Gemm, as classifiers end."""
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)
    constants = {"w": weights().T.copy(), "b": np.ones(SIZE, np.float32)}
    return model_of([node], [("x", "float32", ("n", SIZE))], [("y", "float32", ("n", SIZE))], constants)


def six_products(harm: float = 1000.0) -> onnx.ModelProto:
    """x [n, 64] → y: six products with a tanh between each; what goes into "harmed" has one number `harm` times as
    large as all others, whose weights are zeros: 256 steps over that range leave the others almost none.
    """
    nodes, constants, value = [], {}, "x"
    for number in range(6):
        weight = weights(number)
        if number == 3:
            constants["stretch"] = np.ones(SIZE, np.float32)
            constants["stretch"][0] = harm
            weight[0] = 0
            nodes += [helper.make_node("Mul", [value, "stretch"], ["stretched"])]
            value = "stretched"
        constants[f"w{number}"] = weight
        name = "harmed" if number == 3 else f"plain_{number}"
        nodes += [helper.make_node("MatMul", [value, f"w{number}"], [f"p{number}"], name=name)]
        nodes += [helper.make_node("Tanh", [f"p{number}"], [f"t{number}"])]
        value = f"t{number}"
    nodes += [helper.make_node("Identity", [value], ["y"])]
    return model_of(nodes, [("x", "float32", ("n", SIZE))], [("y", "float32", ("n", SIZE))], constants)


def dynamically_rounded() -> onnx.ModelProto:
    """x [n, m] → y = x, rounded to 8 bits over its own range and back."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    return model_of(nodes, [("x", "float32", ("n", "m"))], [("y", "float32", ("n", "m"))], {})
