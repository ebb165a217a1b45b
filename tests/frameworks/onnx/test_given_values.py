"""Values that a model's entry gives for its warm-up: read, checked, and run."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from frameworks.core.errors import InvalidModel
from frameworks.onnx import given_values
from tests.frameworks.models.loading import load_onnx
from tests.support.models import onnx_graphs
from tests.support.models.onnx_graphs import model_of

GRAPH = model_of(
    [helper.make_node("Gather", ["table", "i"], ["y"])],
    [("i", "int64", ("n",))],
    [("y", "float32", ("n",))],
    {"table": np.arange(4, dtype=np.float32)},
)


def warmed(folder: Path, graph: Any = GRAPH, **entry: Any) -> Any:
    model = load_onnx(onnx_graphs.save(graph, folder), **entry)
    model.warm_up()
    return model


def save(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "values.npz", **arrays)
    return "values.npz"


def test_file_of_values_is_run(tmp_path: Path) -> None:
    model = warmed(tmp_path, input_values=save(tmp_path, i=np.array([3, 1])))
    assert model.example_inputs()["i"].tolist() == [3, 1]
    with pytest.raises(InvalidModel, match=r"the graph refuses the values of its entry: .*idx=4"):
        warmed(tmp_path, input_values=save(tmp_path, i=np.array([4])))


def test_values_of_entry_are_run(tmp_path: Path) -> None:
    assert warmed(tmp_path, warm_up=[{"i": [3, 1]}, {"i": [2]}]).example_inputs()["i"].tolist() == [3, 1]
    filled = warmed(tmp_path, warm_up=[{"i": {"data": 3, "shape": [5]}}])
    assert filled.example_inputs()["i"].tolist() == [3] * 5
    with pytest.raises(InvalidModel, match=r"refuses the values of its entry: .*idx=9"):
        warmed(tmp_path, warm_up=[{"i": [3]}, {"i": [9]}])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "uint8", "bool", "string", "float64"])
def test_values_take_declared_dtype(tmp_path: Path, dtype: str) -> None:
    data = [["a", "b"]] if dtype == "string" else [[1, 0]]
    graph = onnx_graphs.identity(dtype, ("n", 2))
    for entry in ({"x": data}, {"x": {"data": data[0], "shape": [1, 2]}}):
        example = warmed(tmp_path, graph, warm_up=[entry]).example_inputs()["x"]
        assert example.tolist() == data
    if dtype == "string":
        warmed(tmp_path, graph, input_values=save(tmp_path, x=np.array(data)))


def test_inputs_without_values_are_made_up(tmp_path: Path) -> None:
    model = warmed(tmp_path, onnx_graphs.add(), warm_up=[{"a": [[1, 2, 3, 4]]}])
    assert model.example_inputs()["b"].tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"j": [1]}, 'warm_up: expected inputs of the graph, got "j"; its inputs are i'),
        ({"i": [[1]]}, r"warm_up.i: expected the shape \[-1\] \(-1 is free\), got \[1, 1\]"),
        ({"i": [0.5]}, "warm_up.i: expected int64, got float64"),
        ({"i": ["a"]}, "warm_up.i: expected int64, got <U1"),
        ({"i": [[1], 2]}, "warm_up.i: expected rows of equal length"),
        ({"i": {"data": [1, 2], "shape": [3]}}, "warm_up.i: expected 3 elements of data, or one for all, got 2"),
        ({"i": {"data": 1, "shape": [2**60]}}, "warm_up.i: expected at most 33554432 elements"),
    ],
)
def test_unsuitable_values_are_refused(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidModel, match=words):
        warmed(tmp_path, warm_up=[given])


def test_values_for_sequence_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="expected a tensor input, got an input of type sequence"):
        warmed(tmp_path, onnx_graphs.sequence_in(), warm_up=[{"parts": [1]}])


def bytes_of(array: Any, **changes: Any) -> bytes:
    """Return an array as a .npy file, whose header has other fields."""
    content = io.BytesIO()
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape} | changes
    np.lib.format.write_array_header_1_0(content, header)
    values: bytes = array.tobytes()
    return content.getvalue() + values


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no array", "expected a .npz file of numpy.savez"),
        (bytes_of(np.zeros(2, np.int64))[:-8], "an array is longer than its file"),
        (bytes_of(np.zeros(2, np.int64), shape=(2**50,)), "an array is longer than its file"),
        (bytes_of(np.zeros(2, np.int64), descr="|O"), "pickled objects"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    with zipfile.ZipFile(tmp_path / "values.npz", "w") as archive:
        archive.writestr("i.npy", content)
    with pytest.raises(InvalidModel, match=words):
        warmed(tmp_path, input_values="values.npz")
    (tmp_path / "values.npz").write_bytes(b"no archive")
    with pytest.raises(InvalidModel, match=r"expected a \.npz file of numpy\.savez"):
        warmed(tmp_path, input_values="values.npz")


def test_absent_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="No such file"):
        warmed(tmp_path, input_values="values.npz")
    (tmp_path / "model").mkdir()
    os.symlink(tmp_path / save(tmp_path, i=np.array([1])), tmp_path / "model" / "values.npz")
    with pytest.raises(InvalidModel, match="expected a file in the folder of the graph"):
        warmed(tmp_path / "model", input_values="values.npz")


def test_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_values, "MAX_VALUES_BYTES", 1000)
    name = save(tmp_path, i=np.zeros(1000, np.int64))
    with pytest.raises(InvalidModel, match=r"expected at most 1000 B in 1024 tensors, got 7.* in 1; give fewer rows"):
        warmed(tmp_path, input_values=name)


def test_fortran_order_is_kept(tmp_path: Path) -> None:
    x = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    model = warmed(tmp_path, onnx_graphs.identity("float32", (2, 3)), input_values=save(tmp_path, x=x))
    assert model.example_inputs()["x"].tolist() == x.tolist()
