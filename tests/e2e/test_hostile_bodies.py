"""Any bytes over the socket get a 200 or an error below 500 in the contract's form."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.protocols.native.fields import FIELDS
from tests.app.protocols.strategies import json_values, mutated, requests
from tests.e2e.server import RunningServer

PATHS = (
    *("/infer", "/inference", "/models/float32/infer", "/models/concat/infer", "/models/minilm-onnx/infer"),
    *("/v2/models/float32/infer", "/v2/models/concat/infer"),
)
ADMIN_PATHS = ("/models", "/models/float32/load")


def ask(server: RunningServer, path: str, body: bytes) -> None:
    answer = server.post(path, body)  # the client's own hook holds the answer to the contract's form
    assert answer.status_code < 500, answer.text
    # A streamed text has no model name.
    if answer.status_code == 200 and answer.headers["content-type"] == "application/json":
        assert answer.json()["model_name"] in ("float32", "concat", "minilm-onnx", "string", "digits", "tiny-llama")


@given(st.sampled_from(PATHS), st.binary(max_size=200))
@settings(max_examples=60)
def test_any_bytes_answered_or_refused(server: RunningServer, path: str, body: bytes) -> None:
    ask(server, path, body)


@given(st.sampled_from(PATHS), json_values)
@settings(max_examples=40)
def test_any_json_answered_or_refused(server: RunningServer, path: str, body: Any) -> None:
    ask(server, path, json.dumps(body).encode())


@given(
    st.sampled_from(PATHS),
    st.dictionaries(st.sampled_from(sorted(FIELDS)) | st.text(max_size=5), json_values, max_size=4),
    st.sampled_from(["float32", "concat", "minilm-onnx", "digits", "string", "nothing"]) | json_values,
)
@settings(max_examples=40)
def test_any_object_of_known_fields(server: RunningServer, path: str, body: dict[str, Any], model: Any) -> None:
    ask(server, path, json.dumps({"model_name": model} | body).encode())


@given(st.sampled_from(PATHS), requests.flatmap(mutated))
@settings(max_examples=40)
def test_bodies_with_changed_bytes(server: RunningServer, path: str, body: bytes) -> None:
    ask(server, path, body)


@pytest.mark.parametrize("path", ADMIN_PATHS)
@given(st.one_of(st.binary(max_size=50), json_values.map(lambda value: json.dumps(value).encode())))
@settings(max_examples=25)
def test_any_bytes_to_admin_routes(server: RunningServer, path: str, body: bytes) -> None:
    answer = server.post(path, body)
    assert answer.status_code < 500 or answer.json()["error"]["code"] == "model_failed"
    server.client.post("/models/float32/load")


@given(st.text(max_size=30), st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS"]))
@settings(max_examples=60)
def test_any_path(server: RunningServer, path: str, method: str) -> None:
    from urllib.parse import quote

    answer = server.client.request(method, "/nowhere/" + quote(path.encode("utf-8", "surrogatepass")))
    assert answer.status_code in (404, 405)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z-]{0,10}", fullmatch=True), st.binary(max_size=30), max_size=3))
@settings(max_examples=60)
def test_any_headers(server: RunningServer, headers: dict[str, bytes]) -> None:
    hop_by_hop = {"connection", "host", "te", "expect", "upgrade", "trailer", "content-length", "transfer-encoding"}
    clean = {
        name.encode(): bytes(byte for byte in value if byte >= 32 and byte != 127).strip()
        for name, value in headers.items()
        if name not in hop_by_hop
    }
    body = b'{"input_data": [1]}'
    assert server.client.post("/models/float32/infer", content=body, headers=clean).status_code in (200, 415)


def test_server_answers_after_hostile_bodies(server: RunningServer) -> None:
    assert server.infer("float32", input_data=[1])["output_data"] == [1]
    server.check_log()
