"""The forms of a tensor request on every path; the response has the form of its request."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.core.machine_code.object_code import is_available
from tests.e2e.server import RunningServer, assert_refused, wait_until

PATHS = ("/infer", "/inference", "/models/free-n/infer", "/models/free-n/versions/1/infer")
QUESTIONS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"input_data": [1, 2, 3, 4, 5, 6]}, {"output_data": [1, 2, 3, 4, 5, 6], "output_shape": [2, 3]}),
    ({"input_data": [[1, 2, 3], [4, 5, 6]]}, {"output_data": [[1, 2, 3], [4, 5, 6]], "output_shape": [2, 3]}),
    ({"inputs": {"x": [[1, 2, 3]]}}, {"outputs": {"y": {"dtype": "float32", "shape": [1, 3], "data": [[1, 2, 3]]}}}),
    (
        {"inputs": {"x": {"data": [1, 2, 3], "shape": [1, 3]}}, "outputs": ["y"]},
        {"outputs": {"y": {"dtype": "float32", "shape": [1, 3], "data": [[1, 2, 3]]}}},
    ),
)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("question", "wanted"), QUESTIONS)
def test_every_path_accepts_every_form(
    path: str, question: dict[str, Any], wanted: dict[str, Any], server: RunningServer
) -> None:
    named: dict[str, Any] = {"model_name": "free-n"} if path in ("/infer", "/inference") else {}
    for name_and_version in (named, {"model_name": "free-n"}, {"model_name": "free-n", "version": "1"}):
        answer = server.client.post(path, json=question | name_and_version)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        body = answer.json()
        assert body.pop("latency_ms") > 0
        assert body == wanted | {"model_name": "free-n", "version": "1"}


def test_body_contradicting_path_refused(server: RunningServer) -> None:
    for path, body, field in (
        ("/models/free-n/infer", {"model_name": "fixed"}, "model_name:"),
        ("/models/free-n/versions/1/infer", {"version": "2"}, "version:"),
    ):
        answer = server.client.post(path, json=body | {"input_data": [1, 2, 3]})
        assert_refused(answer, 400, "invalid_input", field, "as in the path")


# model, input_data, batch_size (0: left out), output_data's shape
@pytest.mark.parametrize(
    ("model", "data", "batch_size", "shape"),
    [
        ("free-n", 3, 0, [1, 3]),
        ("free-n", 30, 0, [10, 3]),
        ("free-n", 30, 10, [10, 3]),
        ("free-n", 0, 0, [0, 3]),
        ("free-last", 8, 0, [2, 4]),
        ("free-last", 8, 2, [2, 4]),
        ("free-last", 0, 0, [2, 0]),
        ("free-nm", 6, 0, [1, 2, 3]),
        ("free-nm", 12, 2, [2, 2, 3]),
        ("free-nm", 12, 4, [4, 1, 3]),
        ("free-nm", 0, 2, [2, 0, 3]),
        ("fixed", 6, 0, [2, 3]),
        ("fixed", 6, 2, [2, 3]),
        ("zero", 0, 5, [5, 0]),
        ("float32", 4, 0, [4]),
    ],
)
def test_flat_list_takes_declared_shape(
    model: str, data: int, batch_size: int, shape: list[int], server: RunningServer
) -> None:
    numbers = list(range(data))
    body: dict[str, Any] = {"input_data": numbers} | ({"batch_size": batch_size} if batch_size else {})
    answer = server.infer(model, **body)
    assert (answer["output_data"], answer["output_shape"]) == (numbers, shape)


@pytest.mark.parametrize(
    ("model", "data", "batch_size", "field", "words"),
    [
        ("free-n", 4, 0, "input_data", "expected a multiple of 3 values, got 4; the model expects [-1, 3]"),
        ("free-n", 6, 3, "input_data", "expected 9 values for shape [3, 3], got 6"),
        ("free-nm", 4, 0, "input_data", "expected a multiple of 3 values, got 4"),
        ("free-nm", 12, 5, "input_data", "expected a multiple of 15 values, got 12"),
        ("free-nml", 12, 0, "input_data", "expected a nested list, got a flat one"),
        ("free-nml", 12, 2, "input_data", "expected a nested list, got a flat one"),
        ("fixed", 5, 0, "input_data", "expected 6 values for shape [2, 3], got 5"),
        ("fixed", 6, 3, "batch_size", "expected 2, the rows of input_data, got 3"),
        ("free-last", 8, 4, "batch_size", "expected 2, the rows of input_data, got 4"),
        ("free-last", 7, 0, "input_data", "expected a multiple of 2 values, got 7"),
        ("zero", 1, 0, "input_data", "got 1"),
        ("zero", 0, 0, "input_data", "the model expects [-1, 0]"),
    ],
)
def test_flat_list_of_wrong_length_refused(
    model: str, data: int, batch_size: int, field: str, words: str, server: RunningServer
) -> None:
    body: dict[str, Any] = {"input_data": [0.5] * data} | ({"batch_size": batch_size} if batch_size else {})
    answer = server.client.post(f"/models/{model}/infer", json=body)
    assert_refused(answer, 400, "invalid_input", f"{field}:", words)


@pytest.mark.parametrize("batch_size", [0, -1, 1.0, 1.5, True, "1", None, [1], {}, 2**31, 2**70])
def test_invalid_batch_size_refused(batch_size: object, server: RunningServer) -> None:
    body = json.dumps({"input_data": [1, 2, 3], "batch_size": batch_size})
    answer = server.post("/models/free-n/infer", body)
    assert_refused(answer, 400, "invalid_input", "batch_size:", "expected an integer of 1 or more")


def test_batch_size_must_match_nested_list(server: RunningServer) -> None:
    rows = [[1, 2, 3], [4, 5, 6]]
    assert server.infer("free-n", input_data=rows, batch_size=2)["output_data"] == rows
    answer = server.client.post("/models/free-n/infer", json={"input_data": rows, "batch_size": 3})
    assert_refused(answer, 400, "invalid_input", "batch_size:", "expected 2, the rows of input_data, got 3")


@pytest.mark.parametrize(
    ("model", "data"),
    [("free-n", [[1, 2]]), ("free-n", [[[1, 2, 3]]]), ("fixed", [[1, 2, 3]]), ("free-n", 5), ("zero", [[1]])],
)
def test_nested_list_of_other_shape_refused(model: str, data: Any, server: RunningServer) -> None:
    answer = server.client.post(f"/models/{model}/infer", json={"input_data": data})
    message = assert_refused(answer, 400, "invalid_input", "input_data:", "expected shape [")
    assert f"got {list(np.shape(data))}" in message
    answer = server.client.post(f"/models/{model}/infer", json={"inputs": {"x": data}})
    assert_refused(answer, 400, "invalid_input", "inputs.x:", "expected shape [")


def test_image_of_150_528_numbers(server: RunningServer) -> None:
    image = np.random.default_rng(3).random((1, 3, 224, 224), dtype=np.float32)
    nested = server.infer("float32", input_data=image.tolist())
    assert np.array_equal(np.array(nested["output_data"], np.float32), image)
    flat = server.infer("float32", input_data=image.ravel().tolist())
    assert np.array_equal(np.array(flat["output_data"], np.float32), image.ravel())


@pytest.mark.parametrize("model", ["add", "concat", "sequence-in", "map-in", "optional-in"])
def test_input_data_needs_one_required_tensor(model: str, server: RunningServer) -> None:
    answer = server.client.post(f"/models/{model}/infer", json={"input_data": [1]})
    assert_refused(
        answer, 400, "invalid_input", "input_data:", "expected a model with one required tensor; send inputs"
    )


@pytest.mark.parametrize(
    ("outputs", "code", "words"),
    [
        (["summ"], "unknown_field", 'outputs.summ: unknown field; did you mean "outputs.sum"?'),
        (["a", "sum"], "unknown_field", "outputs.a"),
        ([], "invalid_input", "outputs: expected a list of different names out of sum, product"),
        (["sum", "sum"], "invalid_input", "outputs: expected a list of different names"),
        ("sum", "invalid_input", "outputs: expected a list"),
        ([1], "invalid_input", "outputs: expected a list"),
        ([["sum"]], "invalid_input", "outputs: expected a list"),
        (None, "invalid_input", "outputs: expected a list"),
        ({"sum": 1}, "invalid_input", "outputs: expected a list"),
    ],
)
def test_invalid_outputs_refused(outputs: object, code: str, words: str, server: RunningServer) -> None:
    inputs = {"a": [[1, 2, 3, 4]], "b": [[1, 2, 3, 4]]}
    answer = server.client.post("/models/add/infer", json={"inputs": inputs, "outputs": outputs})
    assert_refused(answer, 400, code, words)


def test_input_data_returns_one_output(server: RunningServer) -> None:
    image = [0] * 64
    assert server.infer("digits", input_data=image)["output_shape"] == [1]
    answer = server.client.post(
        "/models/digits/infer", json={"input_data": image, "outputs": ["output_label", "output_probability"]}
    )
    assert_refused(answer, 400, "invalid_input", "outputs:", "expected one output with input_data, got 2")


@pytest.mark.parametrize(
    ("inputs", "code", "words"),
    [
        (
            {},
            "invalid_input",
            "inputs.a: expected a tensor, got nothing; the model expects a: float32 [-1, 4], b: float32 [-1, 4]",
        ),
        ({"a": [[1, 2, 3, 4]]}, "invalid_input", "inputs.b: expected a tensor, got nothing"),
        ({"a": [[1, 2, 3, 4]], "B": 1}, "unknown_field", "B: unknown field"),
        ([1], "invalid_input", "inputs: expected an object of name → array, got an array"),
        (None, "invalid_input", "inputs: expected an object of name → array, got null"),
        ("a", "invalid_input", "inputs: expected an object of name → array, got a string"),
    ],
)
def test_unknown_inputs_refused(inputs: object, code: str, words: str, server: RunningServer) -> None:
    assert_refused(server.client.post("/models/add/infer", json={"inputs": inputs}), 400, code, words)


def test_long_arrays_are_read_by_compiled_code(server: RunningServer) -> None:
    if not is_available():
        pytest.skip("numba is not installed")
    image = np.random.default_rng(4).random((1, 3, 224, 224), dtype=np.float32)
    before = server.infer("float32", input_data=image.tolist())

    def is_linked() -> bool:
        server.infer("float32", input_data=image.tolist())
        return "libllvmlite" in Path(f"/proc/{server.process.pid}/maps").read_text(encoding="utf-8")

    wait_until(is_linked)
    after = server.infer("float32", input_data=image.tolist())
    assert before["output_data"] == after["output_data"]
    assert np.array_equal(np.array(after["output_data"], np.float32), image)
    ragged = server.client.post("/models/float32/infer", json={"input_data": [[1.5] * 9000, [2.5] * 8000]})
    message = "expected rows of equal length, got a ragged array: the rows at depth 1 have lengths 8000, 9000"
    assert_refused(ragged, 400, "invalid_input", "input_data:", message)
