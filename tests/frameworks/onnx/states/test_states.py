"""States of graphs: their axes, their first values, and the entries that contradict the graph."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from onnx import helper

from frameworks.core.errors import InvalidModel
from frameworks.onnx.model import OnnxModel
from frameworks.types import StatePair
from tests.frameworks.models.loading import load_onnx
from tests.support.models import onnx_graphs, onnx_recurrent
from tests.support.models.onnx_graphs import Shape, model_of


def loaded(folder: Path, graph: Any, **entry: Any) -> OnnxModel:
    model = cast(OnnxModel, load_onnx(onnx_graphs.save(graph, folder), **entry))
    model.warm_up()
    return model


def sums(state: Shape, data: Shape = ("batch", 3), dtype: str = "float32") -> Any:
    """x and h → y = x, and hn = h + 1."""
    one = np.ones((1,) if state else (), np.dtype(dtype))
    nodes = [helper.make_node("Add", ["h", "one"], ["hn"]), helper.make_node("Identity", ["x"], ["y"])]
    return model_of(
        nodes, [("x", dtype, data), ("h", dtype, state)], [("y", dtype, data), ("hn", dtype, state)], {"one": one}
    )


@pytest.mark.parametrize(
    ("shape", "axis", "rows_input"),
    [
        ((2, None, 6), 1, "x"),
        (("batch", 6), 0, "x"),
        (("time", "batch", 6), 1, "x"),
        ((1, 1, 6), None, "x"),
    ],
)
def test_batch_axis_is_found(tmp_path: Path, shape: Shape, axis: int | None, rows_input: str) -> None:
    state: Any = "auto"
    if shape and shape[0] == "time":
        state = [{"input": "h", "output": "hn", "shape": [3, -1, 6]}]
    model = loaded(tmp_path, sums(shape), state=state)
    assert model.spec.state is not None
    [pair] = model.spec.state.pairs
    assert (pair.batch_axis, model.spec.state.rows_input) == (axis, rows_input)
    assert (model.spec.unbatched_because is None) == (axis is not None)


def test_rows_behind_time_are_not_batched(tmp_path: Path) -> None:
    graph = sums((1, "batch", 6), data=("time", "batch", 3))
    model = loaded(tmp_path, graph, state="auto")
    assert model.spec.state is not None
    assert model.spec.state.rows_of({"x": np.zeros((7, 2, 3))}) == 2
    assert model.spec.unbatched_because == 'the rows of input "x" are not its first dimension'


def test_states_are_no_inputs_or_outputs(tmp_path: Path) -> None:
    model = loaded(tmp_path, onnx_recurrent.lstm(), state="auto", max_state_bytes=4096, max_sequence_idle_s=1.5)
    spec = model.spec
    assert ([each.name for each in spec.inputs], [each.name for each in spec.outputs]) == (["x"], ["prob"])
    assert spec.state is not None
    assert spec.state.pairs == (StatePair("state", "stateN", "float32", (2, -1, 6), 1),)
    assert (spec.state.max_bytes, spec.state.idle_s, spec.state_bytes) == (4096, 1.5, 4096)


@pytest.mark.parametrize(
    ("initial", "row"),
    [
        (0, [[0, 0, 0], [0, 0, 0]]),
        (0.5, [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]),
        ([[[1, 2, 3]], [[4, 5, 6]]], [[1, 2, 3], [4, 5, 6]]),
        ([1, 2, 3], [[1, 2, 3], [1, 2, 3]]),
    ],
)
def test_first_state_has_initial_value(tmp_path: Path, initial: Any, row: Any) -> None:
    entry = [{"input": "h", "output": "hn", "initial": initial}]
    model = loaded(tmp_path, sums((2, "batch", 3)), state=entry)
    value = model.first_states(4)["h"]
    assert isinstance(value, np.ndarray)
    np.testing.assert_array_equal(value, np.array([row] * 4, np.float32), strict=True)


def test_growing_state_begins_empty(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
        helper.make_node("ReduceSum", ["present"], ["total"], keepdims=0),
    ]
    shape = ("batch", "length", 2)
    graph = model_of(
        nodes,
        [("x", "float32", ("batch", 1, 2)), ("past", "float32", shape)],
        [("total", "float32", ()), ("present", "float32", ("batch", "longer", 2))],
    )
    entry = [{"input": "past", "output": "present", "shape": [-1, 0, 2]}]
    model = loaded(tmp_path, graph, state=entry)
    first = model.first_states(2)["past"]
    assert isinstance(first, np.ndarray)
    assert first.shape == (2, 0, 2)


@pytest.mark.parametrize(
    ("graph", "entry", "words"),
    [
        (onnx_graphs.identity(), "auto", "state: expected an input and an output of one dtype and shape"),
        (sums(("batch", 6)), [{"input": "H", "output": "hn"}], 'state.input: expected an input of the graph, got "H"'),
        (sums(("batch", 6)), [{"input": "h", "output": "hhn"}], 'got "hhn"; did you mean "hn"'),
        (sums(("batch", 6)), [{"input": "h", "output": "y"}], "state.h: expected an output of its dtype and shape"),
        (sums(("batch", 6)), [{"input": "h", "output": "hn"}] * 2, 'state.input: expected each input once, got "h"'),
        (sums(("batch", "n")), "auto", "state.h.shape: expected a size for each free dimension but the rows"),
        (sums((2, "batch")), [{"input": "h", "output": "hn", "shape": [3, -1]}], "state.h.shape: expected [2, -1]"),
        (sums((2, "batch")), [{"input": "h", "output": "hn", "batch_axis": 2}], "state.h.batch_axis: expected an axis"),
        (sums((2, "batch")), [{"input": "h", "output": "hn", "batch_axis": 0}], "state.h.shape: expected a size"),
        (
            sums((2, "batch"), dtype="int64"),
            [{"input": "h", "output": "hn", "initial": 0.5}],
            "state.h.initial: expected numbers of int64",
        ),
        (sums((2, "batch")), [{"input": "h", "output": "hn", "initial": [1, 2, 3]}], "state.h.initial"),
    ],
)
def test_contradicting_entry_is_refused(tmp_path: Path, graph: Any, entry: Any, words: str) -> None:
    with pytest.raises(InvalidModel) as raised:
        loaded(tmp_path, graph, state=entry)
    assert words in raised.value.message


def test_state_above_bound_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"max_state_bytes: expected at least 48 B, .* got 40 B"):
        loaded(tmp_path, onnx_recurrent.lstm(), state="auto", max_state_bytes=40)
