"""Infer over REST: decode and refuse bodies, and encode responses."""

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.codec import AnswerContext, EncodedResponse, Target
from app.protocols.compression import compress
from app.protocols.errors import EmptyBody, InvalidJson, NotSupported, TooLarge, UnsupportedMediaType, to_http
from app.protocols.open_inference import infer_body
from app.protocols.open_inference.infer_codec import InferCodec, routes
from app.protocols.open_inference.infer_schemas import OpenInferenceInput, OpenInferenceOutput, OpenInferenceRequest
from app.protocols.open_inference.infer_types import InferRequest
from frameworks.errors import InvalidInput, ModelLoading, RoundhouseError, UnknownField
from frameworks.types import Array, EmbedAnswer, ModelSpec, TensorBatch, TensorType, TextRequest, ValueSpec
from tests.app.protocols.native.specs import SPECS, find_spec, model
from tests.app.protocols.strategies import json_values

CONTEXT = AnswerContext("m", "1", "id", 1.23456, 0)
FORMAT = InferCodec(10**6)
LENGTH = "inference-header-content-length"


def formed(**headers: str | int) -> InferCodec:
    """Return the codec for a request with these headers; `_` in their names stands for `-`."""
    return FORMAT.for_headers([(n.replace("_", "-").encode(), str(v).encode()) for n, v in headers.items()])


def read(name: str, body: object, **headers: str | int) -> InferRequest:
    """Decode `body`: bytes, text, or a value that is written as JSON."""
    text = body if isinstance(body, bytes | str) else json.dumps(body)
    data = text.encode() if isinstance(text, str) else text
    form = formed(**headers)
    return form.decode(bytes(form.lead_bytes) + data, Target(name), find_spec)


def read_binary(name: str, head: object, *tensors: bytes, more: int = 0) -> InferRequest:
    text = json.dumps(head).encode()
    return read(name, text + b"".join(tensors), inference_header_content_length=len(text) + more)


def tensors(request: InferRequest) -> dict[str, Any]:
    assert isinstance(request.request, TensorBatch)
    return request.request.inputs


def x(value: Any, datatype: str = "FP32", shape: list[Any] | None = None, **more: object) -> dict[str, Any]:
    """Return the input `x` in JSON."""
    return {"name": "x", "shape": list(np.shape(value)) if shape is None else shape, "datatype": datatype,
            "data": value} | more  # fmt: skip


def in_bytes(size: object, datatype: str = "FP32", shape: list[int] | None = None, name: str = "x") -> dict[str, Any]:
    parameters = {"binary_data_size": size}
    return {"name": name, "shape": shape or [2], "datatype": datatype, "parameters": parameters}


def refusal(name: str, body: object, kind: type[RoundhouseError] = InvalidInput, **headers: str | int) -> str:
    with pytest.raises(kind) as caught:
        read(name, body, **headers)
    assert type(caught.value) is kind
    return caught.value.message


def refusal_binary(name: str, head: object, *tensors: bytes) -> str:
    with pytest.raises(InvalidInput) as caught:
        read_binary(name, head, *tensors)
    return caught.value.message


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


@pytest.mark.parametrize("blanks", range(9))
def test_decode_binary_tensor_is_a_view(blanks: int) -> None:
    head = json.dumps({"inputs": [in_bytes(24, "FP64", shape=[3])]}).encode() + b" " * blanks
    form = formed(inference_header_content_length=len(head))
    body = bytes(form.lead_bytes) + head + np.array([1, 2, 3], np.float64).tobytes()
    value = tensors(form.decode(body, Target("float64"), find_spec))["x"]
    assert value.tolist() == [1, 2, 3]
    assert np.shares_memory(value, np.frombuffer(body, np.uint8))
    assert formed(inference_header_content_length=len(head), content_encoding="gzip").lead_bytes == 0


def test_decode_mixes_binary_and_json_tensors() -> None:
    strings = struct.pack("<I", 2) + "ä".encode()
    head = {
        "id": "mixed",
        "inputs": [in_bytes(len(strings), "BYTES", [1, 1], "s"), x([[0.5]]), in_bytes(1, "BOOL", [1], "b")],
    }
    request = read_binary("mixed", head, strings, b"\1")
    assert {name: value.tolist() for name, value in tensors(request).items()} == {
        "x": [[0.5]],
        "s": [["ä"]],
        "b": [True],
    }
    assert request.id == "mixed"


@pytest.mark.parametrize(
    ("head", "sizes", "words"),
    [
        ([in_bytes(8)], [7], "inputs.x.binary_data_size: expected 8 bytes behind the JSON, got 7"),
        ([in_bytes(8)], [], "inputs.x.binary_data_size: expected 8 bytes behind the JSON, got 0"),
        ([in_bytes(8)], [9], "inputs: expected 8 bytes behind the JSON, got 9; send each binary_data_size"),
        ([x([1])], [4], "inputs: expected 0 bytes behind the JSON, got 4"),
        ([in_bytes(4)], [4], "inputs.x: expected 8 bytes for FP32 of shape [2], got 4"),
        ([in_bytes(8), in_bytes(8)], [8], "inputs.x.binary_data_size: expected 8 bytes behind the JSON, got 0"),
        ([in_bytes(-1)], [8], "inputs.x.binary_data_size: expected an integer of 0 or more"),
        ([in_bytes("8")], [8], "inputs.x.binary_data_size: expected an integer"),
        ([in_bytes(True)], [1], "inputs.x.binary_data_size: expected an integer"),
        ([in_bytes(2**70)], [8], "inputs.x.binary_data_size: expected an integer"),
        (
            [in_bytes(2**62)],
            [8],
            f"inputs.x.binary_data_size: expected {2**62} bytes behind the JSON, got 8",
        ),
        (
            [in_bytes(8, shape=[2**39])],
            [8],
            f"inputs.x: expected {2**41} bytes for FP32 of shape [{2**39}], got 8",
        ),
    ],
)
def test_decode_wrong_binary_size_is_refused(head: list[Any], sizes: list[int], words: str) -> None:
    assert refusal_binary("float32", {"inputs": head}, *map(bytes, sizes)).startswith(words)


def test_decode_wrong_header_length_is_refused() -> None:
    body = json.dumps({"inputs": [x([1])]})
    message = refusal("float32", body, inference_header_content_length=len(body) + 1)
    assert message == f"{LENGTH}: expected at most the body's {len(body)} bytes, got {len(body) + 1}"
    assert refusal("float32", body, InvalidJson, inference_header_content_length=5).startswith("the body is not valid")
    for wrong in ("-1", "x", "", "1.0", "1" * 30, "+5", "٣"):
        with pytest.raises(InvalidInput, match=f"^{LENGTH}: expected the number of bytes"):
            formed(inference_header_content_length=wrong)


@given(st.data())
def test_decode_any_frame_succeeds_or_is_refused(data: st.DataObject) -> None:
    """Decode valid frames with one change: the result is a request or a RoundhouseError."""
    datatype = data.draw(st.sampled_from(["FP32", "BYTES", "INT64", "BOOL", "FP99"]))
    shape = data.draw(st.lists(st.integers(-1, 3) | st.integers(2**38, 2**70), max_size=3))
    size: Any = data.draw(st.integers(-2, 40) | json_values)
    head = {"inputs": [{"name": "x", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}]}
    if data.draw(st.booleans()):
        head |= data.draw(st.dictionaries(st.sampled_from(["id", "outputs", "parameters", "inputs"]), json_values))
    text = orjson.dumps(head, option=orjson.OPT_NON_STR_KEYS) if _fits_64_bits(head) else b"{}"
    rest = data.draw(st.binary(max_size=40))
    length = data.draw(st.sampled_from([len(text), 0, len(text) - 1, len(text) + 1, len(text) + len(rest)]))
    name = {"BYTES": "string", "INT64": "int64", "BOOL": "bool"}.get(datatype, "float32")
    try:
        request = read(name, text + rest, inference_header_content_length=max(0, length))
    except RoundhouseError:
        return
    assert isinstance(request.request, TensorBatch)


def _fits_64_bits(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def test_decode_raw_tensor_reads_whole_body() -> None:
    numbers = np.arange(6, dtype=np.float32)

    def raw(name: str, body: bytes) -> InferRequest:
        return read(name, body, inference_header_content_length=0)

    request = raw("matrix", numbers.tobytes())
    assert tensors(request)["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [output.binary for output in request.outputs] == [True, True]
    assert tensors(raw("float32", numbers.tobytes()))["x"].tolist() == numbers.tolist()
    assert tensors(raw("free", numbers.tobytes()))["x"].shape == (1, 3, 2)
    assert tensors(raw("string", "Ωß".encode()))["x"].tolist() == ["Ωß"]
    assert raw("embed", b"a text").request == TextRequest(["a text"])
    for name, body, words in (
        ("matrix", bytes(13), "inputs.x: expected a multiple of 12 bytes, got 13; the model expects FP32 [-1, 3]"),
        ("fixed", bytes(8), "inputs.x: expected 48 bytes for INT64 of shape [2, 3], got 8"),
        ("free-nml", bytes(8), "inputs.x: the model expects FP32 [-1, -1, -1]; bytes alone do not give that"),
        ("zero", bytes(8), "inputs.x: expected a multiple of 0 bytes, got 8"),
        ("mixed", bytes(8), "inputs: expected a model with one required input, got 2"),
        ("string", b"\xff", "inputs.x: expected UTF-8 text, got invalid start byte"),
        ("sequence", b"\0", "inputs: expected a model with one required input, got 0"),
    ):
        assert refusal(name, body, inference_header_content_length=0).startswith(words)


def test_decode_decompresses_bodies() -> None:
    body = json.dumps({"inputs": [x([1, 2])]}).encode()
    for encoding in ("gzip", "deflate"):
        request = read("float32", compress(body, encoding), content_encoding=encoding)
        assert tensors(request)["x"].tolist() == [1, 2]
        head = json.dumps({"inputs": [in_bytes(8)]}).encode()
        binary = compress(head + bytes(8), encoding)
        request = read("float32", binary, content_encoding=encoding, inference_header_content_length=len(head))
        assert tensors(request)["x"].tolist() == [0, 0]
        assert refusal("float32", compress(b"", encoding), EmptyBody, content_encoding=encoding)
        refusal("float32", compress(bytes(10**6 + 1), encoding), TooLarge, content_encoding=encoding)


@pytest.mark.parametrize(
    ("content_type", "is_read"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("application/octet-stream", True),
        ("Application/Octet-Stream", True),
        ("application/vnd.api+json", True),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data", False),
    ],
)
def test_for_headers_checks_content_type(content_type: str, is_read: bool) -> None:
    if is_read:
        assert formed(content_type=content_type)
    else:
        with pytest.raises(UnsupportedMediaType):
            formed(content_type=content_type)


def test_decode_stream_is_not_supported() -> None:
    inputs = [
        {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]},
        {"name": "stream", "shape": [1], "datatype": "BOOL", "data": [True]},
    ]
    assert refusal("generate", {"inputs": inputs}, NotSupported).startswith(
        "inputs.stream: infer returns whole texts; send"
    )


def test_decode_passes_timeout_to_find_spec() -> None:
    def is_absent(name: str, version: str | None, read_timeout_ms: Callable[[], float | None]) -> ModelSpec:
        assert read_timeout_ms() == 1500
        raise ModelLoading("not loaded")

    body = json.dumps({"inputs": [x([1])], "parameters": {"timeout": 1_500_000}}).encode()
    with pytest.raises(ModelLoading):
        FORMAT.decode(body, Target("m"), is_absent)


def test_decode_half_output_requires_binary_data() -> None:
    halves = ModelSpec(
        "onnx", "tensor", SPECS["float32"].inputs, (ValueSpec("y", TensorType("float16", None)),), "cpu", "f", 0
    )

    def decoded(**more: object) -> InferRequest:
        body = json.dumps({"inputs": [x([1])], **more}).encode()
        return FORMAT.decode(body, Target("m"), lambda *_: halves)

    for more in ({}, {"parameters": {"binary_data_output": False}}, {"outputs": [{"name": "y"}]}):
        with pytest.raises(
            InvalidInput, match=r"^outputs\.y: JSON cannot represent FP16, which needs binary data; send"
        ):
            decoded(**more)
    assert decoded(parameters={"binary_data_output": True}).outputs[0].binary
    assert decoded(outputs=[{"name": "y", "parameters": {"binary_data": True}}]).outputs[0].binary
    assert decoded(outputs=[{"name": "y", "parameters": {"classification": 1}}]).outputs[0].num_classes == 1


def test_is_long_to_read_depends_on_format() -> None:
    one = '{"inputs":[{"name":"x","shape":[150528],"datatype":"FP32","parameters":{"binary_data_size":602112}}]}'
    assert not formed().is_long_to_read(bytes(200_000))
    assert formed().is_long_to_read(bytes(300_000))
    form = formed(inference_header_content_length=len(one))
    lead = bytes(form.lead_bytes)
    assert not form.is_long_to_read(lead + one.encode() + bytes(602112))
    assert formed(inference_header_content_length=300_000).is_long_to_read(bytes(602112))
    for name in ("BYTES", r"\u0042YTES"):
        strings = one.replace("FP32", name).encode()
        form = formed(inference_header_content_length=len(strings))
        lead = bytes(form.lead_bytes)
        assert form.is_long_to_read(lead + strings + bytes(20_000))
        assert not form.is_long_to_read(lead + strings + bytes(2_000))
    assert form.is_long_to_read(lead + one.encode() + bytes(5_000_000))
    assert not formed(inference_header_content_length=0).is_long_to_read(bytes(602_112))
    assert formed(inference_header_content_length=0).is_long_to_read(bytes(5_000_000))
    assert formed(content_encoding="gzip").is_long_to_read(bytes(1024))
    assert not formed(content_encoding="gzip").is_long_to_read(bytes(1023))


def test_is_long_to_write_depends_on_format() -> None:
    def is_long(size: int, binary: bool, **headers: str) -> bool:
        body = {"inputs": [x([1])], "parameters": {"binary_data_output": binary}}
        answer = {"y": np.zeros(size, np.float32), "z": np.zeros(1, np.int64)}
        return formed(**headers).is_long_to_write(read("float32", body), answer)

    assert not is_long(30_000, binary=False)
    assert is_long(40_000, binary=False)
    assert not is_long(160_000, binary=True)
    assert is_long(1_000_000, binary=True)
    assert is_long(5_000, binary=True, accept_encoding="gzip")
    assert not is_long(3_000, binary=True, accept_encoding="gzip")
    embed = read(
        "embed", {"inputs": [x(["a"], "BYTES") | {"name": "text"}], "parameters": {"binary_data_output": True}}
    )
    assert not formed().is_long_to_write(embed, EmbedAnswer(np.zeros((100, 384), np.float32), 1))


def written(request: InferRequest, answer: dict[str, Any], **headers: str) -> EncodedResponse:
    encoded = formed(**headers).encode(request, answer, CONTEXT)
    return encoded if isinstance(encoded, EncodedResponse) else EncodedResponse(encoded, b"application/json", [])


Y: Array = np.array([[1, np.nan], [np.inf, 2]], np.float32)
Z: Array = np.array([3, 4], np.int64)


def test_encode_writes_json() -> None:
    body, content_type, headers = written(read("float32", {"id": "7", "inputs": [x([1])]}), {"y": Y, "z": Z})
    assert (content_type, headers) == (b"application/json", [])
    assert json.loads(body) == {
        "model_name": "m",
        "model_version": "1",
        "id": "7",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [1, None, None, 2]},
            {"name": "z", "datatype": "INT64", "shape": [2], "data": [3, 4]},
        ],
    }
    scalar = {"y": np.array(0.5, np.float32), "z": np.empty((0, 2), np.int64)}
    outputs = json.loads(written(read("float32", {"inputs": [x([1])]}), scalar).body)["outputs"]
    assert [(output["shape"], output["data"]) for output in outputs] == [([], [0.5]), ([0, 2], [])]


def test_encode_writes_binary_outputs_behind_json() -> None:
    wanted = [{"name": "z"}, {"name": "y", "parameters": {"binary_data": True}}]
    body, content_type, headers = written(read("float32", {"inputs": [x([1])], "outputs": wanted}), {"y": Y, "z": Z})
    assert content_type == b"application/octet-stream"
    ((name, length),) = headers
    assert name == LENGTH.encode()
    head = json.loads(body[: int(length)])
    assert head["outputs"] == [
        {"name": "z", "datatype": "INT64", "shape": [2], "data": [3, 4]},
        {"name": "y", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}},
    ]
    assert body[int(length) :] == Y.tobytes()


def test_encode_empty_binary_output_has_header() -> None:
    request = read("float32", {"inputs": [x([1])], "parameters": {"binary_data_output": True}})
    body, _, headers = written(request, {"y": Y[:0], "z": Z[:0]})
    assert dict(headers) == {LENGTH.encode(): str(len(body)).encode()}


def test_encode_compresses_long_responses() -> None:
    long = np.zeros(1000, np.float32)
    request = read("float32", {"inputs": [x([1])], "outputs": [{"name": "y"}]})
    plain = written(request, {"y": long})
    for encoding in ("gzip", "deflate"):
        body, content_type, headers = written(request, {"y": long}, accept_encoding=encoding)
        assert content_type == b"application/json"
        assert dict(headers) == {b"content-encoding": encoding.encode(), b"vary": b"accept-encoding"}
        assert body == compress(plain.body, encoding)
        short = written(request, {"y": long[:9]}, accept_encoding=encoding)
        assert short.headers == []
    request = read("float32", {"inputs": [x([1])], "parameters": {"binary_data_output": True}})
    _, content_type, headers = written(request, {"y": long, "z": Z}, accept_encoding="gzip")
    assert content_type == b"application/octet-stream"
    assert {name for name, _ in headers} == {LENGTH.encode(), b"content-encoding", b"vary"}


def test_error_body_has_only_the_message() -> None:
    assert FORMAT.error_body(to_http(InvalidInput("prompt", "is empty")), "id") == b'{"error":"text_input: is empty"}'


def test_routes_have_both_paths() -> None:
    assert [route.path for route in routes(10)] == [
        "/v2/models/{name}/infer",
        "/v2/models/{name}/versions/{version}/infer",
    ]


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
