"""Made-up values suit the operators that read them as sizes, axes, steps or divisors."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from frameworks.onnx.graph_summary import ValueUse, read_graph_summary
from tests.support.models import onnx_graphs
from tests.support.models.onnx_graphs import model_of

Arguments = list[tuple[str, str, tuple[int | str, ...]]]


def graph(op: str, inputs: Arguments, shape: tuple[int | str, ...], dtype: str = "float32", **attributes: Any) -> Any:
    """Return a graph of one node, whose inputs are those of the graph; an input without a name is left out."""
    node = helper.make_node(op, [name for name, _, _ in inputs], ["y"], **attributes)
    return model_of([node], [given for given in inputs if given[0]], [("y", dtype, shape)])


X = ("x", "float32", (2, 3, 4))
NONE = ("", "", ())
GRAPHS = {
    "Reshape to the declared shape": graph("Reshape", [X, ("s", "int64", (2,))], (6, 4)),
    "Reshape to an undeclared shape": graph("Reshape", [X, ("s", "int64", (4,))], ("a", "b", "c", "d")),
    "Expand": graph("Expand", [X, ("s", "int64", (3,))], ("a", "b", "c")),
    "ConstantOfShape": graph("ConstantOfShape", [("s", "int64", (2,))], (2, 3)),
    "Resize by scales": graph("Resize", [X, NONE, ("s", "float32", (3,))], ("a", "b", "c")),
    "Resize to sizes": graph("Resize", [X, NONE, NONE, ("s", "int64", (3,))], (2, 6, 8)),
    "Tile": graph("Tile", [X, ("s", "int64", (3,))], ("a", "b", "c")),
    "Slice": graph(
        "Slice",
        [X, *((name, "int64", (3,)) for name in ("starts", "ends", "axes", "steps"))],
        ("a", "b", "c"),
    ),
    "Slice of narrow integers": graph(
        "Slice",
        [X, *((name, "int32", (2,)) for name in ("starts", "ends", "axes"))],
        ("a", "b", "c"),
    ),
    "Split": model_of(
        [helper.make_node("Split", ["x", "s"], ["a", "b"], axis=-1)],
        [("x", "float32", (2, 7)), ("s", "int64", (2,))],
        [("a", "float32", (2, "n")), ("b", "float32", (2, "m"))],
    ),
    "Unsqueeze": graph("Unsqueeze", [X, ("s", "int64", (2,))], ("a", "b", "c", "d", "e")),
    "Squeeze": graph("Squeeze", [("x", "float32", (2, 1, 3, 1)), ("s", "int64", (2,))], ("a", "b")),
    "ReduceSum": graph("ReduceSum", [X, ("s", "int64", (2,))], ("a",), keepdims=0),
    "TopK": model_of(
        [helper.make_node("TopK", ["x", "k"], ["y", "i"])],
        [("x", "float32", (2, 3)), ("k", "int64", (1,))],
        [("y", "float32", (2, "k")), ("i", "int64", (2, "k"))],
    ),
    "Div of integers": graph("Div", [("x", "int32", (3,)), ("z", "int32", (3,))], (3,), "int32"),
    "Mod of integers": graph("Mod", [("x", "int64", (3,)), ("z", "int64", (3,))], (3,), "int64"),
    "Cast of strings": graph("Cast", [("x", "string", (3,))], (3,), to=onnx.TensorProto.FLOAT),
    "Range": graph("Range", [(name, "int64", ()) for name in ("start", "limit", "delta")], ("n",), "int64"),
    "a shape through a Cast": model_of(
        [
            helper.make_node("Cast", ["s"], ["wide"], to=onnx.TensorProto.INT64),
            helper.make_node("Identity", ["wide"], ["same"]),
            helper.make_node("Reshape", ["x", "same"], ["y"]),
        ],
        [X, ("s", "int32", (2,))],
        [("y", "float32", ("n", 4))],
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_operators_accept_made_up_values(name: str, loaded: Any) -> None:
    assert loaded(GRAPHS[name]).spec.unwarmed_because is None


def test_undeclared_lengths_are_tried_with_ones(loaded: Any) -> None:
    """The divisor is computed, so no operator reads it from an input."""
    nodes = [helper.make_node("Mul", ["x", "x"], ["square"]), helper.make_node("Div", ["x", "square"], ["y"])]
    made = model_of(nodes, [("x", "int32", ("n",))], [("y", "int32", ("n",))])
    assert loaded(made).spec.unwarmed_because is None


def test_example_is_declared_shape_for_reshape(loaded: Any) -> None:
    values = loaded(GRAPHS["Reshape to the declared shape"]).example_inputs()
    assert values["s"].tolist() == [6, 4]
    assert values["x"].shape == (2, 3, 4)
    assert not np.any(values["x"])


def test_uses_name_node_and_axis(tmp_path: Any) -> None:
    summary = read_graph_summary(onnx_graphs.save(GRAPHS["Split"], tmp_path))
    assert summary.value_uses == {"s": ValueUse("Split", 1, "x", "a", -1)}
    summary = read_graph_summary(onnx_graphs.save(GRAPHS["a shape through a Cast"], tmp_path))
    assert {summary.value_uses[name] for name in ("s", "wide", "same")} == {ValueUse("Reshape", 1, "x", "y")}
