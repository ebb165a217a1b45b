"""The files that a graph's tensors point to."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from frameworks.onnx.graph_summary import read_graph_summary
from tests.support.models import onnx_costly_graphs, onnx_encoders, onnx_graphs


def tensor(location: str) -> TensorProto:
    weight = TensorProto()
    weight.CopyFrom(onnx_costly_graphs.external_data(location).graph.initializer[0])
    return weight


def constant(weight: TensorProto) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["c"], value=weight)


def in_an_initializer(weight: TensorProto) -> onnx.ModelProto:
    return helper.make_model(helper.make_graph([], "g", [], [], [weight]))


def in_a_node(weight: TensorProto) -> onnx.ModelProto:
    return helper.make_model(helper.make_graph([constant(weight)], "g", [], []))


def in_a_branch(weight: TensorProto) -> onnx.ModelProto:
    branch = helper.make_graph([], "branch", [], [], [weight])
    node = helper.make_node("If", ["b"], ["y"], then_branch=branch, else_branch=branch)
    return helper.make_model(helper.make_graph([node], "g", [], []))


def in_a_function(weight: TensorProto) -> onnx.ModelProto:
    opset = [helper.make_opsetid("", 18)]
    function = helper.make_function("ours", "f", [], ["c"], [constant(weight)], opset)
    return helper.make_model(helper.make_graph([], "g", [], []), functions=[function])


def in_a_sparse_tensor(weight: TensorProto) -> onnx.ModelProto:
    sparse = onnx.SparseTensorProto(values=weight, dims=[4])
    return helper.make_model(helper.make_graph([], "g", [], [], sparse_initializer=[sparse]))


@pytest.mark.parametrize("place", [in_an_initializer, in_a_node, in_a_branch, in_a_function, in_a_sparse_tensor])
def test_external_tensor_is_found_anywhere(tmp_path: Path, place: Callable[[TensorProto], onnx.ModelProto]) -> None:
    (tmp_path / "wéights").write_bytes(b"1234")
    file = onnx_graphs.save(place(tensor("wéights")), tmp_path)
    assert read_graph_summary(file).external_files == {tmp_path / "wéights"}


def test_tensors_of_two_files_are_found(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).touch()
    weights = [tensor(name) for name in ("a", "b", "a", "absent")]
    file = onnx_graphs.save(helper.make_model(helper.make_graph([], "g", [], [], weights)), tmp_path)
    assert read_graph_summary(file).external_files == {tmp_path / "a", tmp_path / "b"}


def test_graph_with_own_weights_has_no_files(tmp_path: Path) -> None:
    assert read_graph_summary(onnx_graphs.save(onnx_encoders.encoder(), tmp_path)).external_files == set()


def test_key_after_value_is_read(tmp_path: Path) -> None:
    (tmp_path / "w").touch()
    weight = tensor("w")
    location, *others = list(weight.external_data)
    del weight.external_data[:]
    weight.external_data.extend([*others, location])
    assert read_graph_summary(onnx_graphs.save(in_an_initializer(weight), tmp_path)).external_files == {tmp_path / "w"}


@pytest.mark.parametrize("location", ["n" * 5000, "a/b/c", "nul\0", ""])
def test_impossible_location_is_absent(tmp_path: Path, location: str) -> None:
    assert read_graph_summary(onnx_graphs.save(in_an_initializer(tensor(location)), tmp_path)).external_files == set()


@pytest.mark.parametrize("content", [b"", b"\0" * 50, b"\x3a\xff\xff\xff\xff\x0f", b"\xff" * 40, b"\x3b", b"\x3a"])
def test_other_content_has_no_files(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert read_graph_summary(file).external_files == set()


def test_file_beyond_graph_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    with file.open("wb") as sparse:
        sparse.write(b"\x08\x01" * 10)
        sparse.truncate(2**33)
    with monkeypatch.context() as closed:
        closed.setattr(Path, "open", pytest.fail)
        assert read_graph_summary(file).external_files == set()


@given(st.binary(max_size=300))
def test_arbitrary_bytes_never_raise_other_errors(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.onnx"
    file.write_bytes(content)
    assert all(each.is_file() for each in read_graph_summary(file).external_files)


WHOLE = in_a_branch(tensor("deeper/weights")).SerializeToString()


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_arbitrary_byte_changes_never_raise_other_errors(
    tmp_path_factory: pytest.TempPathFactory, position: int, byte: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.onnx"
    file.write_bytes(WHOLE[:position] + bytes([byte]) + WHOLE[position + 1 :])
    assert all(each.is_file() for each in read_graph_summary(file).external_files)
