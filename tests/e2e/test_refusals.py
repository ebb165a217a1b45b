"""Invalid requests are refused with the contract's messages, and the server answers the next one."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.e2e.configs import DIGITS
from tests.e2e.conftest import Start
from tests.e2e.server import RunningServer, assert_refused

QUESTION = '{"model_name": "float32", "input_data": [1, 2]}'


@pytest.fixture(scope="module", autouse=True)
def goes_on(server: RunningServer) -> Iterator[None]:
    yield
    assert server.infer("float32", input_data=[1, 2])["output_data"] == [1, 2]
    server.check_log()


RAGGED = (
    "[1,[2],3]",
    "[[1,2],[3],[4,5,6]]",
    "[[1],[[2]]]",
    "[[],[1]]",
    "[[1],[]]",
    "[3,[1,2],[]]",
    "[[1,2],3]",
    "[[],1]",
    "[1,[]]",
    "[[[]],[]]",
    "[[[1,2],[3,4]],[[5,6],[7]]]",
    "[[[1,2],[3,4]],[[5,6,7,8]]]",
    "[[[1],[2]],[3,4]]",
    "[[1,2,3],[4,[5],6]]",
    "[[1,[2,3]],[4,[5,6]]]",
    "[" * 1000 + "1" + "]" * 1000,
    "[" * 33 + "1" + "]" * 33,
    "[" * 1000 + "]" * 1000,
)


@pytest.mark.parametrize("data", RAGGED)
def test_ragged_array_refused_in_every_form(data: str, server: RunningServer) -> None:
    strings = data.replace("1", '"["').replace("2", '"a]"').replace("3", '"\\""')
    for field, body in {
        "input_data": f'{{"input_data": {data}}}',
        "inputs.x": f'{{"inputs": {{"x": {data}}}}}',
        "inputs.x.data": f'{{"inputs": {{"x": {{"data": {data}, "shape": [3]}}}}}}',
    }.items():
        for model in ("float32", "int64", "uint64", "bool", "float16"):
            answer = server.post(f"/models/{model}/infer", body)
            assert_refused(answer, 400, "invalid_input", f"{field}: expected rows of equal length, got a ragged array")
        answer = server.post("/models/string/infer", body.replace(data, strings))
        assert_refused(answer, 400, "invalid_input", f"{field}: expected rows of equal length, got a ragged array")


@pytest.mark.parametrize("model", ["free-n", "fixed", "digits", "gather"])
@pytest.mark.parametrize("data", ["[1,[2],3]", "[[1,2,3],[4,[5],6]]", "[1,[2,3,4,5,6]]"])
def test_ragged_array_named_for_every_shape(model: str, data: str, server: RunningServer) -> None:
    answer = server.post(f"/models/{model}/infer", f'{{"input_data": {data}}}')
    assert_refused(answer, 400, "invalid_input", "input_data: expected rows of equal length, got a ragged array")


def test_ragged_array_with_brackets_in_strings_refused(server: RunningServer) -> None:
    strings = ', "a": ["[", "[[]", "]"], "b": ["\\"["]}}'
    body = '{"inputs": {"c": [[1, 2], [3, 4], [5, 6]]' + strings
    outputs = server.client.post("/models/concat/infer", content=body).json()["outputs"]
    assert outputs["doubled"]["shape"] == [3, 4]
    for data in ("[[1, 2], [3, [4]], [5, 6]]", "[1, [2], 3, 4, 5, 6]", "[[1, 2], [3], [4, 5, 6]]"):
        body = '{"inputs": {"c": ' + data + strings
        answer = server.post("/models/concat/infer", body)
        assert_refused(answer, 400, "invalid_input", "inputs.c: expected rows of equal length, got a ragged array")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "line 1 column 2"),
        (b'{"input_data": [1, 2', "not valid JSON"),
        (b'{"input_data": [1, 2],}', "trailing comma"),
        (b'{"input_data": [1, 2]} x', "line 1 column 24"),
        (QUESTION.encode() * 2, "after document"),
        (b"{'input_data': [1]}", "not valid JSON"),
        (b"hello", "not valid JSON"),
        (b"  \n", "not valid JSON"),
        (b"\x00", "not valid JSON"),
        (b'{"input_data": [NaN]}', "not valid JSON"),
        (b'{"input_data": [Infinity]}', "not valid JSON"),
        (b'{"input_data": [-Infinity]}', "not valid JSON"),
        (b'{"input_data": [01]}', "not valid JSON"),
        (b'{"input_data": [1.]}', "not valid JSON"),
        (b'{"input_data": [+1]}', "not valid JSON"),
        (b'{"input_data": [1e400]}', "infinity"),
        (b'{"input_data": -1e400}', "infinity"),
        (b'{"text": "\xff"}', "not valid JSON"),
        (b'{"text": "\xed\xa0\x80"}', "not valid JSON"),
        (b'{"text": "\xc3', "not valid JSON"),
        (rb'{"text": "\ud800"}', "surrogate"),
        (rb'{"\udfff": 1}', "surrogate"),
        (b'{"text": "a\nb"}', "control character"),
        (b"\xef\xbb\xbf" + QUESTION.encode(), "byte order mark"),
        (QUESTION.encode("utf-16"), "not valid JSON"),
        (b"[" * 100_000, "depth limit"),
        (b'{"a":' * 100_000, "unexpected end of data"),
    ],
)
def test_invalid_json_refused(body: bytes, words: str, server: RunningServer) -> None:
    for path in ("/infer", "/models/float32/infer"):
        assert_refused(server.post(path, body), 400, "invalid_json", words)


@pytest.mark.parametrize("path", ["/infer", "/inference", "/models/float32/infer", "/models"])
def test_empty_body_refused(path: str, server: RunningServer) -> None:
    assert_refused(server.client.post(path), 400, "invalid_json", "empty")


@pytest.mark.parametrize("body", ["[]", "[1, 2]", "1", "null", "true", '"text"', "[" + QUESTION + "]"])
def test_body_without_object_refused(body: str, server: RunningServer) -> None:
    for path in ("/infer", "/models/float32/infer", "/models", "/models/float32/load"):
        assert_refused(server.post(path, body), 400, "invalid_input", "body:", "JSON object")


@pytest.mark.parametrize(
    ("field", "nearest"),
    [
        ("model", "model_name"),
        ("inptu_data", "input_data"),
        ("Inputs", "inputs"),
        ("texts", "text"),
        ("normalise", "normalize"),
        ("batchsize", "batch_size"),
        ("", "known fields are input_data, inputs, text, image, "),
        ("\u0000", "known fields are"),
        ("漢字" * 1000, "known fields are"),
        ("[" * 100, "known fields are"),
    ],
)
def test_unknown_field_refused_with_nearest_name(field: str, nearest: str, server: RunningServer) -> None:
    body = {"model_name": "float32", "input_data": [1], field: 1}
    message = assert_refused(server.client.post("/infer", json=body), 400, "unknown_field", field[:200], nearest)
    assert len(message) < 700


@pytest.mark.parametrize(
    "body",
    [
        '{"input_data": [1], "input_data": [2]}',
        '{"model_name": "float32", "model_name": "float32", "input_data": [1]}',
        '{"inputs": {"x": [1], "x": [2]}}',
        '{"inputs": {"x": {"data": [1], "data": [2]}}}',
        '{"input_data": [1], "batch_size": 1, "batch_size": 1}',
    ],
)
def test_duplicate_field_refused(body: str, server: RunningServer) -> None:
    assert_refused(
        server.post("/models/float32/infer", body),
        400,
        "invalid_input",
        "expected one member of this name, got several",
    )


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (
            {},
            "input_data",
            "expected exactly one of input_data, inputs, text, image, audio, video, prompt, messages, got none of them",
        ),
        ({"input_data": [1], "text": "a"}, "text", "input_data and text"),
        ({"input_data": [1], "inputs": {}}, "inputs", "input_data and inputs"),
        ({"input_data": [1], "normalize": True}, "normalize", "expected an option of input_data"),
        ({"inputs": {"x": [1]}, "batch_size": 1}, "batch_size", "expected an option of inputs"),
        ({"input_data": [1], "top_k": 1}, "top_k", "expected an option of input_data"),
        ({"text": "a"}, "text", "this model reads no text; its inputs are x: float32"),
        ({"prompt": "a"}, "prompt", "this model reads no text; its inputs are x: float32"),
        ({"messages": [], "n": 2}, "messages", "this model reads no text; its inputs are x: float32"),
        ({"prompt": "a", "messages": []}, "messages", "prompt and messages"),
        ({"input_data": [1], "stream": True}, "stream", "expected an option of input_data"),
        ({"model_name": 1, "input_data": [1]}, "model_name", "expected a string, got a number"),
        ({"model_name": None, "input_data": [1]}, "model_name", "expected a string, got null"),
        ({"version": 1, "input_data": [1]}, "version", "expected a string, got a number"),
        ({"input_data": {"x": [1]}}, "input_data", "got an object"),
    ],
)
def test_conflicting_fields_refused(body: dict[str, Any], field: str, words: str, server: RunningServer) -> None:
    answer = server.client.post("/models/float32/infer", json=body)
    assert_refused(answer, 400, "invalid_input", f"{field}:", words)


def test_unknown_model_refused_with_near_names(server: RunningServer) -> None:
    for path, body in (("/infer", {"model_name": "minilmm"}), ("/models/minilmm/infer", {})):
        message = assert_refused(
            server.client.post(path, json=body | {"text": "a"}), 404, "model_not_found", '"minilmm"', "minilm"
        )
        assert "minilm-onnx" in message
    for path in ("/models/x%2Fy/infer", "/models/%2e%2e/infer", "/models/" + "y" * 5000 + "/infer"):
        assert server.client.post(path, json={"text": "a"}).status_code == 404
    answer = server.client.post("/infer", json={"input_data": [1]})
    assert_refused(answer, 400, "invalid_input", "model_name: expected a model name, got none")


def test_unknown_version_refused(server: RunningServer) -> None:
    answer = server.client.post("/models/float32/versions/2/infer", json={"input_data": [1]})
    assert_refused(answer, 404, "version_not_found", 'model "float32" has no version "2"; there is 1')
    for path in ("/infer", "/models/float32/infer"):
        for question in ({"input_data": [1]}, {"inputs": {"x": [1]}}):
            answer = server.client.post(path, json={"model_name": "float32", "version": "2", **question})
            assert_refused(answer, 404, "version_not_found", 'model "float32" has no version "2"; there is 1')


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/mixed; boundary=x", "image/x-icon", "",
     "json", "application/json; charset=latin-1", "application/json; charset=utf-16", "a" * 1000],
)  # fmt: skip
def test_unsupported_content_type_refused(content_type: str, server: RunningServer) -> None:
    for path in ("/infer", "/models/float32/infer", "/models", "/models/float32/load"):
        answer = server.client.post(path, content=QUESTION, headers={"content-type": content_type})
        message = assert_refused(answer, 415, "unsupported_media_type", "content-type")
        assert len(message) < 500


@pytest.mark.parametrize(
    "content_type",
    [None, "application/json", "Application/JSON", "application/json; charset=utf-8", "application/json;charset=UTF8",
     "application/vnd.api+json", 'application/json; charset="utf-8"'],
)  # fmt: skip
def test_json_content_types_accepted(content_type: str | None, server: RunningServer) -> None:
    headers = {"content-type": content_type} if content_type else {}
    assert server.client.post("/infer", content=QUESTION, headers=headers).status_code == 200


def test_unknown_encoding_refused(server: RunningServer) -> None:
    for encoding in ("br", "GZIP, GZIP", "compress"):
        answer = server.post("/infer", QUESTION, **{"content-encoding": encoding})
        words = f'or identity, got "{encoding.lower()}"; send the body in one of these'
        assert_refused(answer, 415, "unsupported_media_type", words)
    assert server.post("/infer", QUESTION, **{"content-encoding": "identity"}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/infer", "POST"),
        ("PUT", "/inference", "POST"),
        ("DELETE", "/models/float32/infer", "POST"),
        ("OPTIONS", "/models/float32/versions/1/infer", "POST"),
        ("PATCH", "/infer", "POST"),
        ("GET", "/models/float32/load", "POST"),
        ("PUT", "/models", "GET, HEAD, POST"),
        ("DELETE", "/models/float32/unload", "POST"),
        ("POST", "/health", "GET, HEAD"),
        ("DELETE", "/metrics", "GET, HEAD"),
    ],
)
def test_wrong_method_refused_with_allowed_ones(method: str, path: str, allowed: str, server: RunningServer) -> None:
    answer = server.client.request(method, path)
    assert_refused(answer, 405, "method_not_allowed", f"{method} is not allowed on {path}", allowed)
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/infer//", "/inferx", "/models/a/b/c", "/models//infer", "/models/float32/versions//infer",
     "/v1/nothing", "/%00", "/%ff%fe", "/models/float32/versions/1", "/" + "a" * 5000, "/healthz"],
)  # fmt: skip
def test_unknown_path_refused(path: str, server: RunningServer) -> None:
    for method in ("GET", "POST"):
        assert_refused(server.client.request(method, path), 404, "not_found", "there is nothing at")


def test_valid_request_id_returned(server: RunningServer) -> None:
    for path, method, status in (
        ("/infer", "POST", 200),
        ("/models", "GET", 200),
        ("/health", "GET", 200),
        ("/metrics", "GET", 200),
        ("/docs", "GET", 200),
        ("/openapi.json", "GET", 200),
        ("/nothing", "GET", 404),
        ("/infer", "GET", 405),
        ("/models/none/infer", "POST", 404),
    ):
        for sane in ("a", "3f2b-4c/..:=+_", "x" * 128):
            answer = server.client.request(
                method, path, content=QUESTION if method == "POST" else None, headers={"x-request-id": sane}
            )
            assert (answer.status_code, answer.headers["x-request-id"]) == (status, sane)


@pytest.mark.parametrize("insane", ["", "a b", "x" * 129, "é", '"', "<script>", "a\tb", "a;b", "{}"])
def test_invalid_request_id_replaced(insane: str, server: RunningServer) -> None:
    for path in ("/infer", "/models", "/nothing"):
        answer = server.client.request(
            "POST" if path == "/infer" else "GET", path, headers={b"x-request-id": insane.encode()}
        )
        assert answer.headers["x-request-id"] != insane


def test_generated_request_ids_differ(server: RunningServer) -> None:
    ids = [server.client.get(path).headers["x-request-id"] for path in ("/health", "/models", "/nothing") * 5]
    assert len(set(ids)) == len(ids)


def chunks_of(body: bytes, size: int = 1000) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def test_body_over_limit_refused_with_limit(start: Start) -> None:
    server = start(DIGITS + "[server]\nmax_body_bytes = 2000\n").wait_ready()
    question = json.dumps({"model_name": "digits", "input_data": [0] * 64}).encode()
    at_limit, over = question.ljust(2000), question.ljust(2001)
    for path in ("/infer", "/models/digits/infer"):
        assert server.post(path, at_limit).status_code == 200
        assert server.client.post(path, content=chunks_of(at_limit)).status_code == 200
    for path in ("/infer", "/models/digits/infer", "/models", "/models/digits/load"):
        for content in (over, chunks_of(over)):
            answer = server.client.post(path, content=content)
            assert_refused(answer, 413, "too_large", "server.max_body_bytes, 2000 bytes")
    # Far over the limit: the response is sent although most of the body is never read.
    for content in (b" " * 3_000_000, chunks_of(b" " * 3_000_000, 65536)):
        # The connection may be closed while the rest is being sent.
        with suppress(httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            assert_refused(server.client.post("/infer", content=content), 413, "too_large", "2000 bytes")
    assert server.post("/infer", question).status_code == 200
