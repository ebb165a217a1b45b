"""Bodies of the Open Inference Protocol over REST: compressed, raw, binary and with false lengths."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import http

from tests.e2e.configs import onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.server import RunningServer
from tests.e2e.triton_clients import http_tensor
from tests.support.models import onnx_graphs

LENGTH = "inference-header-content-length"


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Any]:
    with http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        yield client


@pytest.mark.parametrize("sent", ["gzip", "deflate", None])
@pytest.mark.parametrize("wanted", ["gzip", "deflate", None])
def test_compressed_request_and_response(sent: str | None, wanted: str | None, client: Any) -> None:
    numbers = np.arange(60_000, dtype=np.float32).reshape(200, 300)
    for binary in (True, False):
        answer = client.infer(
            "float32",
            [http_tensor("x", numbers, binary)],
            outputs=[http.InferRequestedOutput("y", binary_data=binary)],
            request_compression_algorithm=sent,
            response_compression_algorithm=wanted,
        )
        assert answer.as_numpy("y").tobytes() == numbers.tobytes()


def test_decompression_bombs_refused(start: Start, tmp_path: Path) -> None:
    config = "[server]\nmax_body_bytes = 2000000\n" + onnx_entries(tmp_path, {"m": onnx_graphs.identity()})
    server = start(config).wait_ready()
    head = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}]}
    )
    for name, bomb in (("gzip", gzip.compress(bytes(10**8))), ("deflate", zlib.compress(head.encode() + bytes(10**8)))):
        assert len(bomb) < 200_000
        answer = server.client.post(
            "/v2/models/m/infer", content=bomb, headers={"content-encoding": name, LENGTH: str(len(head))}
        )
        assert answer.status_code == 413, answer.text
        assert "larger than server.max_body_bytes, 2000000 bytes" in answer.json()["error"]
    fits = gzip.compress(head.encode() + bytes(4))
    answer = server.client.post(
        "/v2/models/m/infer", content=fits, headers={"content-encoding": "gzip", LENGTH: str(len(head))}
    )
    assert answer.json()["outputs"][0]["data"] == [0]
    text = json.dumps({"model_name": "m", "input_data": [0.5]}).ljust(10**7)
    answer = server.client.post("/infer", content=gzip.compress(text.encode()), headers={"content-encoding": "gzip"})
    assert answer.status_code == 413, answer.text


def test_body_of_raw_bytes(server: RunningServer) -> None:
    def raw(model: str, body: bytes) -> tuple[dict[str, Any], bytes]:
        answer = server.client.post(f"/v2/models/{model}/infer", content=body, headers={LENGTH: "0"})
        assert answer.status_code == 200, answer.text
        length = int(answer.headers[LENGTH])
        (output,) = json.loads(answer.content[:length])["outputs"]
        return output, answer.content[length:]

    numbers = np.arange(6, dtype=np.float32)
    output, data = raw("free-n", numbers.tobytes())
    assert output == {"name": "y", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}}
    assert data == numbers.tobytes()
    output, data = raw("minilm", b"a text")
    wanted = np.array(server.infer("minilm", text="a text")["embeddings"], np.float32)
    assert output["shape"] == [1, 384]
    assert np.abs(np.frombuffer(data, np.float32) - wanted).max() < 1e-6


@pytest.mark.parametrize(
    ("length", "body", "words"),
    [
        ("999", b"{}", "inference-header-content-length: expected at most the body's 2 bytes, got 999"),
        ("-1", b"{}", "inference-header-content-length: expected the number of bytes"),
        ("2", b"{}", "inputs: expected a list of tensors"),
        ("1", b"{}", "the body is not valid JSON"),
        ("0", b"123", "inputs.x: expected a multiple of 4 bytes, got 3"),
    ],
)
def test_false_frame_lengths_refused(length: str, body: bytes, words: str, server: RunningServer) -> None:
    answer = server.client.post("/v2/models/float32/infer", content=body, headers={LENGTH: length})
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert server.client.get("/health").json()["status"] == "healthy"


def test_long_body_with_false_length_refused(server: RunningServer) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [150_528], "parameters": {"binary_data_size": 602_112}}
    head = json.dumps({"inputs": [tensor]}).encode()
    for cut in (0, 1, 602_111, -4):
        body = head + bytes(602_112 - cut)
        answer = server.client.post("/v2/models/float32/infer", content=body, headers={LENGTH: str(len(head))})
        assert answer.status_code == (200 if not cut else 400), answer.text
