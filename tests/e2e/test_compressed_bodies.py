"""Compressed bodies over real sockets: each route reads them as it reads the same body uncompressed."""

import gzip
import io
import json
import sys
import zlib
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.e2e.server import RunningServer, assert_refused

zstd = pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")

PACK = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}
# Fields of a response that differ from one request to the next.
CHANGING = {"id", "created", "created_at", "request_id", "latency_ms", "completed_at"}

ROUTES: dict[str, dict[str, Any]] = {
    "/infer": {"model_name": "digits", "input_data": [[0.5] * 64]},
    "/models/minilm/infer": {"text": "a text"},
    "/v1/completions": {"model": "tiny-llama", "prompt": "Once", "max_tokens": 3, "temperature": 0},
    "/v1/chat/completions": {"model": "tiny-llama", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3,
                             "temperature": 0},
    "/v1/responses": {"model": "tiny-llama", "input": "Hi", "max_output_tokens": 16, "temperature": 0},
    "/v1/messages": {"model": "tiny-llama", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3,
                     "temperature": 0},
    "/v1/embeddings": {"model": "minilm", "input": ["a", "b"]},
    "/tokenize": {"model": "tiny-llama", "prompt": "Once"},
    "/embed": {"model": "minilm", "inputs": "a text"},
    "/": {"model": "tiny-llama", "inputs": "Once", "parameters": {"max_new_tokens": 3}, "stream": False},
    "/v2/embed": {"model": "minilm", "texts": ["a"], "input_type": "search_query", "embedding_types": ["float"]},
    "/v1/similarity": {"model": "minilm", "items": ["a"], "others": ["b", "c"]},
    "/v2/models/float32/infer": {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]},
    "/v2/models/tiny-llama/generate": {"text_input": "Once", "max_tokens": 3, "temperature": 0},
    "/v2/repository/index": {"ready": True},
}  # fmt: skip


def send(server: RunningServer, path: str, body: bytes, encoding: str = "", **headers: str) -> httpx.Response:
    sent = {"content-type": "application/json", **headers}
    if encoding:
        body, sent["content-encoding"] = PACK[encoding](body), encoding
    return server.client.post(path, content=body, headers=sent)


def lasting(value: Any) -> Any:
    """Return the parts of a response that a repetition has too."""
    if isinstance(value, dict):
        return {name: lasting(each) for name, each in value.items() if name not in CHANGING}
    return [lasting(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("path", ROUTES)
def test_compressed_body_is_read(path: str, server: RunningServer) -> None:
    body = json.dumps(ROUTES[path]).encode()
    plain = send(server, path, body)
    assert plain.status_code == 200, plain.text
    for encoding in PACK:
        answer = send(server, path, body, encoding)
        assert answer.status_code == 200, answer.text
        assert lasting(answer.json()) == lasting(plain.json())


def test_compressed_body_of_stream_is_read(server: RunningServer) -> None:
    body = json.dumps(ROUTES["/v1/completions"] | {"stream": True}).encode()
    answer = send(server, "/v1/completions", body, "gzip")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")


def test_compressed_images_are_read(server: RunningServer) -> None:
    """The body of one image, and a form."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "PNG")
    request = httpx.Request("POST", "http://x", data={"model_name": "digits"}, files={"image": file.getvalue()})
    for path, body, kind in (
        ("/infer?model_name=digits", file.getvalue(), "image/png"),
        ("/infer", request.read(), request.headers["content-type"]),
    ):
        plain = send(server, path, body, **{"content-type": kind})
        answer = send(server, path, body, "gzip", **{"content-type": kind})
        # The model reads no images, which it says only of a body that was read.
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, plain.json()["error"]["message"])
        assert answer.json()["error"]["message"].startswith("image: expected a model that reads images")


@pytest.mark.parametrize("path", ROUTES)
def test_bad_encodings_refused_in_protocol(path: str, server: RunningServer) -> None:
    """An unknown encoding, and bodies that are not in the encoding, get the error form of their route."""
    body = json.dumps(ROUTES[path]).encode()

    def words(answer: httpx.Response) -> str:
        return str(answer.json())

    answer = send(server, path, body, **{"content-encoding": "br"})
    assert (answer.status_code, "content-encoding: expected gzip, deflate, " in words(answer)) == (415, True)
    for bad, message in (
        (body, "content-encoding: expected a body in gzip, got invalid data"),
        (gzip.compress(body)[:-1], "content-encoding: expected a whole body in gzip"),
    ):
        answer = send(server, path, bad, **{"content-encoding": "gzip"})
        assert (answer.status_code, message in words(answer)) == (400, True)


def test_compressed_management_bomb_refused(server: RunningServer) -> None:
    answer = send(server, "/models", b" " * (64 * 1024 + 1), "gzip")
    message = assert_refused(answer, 413, "too_large")
    assert message == "the body is larger than the limit of management requests, 65536 bytes; send less"
    for path in ("/models", "/infer"):
        answer = send(server, path, b"", "gzip")
        assert_refused(answer, 400, "invalid_json", "body: expected a JSON object, got an empty body in gzip")
