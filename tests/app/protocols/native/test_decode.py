"""Decode /infer bodies: a request, or an error that names the wrong field."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.inference.unnamed_model import UnnamedModel
from app.protocols.native.codec import NativeCodec, NativeRequest
from app.protocols.shared.codec import Target
from app.protocols.shared.errors import InvalidJson
from app.protocols.shared.json import body as json_body
from frameworks.core.errors import InvalidInput, ModelNotFound, RoundhouseError, UnknownField, VersionNotFound
from frameworks.types import ModelSpec, TensorBatch, TextRequest
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import SPECS, find_spec

ANY_VECTORS: Any = ("dense", "multi", "sparse")


def read(model: str, body: object) -> NativeRequest:
    """Decode a body of /models/{model}/infer: bytes, text, or a value that is written as JSON."""
    text = body if isinstance(body, bytes | str) else json.dumps(body)
    body = text.encode() if isinstance(text, str) else text
    decoded: NativeRequest = decode_body(NativeCodec(), body, Target(model), find_spec)
    return decoded


def tensors(model: str, body: object) -> dict[str, Any]:
    request = read(model, body).request
    assert isinstance(request, TensorBatch)
    return request.inputs


def refusal(model: str, body: object, kind: type[RoundhouseError] = InvalidInput) -> str:
    with pytest.raises(kind) as caught:
        read(model, body)
    assert type(caught.value) is kind
    return caught.value.message


def test_input_type_chooses_side_of_model(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"text": ["a"], "input_type": "query"}
    assert "input_type: expected a model that reads queries otherwise than documents" in refusal("embed", body)
    spec = SPECS["embed"]
    assert spec.text is not None
    monkeypatch.setitem(SPECS, "embed", replace(spec, text=replace(spec.text, has_sides=True)))
    for input_type, are_queries in (("query", True), ("document", False)):
        request = read("embed", {"text": ["a"], "input_type": input_type}).request
        assert isinstance(request, TextRequest)
        assert request.are_queries is are_queries


def test_decode_takes_model_from_path_or_body() -> None:
    asked: list[tuple[str | UnnamedModel, str | None]] = []

    def find(name: str | UnnamedModel, version: str | None, read_timeout_ms: object = None) -> ModelSpec:
        asked.append((name, version))
        return find_spec(name, version)

    body = b'{"model_name": "int8", "version": "1", "input_data": [1]}'
    decode_body(NativeCodec(), body, Target(), find)
    decode_body(NativeCodec(), body, Target("int8"), find)
    decode_body(NativeCodec(), body, Target("int8", "1"), find)
    decode_body(NativeCodec(), b'{"model_name": "int8", "input_data": [1]}', Target(), find)
    decode_body(NativeCodec(), b'{"input_data": [1]}', Target("int8", "1"), find)
    assert asked == [("int8", "1"), ("int8", "1"), ("int8", "1"), ("int8", None), ("int8", "1")]
    with pytest.raises(InvalidInput, match="model_name: expected a model name, got none"):
        decode_body(NativeCodec(), b'{"input_data": [1]}', Target(), find)
    with pytest.raises(ModelNotFound, match=r'"int9" is not registered; there is .*int8'):
        decode_body(NativeCodec(), b'{"model_name": "int9"}', Target(), find)


def test_decode_unknown_version_is_not_found() -> None:
    for body, target in (
        (b'{"input_data": [1]}', Target("int8", "2")),
        (b'{"version": "2", "input_data": [1]}', Target("int8")),
    ):
        with pytest.raises(VersionNotFound, match='model "int8" has no version "2"'):
            decode_body(NativeCodec(), body, target, find_spec)


def test_decode_finds_model_before_reading_tensors() -> None:
    for question in ('"input_data": [1, [2]]', '"inputs": 5', '"text": null'):
        with pytest.raises(ModelNotFound):
            decode_body(NativeCodec(), f'{{"model_name": "lost", {question}}}'.encode(), Target(), find_spec)


def test_decode_keeps_the_form_for_the_response() -> None:
    flat, nested = read("matrix", {"input_data": [1, 2, 3]}), read("matrix", {"input_data": [[1, 2, 3]]})
    assert (flat.field, flat.flat, nested.flat) == ("input_data", True, False)
    assert isinstance(flat.request, TensorBatch)
    assert flat.request.output_names == ("y",)
    named = read("matrix", {"inputs": {"x": [[1, 2, 3]]}})
    assert isinstance(named.request, TensorBatch)
    assert (named.field, named.request.output_names) == ("inputs", None)
    chosen = read("matrix", {"input_data": [1, 2, 3], "outputs": ["z"]}).request
    assert isinstance(chosen, TensorBatch)
    assert chosen.output_names == ("z",)


def test_decode_reads_texts() -> None:
    assert read("embed", {"text": "a"}).request == TextRequest(["a"], vectors=ANY_VECTORS)
    assert read("embed", {"text": [], "normalize": False}).request == TextRequest(
        [], normalize=False, vectors=ANY_VECTORS
    )
    assert read("embed-onnx", {"text": ["a", ""], "truncate": False}).request == TextRequest(
        ["a", ""], truncate=False, vectors=ANY_VECTORS
    )
    assert read("classify", {"text": ["[", "]]"], "top_k": 2}).request == TextRequest(
        ["[", "]]"], top_k=2, vectors=ANY_VECTORS
    )
    assert refusal("embed", {"text": ["a"] * 100_001}).startswith("text: expected at most 100000 texts, got 100001")
    assert refusal("embed", '{"text": ["a", ["b"]]}') == "text[1]: expected a string, got an array"
    assert refusal("embed", '{"text": {"a": []}}') == "text: expected a string, got an object"


def test_decode_reads_sequences() -> None:
    (items,) = tensors("sequence", {"inputs": {"x": [[1, 2], [[3]], 4, {"data": [5, 6], "shape": [2, 1]}]}}).values()
    assert [item.shape for item in items] == [(2,), (1, 1), (), (2, 1)]
    assert [item.dtype for item in items] == [np.float32] * 4
    assert tensors("sequence", {"inputs": {"x": []}}) == {"x": []}
    (outer,) = tensors("sequences", {"inputs": {"x": [[], [[1]], [[2], [3, 4]]]}}).values()
    assert [[item.tolist() for item in inner] for inner in outer] == [[], [[1]], [[2], [3, 4]]]
    assert "inputs.x[1][0]: expected rows of equal length, got a ragged array" in refusal(
        "sequences", {"inputs": {"x": [[], [[1, [2]]]]}}
    )
    assert "inputs.x[0]: expected a list for sequence(int64), got a number" in refusal(
        "sequences", {"inputs": {"x": [1]}}
    )


def test_decode_checks_keys_of_maps() -> None:
    assert tensors("int-map", {"inputs": {"x": {"-1": 2, "0": 0.5}}}) == {"x": {-1: 2.0, 0: 0.5}}
    assert tensors("string-map", {"inputs": {"x": {"": 2, "a": 2**53 + 1}}}) == {"x": {"": 2, "a": 2**53 + 1}}
    assert tensors("maps", {"inputs": {"x": [{"data": "b"}, {}]}}) == {"x": [{"data": "b"}, {}]}
    for key in ("a", "", " 1", "1_0", "01", "+1", "-0", "1.0", "٣", str(2**63), str(-(2**63) - 1), "9" * 5000):
        message = refusal("int-map", {"inputs": {"x": {key: 1}}})
        assert message == f'inputs.x: expected int64 keys, got "{key[:40]}"'
    assert tensors("int-map", {"inputs": {"x": {str(-(2**63)): 1}}}) == {"x": {-(2**63): 1.0}}
    assert "expected different keys, got one of them twice" in refusal(
        "string-map", '{"inputs": {"x": {"a": 1, "a": 2}}}'
    )
    assert "inputs.x.a: expected int64, got 1.5" in refusal("string-map", {"inputs": {"x": {"a": 1.5}}})


def test_decode_accepts_absent_optional_inputs() -> None:
    assert tensors("optional", {"inputs": {}}) == {}
    assert tensors("optional", {"inputs": {"x": None}}) == {"x": None}
    assert tensors("optional", {"inputs": {"x": [1]}})["x"].tolist() == [1]
    assert tensors("none", {"inputs": {}}) == {}
    assert tensors("mixed", {"inputs": {"x": [[1]], "s": "["}}).keys() == {"x", "s"}


def test_decode_checks_range_of_bfloat16() -> None:
    largest = 3.3895313892515355e38
    assert tensors("bfloat16", {"input_data": [largest, -largest]})["x"].dtype == np.float32
    above = float(np.nextafter(np.float32(3.3961775292304957e38), np.float32(0)))
    assert tensors("bfloat16", {"input_data": above})["x"].tolist() == above
    for value in (3.3961775292304957e38, -3.4e38, 1e39):
        assert "expected numbers in the range of bfloat16" in refusal("bfloat16", {"input_data": [value]})


def test_decode_overflowing_squares_raise_no_warning() -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        for data in ([1e154], [1e200, -1e200], 1.7e308, [0.0] * 1023 + [1e308]):
            assert f"in the range of {dtype}, got " in refusal(dtype, {"input_data": data})
    assert tensors("float64", {"input_data": [1e308, 1e308]})["x"].tolist() == [1e308, 1e308]
    assert (
        tensors("float32", {"input_data": [3.4e38, -3.4e38]})["x"].tolist()
        == np.array([3.4e38, -3.4e38], np.float32).tolist()
    )


def test_decode_reports_ragged_before_wrong_shape() -> None:
    for data in ("[1, [2], 3]", "[[1, 2, 3], [4, [5], 6]]", "[[1], [2, 3]]"):
        assert "got a ragged array" in refusal("matrix", f'{{"input_data": {data}}}')
        assert "got a ragged array" in refusal("fixed", f'{{"inputs": {{"x": {data}}}}}')
        assert "got a ragged array" in refusal("mixed", f'{{"inputs": {{"x": {data}, "s": ["["]}}}}')


def test_decode_refuses_repeated_keys() -> None:
    """orjson keeps the last of two equal keys; only simdjson sees both."""
    body = '{"inputs": {"x": [[1]], "s": {"data": [], "data": []}}}'
    assert refusal("mixed", body) == "inputs.s.data: expected one member of this name, got several; send one"


def test_decode_refuses_deep_nesting_quickly() -> None:
    for depth in (33, 100, 1000):
        for opened, closed in (("[", "]"), ("[1, ", "]"), ("[[], ", "]")):
            refusal("float32", f'{{"input_data": {opened * depth}1{closed * depth}}}')
    for body in ("[" * 10**6, '{"a":' * 10**6, '{"input_data": ' + "[" * 2000 + "]" * 2000 + "}"):
        with pytest.raises(InvalidJson, match=r"depth limit|unexpected end of data"):
            read("float32", body)


def test_decode_reads_more_numbers_than_simdjson_counts() -> None:
    """Read more elements than the 2^24 - 1 that simdjson counts."""
    count = 2**24 + 3
    body = b'{"input_data": [' + b"0," * (count - 1) + b"7]}"
    tensor = tensors("uint8", body)["x"]
    assert (tensor.shape, tensor[-1]) == ((count,), 7)


def test_decode_reads_long_arrays_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "_LARGEST_COUNT", 3)
    assert tensors("float32", {"input_data": [[1, 2, 3]]})["x"].tolist() == [[1, 2, 3]]
    assert tensors("bool", {"input_data": [True, False, True]})["x"].tolist() == [True, False, True]
    assert tensors("string", {"input_data": [["a"], ["b"]]})["x"].tolist() == [["a"], ["b"]]
    assert "ragged" in refusal("float32", {"input_data": [[1, 2, 3], [4, 5, [6]]]})
    assert "a string" in refusal("float32", {"input_data": [1, 2, "3"]})


def test_decode_unknown_field_names_the_nearest() -> None:
    assert 'did you mean "input_data"' in refusal("float32", {"input_dta": [1]}, UnknownField)
    assert 'did you mean "inputs.x.shape"' in refusal(
        "float32", {"inputs": {"x": {"data": [1], "shap": [1]}}}, UnknownField
    )
    assert "known fields are inputs.x, inputs.s, inputs.b" in refusal("mixed", {"inputs": {"q": 1}}, UnknownField)
    assert 'did you mean "outputs.y"' in refusal("float32", {"input_data": 1, "outputs": ["yy"]}, UnknownField)


@pytest.mark.parametrize("model", SPECS)
def test_decode_refuses_empty_bodies(model: str) -> None:
    for body in (b"{}", b"[]", b"null", b"", b"{", b'{"inputs": null}', b'{"text": 1}', b'{"input_data": {}}'):
        with pytest.raises((InvalidInput, InvalidJson)):
            read(model, body)
