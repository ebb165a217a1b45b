"""Infer over REST: decode binary, raw and compressed bodies, and encode responses."""

import json
import struct
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.open_inference.infer_codec import routes
from app.protocols.open_inference.infer_types import InferRequest
from app.protocols.shared.codec import EncodedResponse, Target
from app.protocols.shared.compression import compress
from app.protocols.shared.errors import InvalidJson, UnsupportedMediaType, to_http
from frameworks.core.errors import InvalidInput, RoundhouseError
from frameworks.types import Array, EmbedAnswer, TensorBatch, TextRequest
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import find_spec
from tests.app.protocols.open_inference.infer_bodies import (
    CONTEXT,
    FORMAT,
    LENGTH,
    formed,
    in_bytes,
    read,
    read_binary,
    refusal,
    refusal_binary,
    tensors,
    x,
)
from tests.app.protocols.strategies import json_values


@pytest.mark.parametrize("blanks", range(9))
def test_decode_binary_tensor_is_a_view(blanks: int) -> None:
    head = json.dumps({"inputs": [in_bytes(24, "FP64", shape=[3])]}).encode() + b" " * blanks
    form = formed(inference_header_content_length=len(head))
    body = bytes(form.lead_bytes) + head + np.array([1, 2, 3], np.float64).tobytes()
    value = tensors(decode_body(form, body, Target("float64"), find_spec))["x"]
    assert value.tolist() == [1, 2, 3]
    assert np.shares_memory(value, np.frombuffer(body, np.uint8))


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
def test_for_head_checks_content_type(content_type: str, is_read: bool) -> None:
    if is_read:
        assert formed(content_type=content_type)
    else:
        with pytest.raises(UnsupportedMediaType):
            formed(content_type=content_type)


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
    assert [route.path for route in routes()] == [
        "/v2/models/{name}/infer",
        "/v2/models/{name}/versions/{version}/infer",
    ]
