"""Every dtype and kind of value round-trips and equals ONNX Runtime's own outputs bit for bit."""

import json
from typing import Any

import numpy as np
import pytest

from frameworks.types import NUMPY_DTYPES
from tests.e2e.configs import ALL_KINDS
from tests.e2e.server import MODELS, RunningServer, assert_refused
from tests.support.models import onnx_graphs

EXTREMES: dict[str, list[Any]] = {
    "bool": [True, False],
    **{
        f"{sign}int{bits}": [int(np.iinfo(f"{sign}int{bits}").min), 0, 1, int(np.iinfo(f"{sign}int{bits}").max)]
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "float16": [0.0, -0.0, 1.5, -65504.0, 65504.0, 6e-8, 0.0999755859375],
    "bfloat16": [0.0, -1.5, 3.3895313892515355e38, 0.10009765625, 256.0],
    "float32": [0.0, -0.0, 0.1, 3.4028234663852886e38, 1e-45, 16777217, 1 / 3],
    "float64": [0.0, -0.0, 0.1, 1.7976931348623157e308, 5e-324, 9007199254740993, 1 / 3],
    "string": ["", "a", "Ωß漢字🚂", '"quoted" \\ and\n\ttabs\u0000\u001f', "[[1,[2]", "]", "{}", "e\u0301", "\u2028"],
}


@pytest.mark.parametrize("dtype", EXTREMES)
@pytest.mark.parametrize("rows", [None, 1, 2])
def test_dtype_round_trips(dtype: str, rows: int | None, server: RunningServer) -> None:
    values = EXTREMES[dtype]
    data: list[Any] = values if rows is None else [values] * rows
    answer = server.infer(dtype, inputs={"x": data})
    output = answer["outputs"]["y"]
    assert output["dtype"] == dtype
    assert output["shape"] == list(np.shape(data))
    if dtype == "string":
        assert output["data"] == data
        return
    wanted = np.array(data, dtype=NUMPY_DTYPES[dtype])
    came = np.array(output["data"], dtype=wanted.dtype)
    assert came.tobytes() == wanted.tobytes()
    assert answer.keys() == {"model_name", "version", "latency_ms", "outputs"}
    assert (answer["model_name"], answer["version"]) == (dtype, "1")


@pytest.mark.parametrize("dtype", EXTREMES)
def test_single_value_is_scalar(dtype: str, server: RunningServer) -> None:
    for value in EXTREMES[dtype]:
        output = server.infer(dtype, inputs={"x": value})["outputs"]["y"]
        assert output["shape"] == []
        assert output["data"] == (value if dtype == "string" else NUMPY_DTYPES[dtype].type(value).item())


@pytest.mark.parametrize("dtype", EXTREMES)
@pytest.mark.parametrize(("data", "shape"), [([], [0]), ([[], []], [2, 0]), ([[[]]], [1, 1, 0])])
def test_empty_tensor_keeps_shape(dtype: str, data: list[Any], shape: list[int], server: RunningServer) -> None:
    assert server.infer(dtype, inputs={"x": data})["outputs"]["y"] == {"dtype": dtype, "shape": shape, "data": data}


def test_empty_tensor_takes_stated_shape(server: RunningServer) -> None:
    nested: list[Any] = [[], [], []]
    cases: list[tuple[list[int], list[Any]]] = [([0, 3], []), ([3, 0], nested), ([0, 2**30], []), ([3, 0, 4], nested)]
    for shape, data in cases:
        for given in ([], data):
            answer = server.infer("int8", inputs={"x": {"data": given, "shape": shape}})
            assert answer["outputs"]["y"] == {"dtype": "int8", "shape": shape, "data": data}
    answer = server.client.post("/models/int8/infer", json={"inputs": {"x": {"data": nested, "shape": [2, 0, 4]}}})
    assert_refused(answer, 400, "invalid_input", "inputs.x.shape: expected [3, 0], as data has, got [2, 0, 4]")


def test_integers_beyond_float64_are_exact(server: RunningServer) -> None:
    for dtype, values in {
        "int64": [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)],
        "uint64": [2**53 + 1, 2**63, 2**64 - 1],
    }.items():
        for data in (values, [values], values[0]):
            assert server.infer(dtype, input_data=data)["output_data"] == data


@pytest.mark.parametrize(
    ("described", "data", "shape"),
    [
        ({"data": [1, 2, 3, 4]}, [1, 2, 3, 4], [4]),
        ({"data": [1, 2, 3, 4], "shape": [2, 2]}, [[1, 2], [3, 4]], [2, 2]),
        ({"data": [1, 2, 3, 4], "shape": [1, 4, 1], "dtype": "float32"}, [[[1], [2], [3], [4]]], [1, 4, 1]),
        ({"data": [[1, 2], [3, 4]], "shape": [2, 2]}, [[1, 2], [3, 4]], [2, 2]),
        ({"data": [[1, 2], [3, 4]], "dtype": "float32"}, [[1, 2], [3, 4]], [2, 2]),
        ({"data": [5], "shape": []}, 5, []),
        ({"data": 5, "shape": []}, 5, []),
        ({"data": 5, "shape": [1, 1]}, [[5]], [1, 1]),
        ({"shape": [2], "dtype": "float32", "data": [1, 2]}, [1, 2], [2]),
    ],
)
def test_tensor_states_shape_and_dtype(
    described: dict[str, Any], data: object, shape: list[int], server: RunningServer
) -> None:
    output = server.infer("float32", inputs={"x": described})["outputs"]["y"]
    assert output == {"dtype": "float32", "shape": shape, "data": data}


@pytest.mark.parametrize(
    ("described", "field", "words"),
    [
        ({"shape": [1]}, "inputs.x", "data"),
        ({"data": [1], "shape": [2]}, "inputs.x.shape", "expected a shape of 1 elements, as data has, got [2]"),
        ({"data": [[1, 2]], "shape": [2]}, "inputs.x.shape", "expected [1, 2], as data has, got [2]"),
        ({"data": [1], "shape": [-1]}, "inputs.x.shape", "integers of 0 or more, got [-1]"),
        ({"data": [1], "shape": [1.0]}, "inputs.x.shape", "integers of 0 or more, got [1.0]"),
        ({"data": [1], "shape": "1"}, "inputs.x.shape", "expected a list"),
        ({"data": [1], "shape": None}, "inputs.x.shape", "expected a list"),
        ({"data": [1], "shape": [1] * 33}, "inputs.x.shape", "at most 32"),
        ({"data": [1], "shape": [2**32, 2**32]}, "inputs.x.shape", "expected fewer than 1099511627776 elements"),
        ({"data": [], "shape": [0, 2**40]}, "inputs.x.shape", "expected fewer than 1099511627776 elements"),
        (
            {"data": [], "shape": [0, 2**31, 2**31, 2**31]},
            "inputs.x.shape",
            "expected fewer than 1099511627776 elements",
        ),
        ({"data": [1], "dtype": "float64"}, "inputs.x.dtype", 'expected "float32", got "float64"'),
        ({"data": [1], "dtype": None}, "inputs.x.dtype", "got null"),
        ({"data": {"data": [1]}}, "inputs.x.data", "got an object"),
        ({"data": [1, [2]]}, "inputs.x.data", "ragged"),
        ({"data": ["1"]}, "inputs.x.data", "a string"),
        ({"data": None}, "inputs.x.data", "got null"),
    ],
)
def test_contradictory_tensor_refused(described: dict[str, Any], field: str, words: str, server: RunningServer) -> None:
    answer = server.client.post("/models/float32/infer", json={"inputs": {"x": described}})
    assert_refused(answer, 400, "invalid_input", field + ":", words)


def test_unknown_tensor_field_refused(server: RunningServer) -> None:
    answer = server.client.post("/models/float32/infer", json={"inputs": {"x": {"data": [1], "shap": [1]}}})
    assert_refused(answer, 400, "unknown_field", "inputs.x.shap:", 'did you mean "inputs.x.shape"?')


def test_nan_and_infinity_become_null(server: RunningServer) -> None:
    for data, wanted in (([0, -1, 1], [None, None, 0.0]), ([[0], [1]], [[None], [0.0]]), (0, None)):
        outputs = server.infer("log", inputs={"x": data})["outputs"]
        assert outputs.keys() == {"float32", "float64", "float16", "bfloat16"}
        assert all(output["data"] == wanted for output in outputs.values())
        assert server.infer("log", input_data=data)["output_data"] == wanted


def test_inputs_of_several_dtypes(server: RunningServer) -> None:
    answer = server.infer("concat", inputs={"b": ["[", "漢"], "c": [[1, 2], [3, 4]], "a": ["x", "]"]})
    assert answer["outputs"] == {
        "joined": {"dtype": "string", "shape": [4], "data": ["x", "]", "[", "漢"]},
        "doubled": {"dtype": "int32", "shape": [2, 4], "data": [[1, 2, 1, 2], [3, 4, 3, 4]]},
    }


def test_only_named_outputs_returned(server: RunningServer) -> None:
    inputs = {"a": [[1, 2, 3, 4]], "b": [[5, 6, 7, 8]]}
    for names in (["sum"], ["product"], ["product", "sum"], ["sum", "product"]):
        outputs = server.infer("add", inputs=inputs, outputs=names)["outputs"]
        assert list(outputs) == names
    assert list(server.infer("add", inputs=inputs)["outputs"]) == ["sum", "product"]


def test_input_with_default_is_optional(server: RunningServer) -> None:
    assert server.infer("scaled", inputs={"x": [1, 2]})["outputs"]["y"]["data"] == [2, 4]
    assert server.infer("scaled", inputs={"x": [1, 2], "factor": [10]})["outputs"]["y"]["data"] == [10, 20]
    assert server.infer("scaled", input_data=[1, 2])["output_data"] == [2, 4]


def test_sequences_are_lists(server: RunningServer) -> None:
    rows = server.infer("sequence-out", inputs={"x": [[1, 2], [3, 4]]})["outputs"]["rows"]
    assert rows == {"dtype": "sequence(float32)", "shape": [2], "data": [[[1, 2]], [[3, 4]]]}
    parts: list[Any] = [[[1, 2], [3, 4]], {"data": [5, 6], "shape": [1, 2]}]
    outputs = server.infer("sequence-in", inputs={"parts": parts})["outputs"]
    assert outputs["joined"]["data"] == [[1, 2], [3, 4], [5, 6]]
    assert outputs["same"]["data"] == [[[1, 2], [3, 4]], [[5, 6]]]
    answer = server.client.post("/models/sequence-in/infer", json={"inputs": {"parts": [[[1, 2]], [[3, [4]]]]}})
    assert_refused(answer, 400, "invalid_input", "inputs.parts[1]:", "ragged")


def test_maps_are_objects(server: RunningServer) -> None:
    by_string = server.infer("maps-by-string", inputs={"scores": [[0.5, 1, 2]]})["outputs"]["maps"]
    assert by_string["data"] == [{"cat": 0.5, "dog": 1, "owl": 2}]
    assert (by_string["dtype"], by_string["shape"]) == ("sequence(map(string, float32))", [1])
    assert server.infer("maps-by-int", input_data=[0.5, 1])["output_data"] == [{"3": 0.5, "5": 1}]
    assert server.infer("map-in", inputs={"counts": {"c": 3, "a": 1.5}})["outputs"]["vector"]["data"] == [[1.5, 0, 3]]
    for counts, words in (
        ([], "got an array"),
        ({"a": None}, "inputs.counts.a: expected float32, got null"),
        ({"a": "1"}, "a string"),
    ):
        answer = server.client.post("/models/map-in/infer", json={"inputs": {"counts": counts}})
        assert_refused(answer, 400, "invalid_input", "inputs.counts", words)


def test_empty_optional_output_is_null(server: RunningServer) -> None:
    full = server.infer("optional-out", inputs={"x": [1, 2], "full": True})["outputs"]["perhaps"]
    assert full == {"dtype": "optional(float32)", "shape": [2], "data": [1, 2]}
    empty = server.infer("optional-out", inputs={"x": [1, 2], "full": False})["outputs"]["perhaps"]
    assert empty == {"dtype": "optional(float32)", "shape": None, "data": None}


def test_optional_input_absent_or_null(server: RunningServer) -> None:
    for inputs, given in (({"perhaps": [7]}, True), ({"perhaps": None}, False), ({}, False)):
        outputs = server.infer("optional-in", inputs=inputs)["outputs"]
        assert (outputs["given"]["data"], outputs["y"]["data"]) == (given, [7] if given else [-1])


def test_digits_equal_onnxruntime(server: RunningServer) -> None:
    images = np.random.default_rng(1).integers(0, 17, (20, 64)).astype(np.float32)
    raw = onnx_graphs.session(MODELS / "digits" / "model.onnx")
    labels, probabilities = raw.run(None, {"image": images})
    outputs = server.infer("digits", inputs={"image": images.tolist()})["outputs"]
    assert outputs["output_label"] == {"dtype": "int64", "shape": [20], "data": labels.tolist()}
    came = [{int(label): value for label, value in row.items()} for row in outputs["output_probability"]["data"]]
    assert came == probabilities
    flat = server.infer("digits", input_data=images.ravel().tolist())
    assert (flat["output_data"], flat["output_shape"]) == (labels.tolist(), [20])
    chosen = server.infer("digits", input_data=images[0].tolist(), outputs=["output_probability"])
    assert chosen["output_data"] == [{str(label): value for label, value in probabilities[0].items()}]


@pytest.mark.parametrize("name", ["add", "log"])
def test_graph_equals_onnxruntime_bit_for_bit(name: str, server: RunningServer) -> None:
    graph = ALL_KINDS[name]
    random = np.random.default_rng(2)
    feeds = {i.name: random.lognormal(0, 20, (50, 4)).astype(np.float32) for i in graph.graph.input}
    wanted = onnx_graphs.session(graph).run(["sum", "product"] if name == "add" else ["float32", "float64"], feeds)
    answer = server.infer(name, inputs={key: value.tolist() for key, value in feeds.items()})
    for output, array in zip(answer["outputs"].values(), wanted, strict=False):
        came = np.array([[np.inf if v is None else v for v in row] for row in output["data"]], array.dtype)
        assert came.tobytes() == array.tobytes()


def test_graph_of_text_model_takes_tensors(server: RunningServer) -> None:
    ids = np.array([[101, 7592, 102], [101, 2088, 102]])
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    answer = server.infer("minilm-onnx", inputs={name: array.tolist() for name, array in feeds.items()})
    output = answer["outputs"]["last_hidden_state"]
    assert output["shape"] == [2, 3, 384]
    (wanted,) = onnx_graphs.session(MODELS / "minilm-onnx" / "model.onnx").run(["last_hidden_state"], feeds)
    assert np.abs(np.array(output["data"]) - wanted).max() < 1e-5


def test_values_refused_by_graph_are_invalid_input(server: RunningServer) -> None:
    answer = server.client.post("/models/gather/infer", json={"input_data": [3]})
    assert_refused(answer, 400, "invalid_input", "the graph refuses these values", "idx=3")
    answer = server.client.post("/models/add/infer", json={"inputs": {"a": [[1, 2, 3, 4]], "b": [[1, 2, 3, 4]] * 3}})
    assert answer.status_code == 200  # broadcast
    answer = server.client.post("/models/add/infer", json={"inputs": {"a": [[1] * 4] * 2, "b": [[1] * 4] * 3}})
    assert_refused(answer, 400, "invalid_input", "the graph refuses these values")


@pytest.mark.parametrize(
    ("dtype", "data", "words"),
    [
        ("int8", [128], "expected int8, from -128 to 127, got 128"),
        ("int8", -129, "got -129"),
        ("uint8", [[0, -1]], "expected uint8, from 0 to 255, got -1"),
        ("uint16", [2**16], "expected uint16, from 0 to 65535, got 65536"),
        ("int32", [2**31], "expected int32, from -2147483648 to 2147483647, got 2147483648"),
        ("int64", [2**63], "outside -9223372036854775808 to 9223372036854775807"),
        ("int64", 2**63, "expected a number in the range of int64, got 9223372036854775808"),
        ("int64", -(2**63) - 1, "expected int64, got"),
        ("uint64", [-1], "outside 0 to 18446744073709551615"),
        ("uint64", [2**64], "instead of an integer of 64 bits"),
        ("uint64", -1, "expected a number in the range of uint64, got -1"),
        ("uint64", int("9" * 30), "expected uint64, got"),
        ("int64", [int("9" * 30)], "instead of an integer of 64 bits"),
        ("int32", [1.5], "got 1.5"),
        ("int32", 1.5, "expected int32, got 1.5"),
        ("int32", [True], "got a boolean"),
        ("float16", [65520], "expected numbers in the range of float16, got 65520"),
        ("float32", [1e39], "expected numbers in the range of float32, got 1e+39"),
        ("float32", 1e39, "expected numbers in the range of float32, got 1e+39"),
        ("bfloat16", [3.4e38], "expected numbers in the range of bfloat16, got 3.4e+38"),
        ("float32", ["1"], "a string"),
        ("float32", "1", "got a string"),
        ("float32", [None], "null"),
        ("float32", None, "got null"),
        ("float32", [True, 1.0], "got a boolean"),
        ("float32", [{}], "an object"),
        ("float32", [1, "a", None], "expected float32, got"),
        ("bool", [2], "got a number"),
        ("bool", [0.0], "got a number"),
        ("bool", ["true"], "got a string"),
        ("string", [1], "got a number"),
        ("string", ["a", None], "got null"),
        ("string", True, "got a boolean"),
        ("string", [["a"], ["b", "c"]], "ragged"),
    ],
)
def test_values_outside_dtype_refused(dtype: str, data: object, words: str, server: RunningServer) -> None:
    answer = server.post(f"/models/{dtype}/infer", json.dumps({"inputs": {"x": data}}))
    assert_refused(answer, 400, "invalid_input", "inputs.x:", words)
    answer = server.post(f"/models/{dtype}/infer", json.dumps({"input_data": data}))
    assert_refused(answer, 400, "invalid_input", "input_data:", words)


def test_zero_and_one_are_booleans(server: RunningServer) -> None:
    assert server.infer("bool", input_data=[[0, True], [1, False]])["output_data"] == [[False, True], [True, False]]
