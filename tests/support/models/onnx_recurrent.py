"""Small ONNX graphs with a state: an LSTM, its inputs and outputs as Silero VAD has them, and a running sum."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from frameworks.types import Array
from tests.support.models.onnx_graphs import model_of, session

INPUTS = 4
HIDDEN = 6


def lstm(rows: str | int | None = "batch", *, has_rate: bool = False, seed: int = 0) -> onnx.ModelProto:
    """x [rows, 4] and state [2, rows, 6] → prob [rows, 1] and stateN. `has_rate`: an int64 scalar scales x too."""
    random = np.random.default_rng(seed)

    def weights(*shape: int) -> Array:
        return random.normal(0, 0.5, shape).astype(np.float32)

    constants: dict[str, Array] = {
        "W": weights(1, 4 * HIDDEN, INPUTS),
        "R": weights(1, 4 * HIDDEN, HIDDEN),
        "B": weights(1, 8 * HIDDEN),
        "P": weights(HIDDEN, 1),
        "zero": np.array([0], np.int64),
    }
    nodes = [
        helper.make_node("Split", ["state"], ["h", "c"], axis=0, num_outputs=2),
        helper.make_node("Unsqueeze", ["scaled" if has_rate else "x", "zero"], ["steps"]),
        helper.make_node("LSTM", ["steps", "W", "R", "B", "", "h", "c"], ["", "h1", "c1"], hidden_size=HIDDEN),
        helper.make_node("Concat", ["h1", "c1"], ["stateN"], axis=0),
        helper.make_node("Squeeze", ["h1", "zero"], ["last"]),
        helper.make_node("MatMul", ["last", "P"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["prob"]),
    ]
    inputs: list[tuple[str, str, Sequence[int | str | None] | None]] = [
        ("x", "float32", (rows, INPUTS)),
        ("state", "float32", (2, rows, HIDDEN)),
    ]
    if has_rate:
        nodes[:0] = [
            helper.make_node("Cast", ["rate"], ["factor"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", ["x", "factor"], ["scaled"]),
        ]
        inputs.append(("rate", "int64", ()))
    outputs = [("prob", "float32", (rows, 1)), ("stateN", "float32", (None, None, None))]
    return model_of(nodes, inputs, outputs, constants)


def running_sum() -> onnx.ModelProto:
    """x [n, 1] and past_sum [n, 1] → sum and present_sum, both x + past_sum."""
    nodes = [
        helper.make_node("Add", ["x", "past_sum"], ["present_sum"]),
        helper.make_node("Identity", ["present_sum"], ["sum"]),
    ]
    shape = ("n", 1)
    return model_of(
        nodes,
        [("x", "float32", shape), ("past_sum", "float32", shape)],
        [("sum", "float32", shape), ("present_sum", "float32", shape)],
    )


class Loop:
    """One sequence by ONNX Runtime alone: the reference."""

    def __init__(self, graph: onnx.ModelProto | Path | ort.InferenceSession, rows: int = 1) -> None:
        self._session = graph if isinstance(graph, ort.InferenceSession) else session(graph)
        self._state = np.zeros((2, rows, HIDDEN), np.float32)

    def step(self, inputs: Mapping[str, Array]) -> Array:
        """Return prob of the next step."""
        prob, self._state = self._session.run(["prob", "stateN"], {**inputs, "state": self._state})
        result: Array = prob
        return result
