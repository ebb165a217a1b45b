"""Tiny ONNX graphs that read images, and their reference in numpy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from frameworks.types import Array
from tests.support.models.onnx_graphs import model_of

WEIGHTS = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)


def pooled(
    shape: Sequence[int | str] = ("n", 3, 16, 16),
    output: str = "logits",
    dtype: str = "float32",
    activation: str | None = None,
    layout: str = "nchw",
) -> onnx.ModelProto:
    """Mean of each channel, times WEIGHTS: [n, 4]. `activation`: an operator after it."""
    nodes, source = [], "pixels"
    if dtype != "float32":
        nodes.append(helper.make_node("Cast", [source], ["floats"], to=onnx.TensorProto.FLOAT))
        source = "floats"
    axes = np.array([2, 3] if layout == "nchw" else [1, 2])
    last = output if activation is None else "raw"
    nodes += [
        helper.make_node("ReduceMean", [source, "axes"], ["means"], keepdims=0),
        helper.make_node("MatMul", ["means", "weights"], [last]),
    ]
    if activation is not None:
        nodes += [helper.make_node(activation, ["raw"], ["same"]), helper.make_node("Identity", ["same"], [output])]
    constants = {"axes": axes, "weights": WEIGHTS}
    return model_of(nodes, [("pixels", dtype, shape)], [(output, "float32", (shape[0], 4))], constants)


def reference(pixel_values: "Array | Any") -> Array:
    """Return the output for [n, 3, height, width]."""
    rows: Array = np.asarray(pixel_values, np.float32).mean(axis=(2, 3), dtype=np.float32) @ WEIGHTS
    return rows
