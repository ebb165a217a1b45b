"""Infer over REST: decode JSON bodies, and refuse invalid ones by field."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.inference.unnamed_model import UnnamedModel
from app.protocols.open_inference import infer_body
from app.protocols.open_inference.infer_codec import OpenInferenceInput, OpenInferenceOutput, OpenInferenceRequest
from app.protocols.open_inference.infer_types import InferRequest
from app.protocols.shared.codec import Target
from app.protocols.shared.errors import InvalidJson, NotSupported
from frameworks.core.errors import InvalidInput, ModelLoading, UnknownField
from frameworks.types import ModelSpec, TensorBatch, TensorType, ValueSpec
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import SPECS, model
from tests.app.protocols.open_inference.infer_bodies import FORMAT, in_bytes, read, refusal, tensors, x


@pytest.mark.parametrize(
    ("data", "shape"),
    [([1, 2, 3, 4, 5, 6], [2, 3]), ([[1, 2, 3], [4, 5, 6]], [2, 3]), ([], [0, 3]), ([[], [], []], [3, 0])],
)
def test_decode_json_reads_flat_and_nested_numbers(data: list[Any], shape: list[int]) -> None:
    extras: list[dict[str, Any]] = [{}, {"parameters": {}}, {"id": "7"}, {"model_name": "else", "model_version": "9"}]
    for extra in extras:
        request = read("float32", {"inputs": [x(data, shape=shape)], **extra})
        value = tensors(request)["x"]
        assert value.dtype == np.float32
        assert value.shape == tuple(shape)
        assert value.ravel().tolist() == np.ravel(data).tolist()
        assert request.id == extra.get("id", "")


@pytest.mark.parametrize(
    ("dtype", "datatype", "values"),
    [
        ("bool", "BOOL", [True, False]),
        ("uint8", "UINT8", [0, 255]),
        ("int8", "INT8", [-128, 127]),
        ("int64", "INT64", [-(2**63), 2**63 - 1]),
        ("uint64", "UINT64", [0, 2**64 - 1]),
        ("float64", "FP64", [0.1, -5e-324]),
        ("string", "BYTES", ["", "Ωß🚂"]),
    ],
)
def test_decode_json_keeps_values_of_each_datatype(dtype: str, datatype: str, values: list[Any]) -> None:
    value = tensors(read(dtype, {"inputs": [x(values, datatype)]}))["x"]
    assert value.tolist() == values
    scalar = tensors(read(dtype, {"inputs": [x([values[0]], datatype, shape=[])]}))["x"]
    assert (scalar.shape, scalar.item()) == ((), values[0])


def test_decode_one_tensor_equals_decode_json() -> None:
    """Compare the fast path with the same body plus an empty field, which takes the general path."""
    for tensor in (x([[0.1, 1, -2]]), x([0.1, 1, 1e30], shape=[1, 3]), x([], shape=[0, 3])):
        short, long = read("matrix", {"inputs": [tensor]}), read("matrix", {"inputs": [tensor], "parameters": {}})
        assert short[1:] == long[1:]
        first, second = tensors(short)["x"], tensors(long)["x"]
        assert (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())
        assert isinstance(short.request, TensorBatch)
        assert isinstance(long.request, TensorBatch)
        assert short.request.output_names == long.request.output_names
    for tensor in (x([1, 2]), x([1, "2", 3], shape=[1, 3]), x([1, 2, 3], shape=[1, -3]), x([1, 2, 3], "FP64", [1, 3]),
                   x([1, True, 3], shape=[1, 3]), x([1, 10**300, 3], shape=[1, 3]), x([1, 1e39, 3], shape=[1, 3]),
                   x([1, None, 3], shape=[1, 3]), x([1, 2, 3], shape=[1, 3.0]), x([1, 2], shape=[1, 3])):  # fmt: skip
        assert refusal("matrix", {"inputs": [tensor]}) == refusal("matrix", {"inputs": [tensor], "parameters": {}})


def test_decode_json_reads_long_bodies() -> None:
    values = np.random.default_rng(0).random((300, 3), dtype=np.float32)
    for data in (values.tolist(), values.ravel().tolist()):
        assert tensors(read("matrix", {"inputs": [x(data, shape=[300, 3])]}))["x"].tobytes() == values.tobytes()
    ragged = values.tolist()
    ragged[7] = [1, [2], 3]
    assert refusal("matrix", {"inputs": [x(ragged, shape=[300, 3])]}).startswith(
        "inputs.x.data: expected rows of equal length, got a ragged array"
    )


def test_decode_json_ignores_brackets_in_strings() -> None:
    request = read("string", {"id": "[[", "inputs": [x(["[", "]]"], "BYTES", parameters={"a": "[" * 9})]})
    assert tensors(request)["x"].tolist() == ["[", "]]"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "body: expected a JSON object, got an array"),
        ({}, 'inputs: expected a list of tensors like {"name", "shape", "datatype", "data"}, got nothing'),
        ({"inputs": {}}, 'inputs: expected a list of tensors like {"name", "shape", "datatype", "data"}, got an obj'),
        ({"inputs": [1]}, "inputs[0]: expected an object, got a number"),
        ({"inputs": [{}]}, "inputs[0].name: expected a string, got nothing"),
        ({"inputs": [x([1]) | {"name": 3}]}, "inputs[0].name: expected a string, got a number"),
        ({"inputs": [{"name": "x"}]}, "inputs.x.datatype: expected one of BOOL"),
        ({"inputs": [x([1], "float32")]}, "inputs.x.datatype: expected one of BOOL"),
        ({"inputs": [{"name": "x", "datatype": "FP32"}]}, "inputs.x.shape: expected a list of at most 32 integers"),
        ({"inputs": [x([1], shape=[-1])]}, "inputs.x.shape: expected a list of at most 32 integers of 0 or more"),
        ({"inputs": [x([1], shape=[1] * 33)]}, "inputs.x.shape: expected a list of at most 32"),
        ({"inputs": [x([], shape=[2**40, 2**40, 0])]}, "inputs.x.shape: expected fewer than 1099511627776 el"),
        ({"inputs": [x([1], shape=[1.0])]}, "inputs.x.shape: expected a list"),
        ({"inputs": [x([1], shape=[True])]}, "inputs.x.shape: expected a list"),
        ({"inputs": [x([1, 2, 3], shape=[2])]}, "inputs.x: expected 2 elements for shape [2], got 3"),
        ({"inputs": [x([[1, 2]], shape=[2])]}, "inputs.x: expected data of shape [2], got nested data of shape [1, 2]"),
        ({"inputs": [x(1, shape=[])]}, "inputs.x.data: expected a list, flat or nested, got a number"),
        ({"inputs": [x({"data": [1]}, shape=[1])]}, "inputs.x.data: expected a list, flat or nested, got an object"),
        ({"inputs": [x(None, shape=[1])]}, "inputs.x.data: expected a list, flat or nested, got null"),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32"}]}, "inputs.x: expected data, got nothing; send"),
        ({"inputs": [x(["a"])]}, "inputs.x.data: expected float32, got a string"),
        ({"inputs": [x([1e39])]}, "inputs.x.data: expected numbers in the range of float32, got 1e+39"),
        ({"inputs": [x([1], "FP16")]}, "inputs.x: JSON cannot represent FP16, which needs binary data; send binary"),
        ({"inputs": [x([1], "BF16")]}, "inputs.x: JSON cannot represent BF16, which needs binary data"),
        ({"inputs": [x([1], parameters=[])]}, "inputs.x.parameters: expected an object, got an array"),
        ({"inputs": [x([1], parameters={"binary_data_size": 4})]}, "inputs.x: expected data or binary_da"),
        ({"inputs": [in_bytes(8)]}, "inputs.x.binary_data_size: expected the header Inference-Header-Content-Length"),
        ({"inputs": [x([1]), x([1])]}, "inputs.x: expected one tensor of this name, got two"),
        ({"inputs": [x([1])], "id": 7}, "id: expected a string, got a number"),
        ({"inputs": [x([1])], "parameters": 7}, "parameters: expected an object, got a number"),
        ({"inputs": [x([1])], "outputs": {}}, "outputs: expected a list of objects"),
        ({"inputs": [x([1])], "outputs": ["y"]}, "outputs[0]: expected an object, got a string"),
        ({"inputs": [x([1])], "outputs": [{}]}, "outputs[0].name: expected a string, got nothing"),
        ({"inputs": [x([1])], "parameters": {"priority": 10}}, "priority: expected an integer from 0 to 9, got 10"),
    ],
)  # fmt: skip
def test_decode_invalid_body_names_the_field(body: object, words: str) -> None:
    assert refusal("float32", body).startswith(words)


def test_decode_unknown_field_names_the_nearest() -> None:
    for body, words in (
        ({"inputs": [x([1])], "ouputs": []}, 'ouputs: unknown field; did you mean "outputs"?'),
        ({"inputs": [x([1], dtype="FP32")]}, 'inputs[0].dtype: unknown field; did you mean "inputs[0].datatype"?'),
        ({"inputs": [x([1])], "outputs": [{"name": "y", "binary": 1}]}, "outputs[0].binary: unknown field; known"),
    ):
        assert refusal("float32", body, UnknownField).startswith(words)
    assert refusal("float32", b"{", InvalidJson).startswith("the body is not valid JSON")


def test_decode_null_field_counts_as_absent() -> None:
    body = {"id": None, "parameters": None, "outputs": None, "inputs": [x([1], parameters=None)]}
    assert tensors(read("float32", body))["x"].tolist() == [1]


def test_decode_stream_is_not_supported() -> None:
    inputs = [
        {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]},
        {"name": "stream", "shape": [1], "datatype": "BOOL", "data": [True]},
    ]
    assert refusal("generate", {"inputs": inputs}, NotSupported).startswith("stream: infer returns whole texts; send")


def test_decode_passes_timeout_to_find_spec() -> None:
    def is_absent(
        name: str | UnnamedModel, version: str | None, read_timeout_ms: Callable[[], float | None]
    ) -> ModelSpec:
        assert read_timeout_ms() == 1500
        raise ModelLoading("not loaded")

    body = json.dumps({"inputs": [x([1])], "parameters": {"timeout": 1_500_000}}).encode()
    with pytest.raises(ModelLoading):
        decode_body(FORMAT, body, Target("m"), is_absent)


def test_decode_half_output_requires_binary_data() -> None:
    halves = ModelSpec(
        "onnx", "tensor", SPECS["float32"].inputs, (ValueSpec("y", TensorType("float16", None)),), "cpu", "f", 0
    )

    def decoded(**more: object) -> InferRequest:
        body = json.dumps({"inputs": [x([1])], **more}).encode()
        request: InferRequest = decode_body(FORMAT, body, Target("m"), lambda *_: halves)
        return request

    for more in ({}, {"parameters": {"binary_data_output": False}}, {"outputs": [{"name": "y"}]}):
        with pytest.raises(
            InvalidInput, match=r"^outputs\.y: JSON cannot represent FP16, which needs binary data; send"
        ):
            decoded(**more)
    assert decoded(parameters={"binary_data_output": True}).outputs[0].binary
    assert decoded(outputs=[{"name": "y", "parameters": {"binary_data": True}}]).outputs[0].binary
    assert decoded(outputs=[{"name": "y", "parameters": {"classification": 1}}]).outputs[0].num_classes == 1


def test_schemas_have_the_decoded_fields() -> None:
    for schema, described in (
        (OpenInferenceRequest, infer_body.FIELDS),
        (OpenInferenceInput, infer_body.TENSOR_FIELDS),
        (OpenInferenceOutput, infer_body.OUTPUT_FIELDS),
    ):
        assert schema.model_fields.keys() == described


def test_decode_model_without_inputs() -> None:
    assert tensors(read("none", {"inputs": []})) == {}
    assert model().inputs == ()
