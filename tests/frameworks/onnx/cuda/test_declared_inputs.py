"""The inputs of a graph's file are those of its session."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from frameworks.onnx.cuda.declared_inputs import DeclaredInputs, read_declared_inputs
from tests.support.models import onnx_encoders, onnx_graphs
from tests.support.models.onnx_graphs import model_of


def read(graph: onnx.ModelProto, folder: Path) -> DeclaredInputs:
    return read_declared_inputs(onnx_graphs.save(graph, folder))


@pytest.mark.parametrize(
    "graph",
    [onnx_graphs.add(), onnx_graphs.add((2, 3)), onnx_graphs.concat(), onnx_graphs.free("n", None, "m"),
     onnx_graphs.identity("float16", ()), onnx_graphs.identity("int64", None), onnx_graphs.two_lengths(),
     onnx_graphs.scaled(), onnx_encoders.encoder()],
)  # fmt: skip
def test_inputs_of_file_equal_those_of_session(graph: onnx.ModelProto, tmp_path: Path) -> None:
    wanted = {
        given.name: tuple(size if isinstance(size, int) else None for size in given.shape)
        for given in onnx_graphs.session(graph).get_inputs()
    }
    # A session shows an undeclared shape as a scalar.
    found = {name: shape or () for name, shape in read(graph, tmp_path).shapes.items()}
    assert found == wanted


@pytest.mark.parametrize(
    ("dtypes", "is_half"),
    [(("float16",), True), (("float32",), False), (("float16", "float32"), False), (("int8",), False), ((), False)],
)
def test_graph_of_half_weights_is_half(dtypes: tuple[str, ...], is_half: bool, tmp_path: Path) -> None:
    weights = {f"w{i}": np.ones((2, 2), dtype) for i, dtype in enumerate(dtypes)}
    # A scale in f32 beside f16 weights is common.
    graph = model_of(
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", "float32", (2,))],
        [("y", "float32", (2,))],
        weights | {"scale": np.ones(1, np.float32)},
    )
    assert read(graph, tmp_path).is_half is is_half


@given(st.data())
def test_damaged_files_raise_nothing(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(onnx_graphs.concat().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("damaged") / "model.onnx"
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    assert isinstance(read_declared_inputs(file), DeclaredInputs)
