"""Every route over HTTP/2, and gRPC on the same port: by httpx, curl, openai's client and grpcio, over sockets."""

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import openai
import pytest
import tritonclient.grpc

from tests.e2e.configs import onnx_entries
from tests.e2e.server import GRPC_PORT, WAIT_S, RunningServer, check_disconnect_frees_sequence, serving, wait_until
from tests.support.http2_frames import Client
from tests.support.loops import in_loop
from tests.support.models import onnx_costly_graphs, onnx_graphs

IMAGE = [float(i % 17) for i in range(64)]
LONG = np.arange(600_000, dtype=np.float32)


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with http2_client(server.url) as client:
        yield client


def http2_client(url: str) -> httpx.Client:
    return httpx.Client(http1=False, http2=True, base_url=url, timeout=WAIT_S, trust_env=False)


def binary_request(array: np.ndarray[Any, Any]) -> tuple[bytes, dict[str, str]]:
    """Return a body of the Open Inference Protocol with a binary tensor, and its headers."""
    size = {"binary_data_size": array.nbytes}
    tensor = {"name": "x", "shape": list(array.shape), "datatype": "FP32", "parameters": size}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + array.tobytes(), {"inference-header-content-length": str(len(head))}


def test_answers_equal_those_of_http1(client: httpx.Client, server: RunningServer) -> None:
    request = {"model_name": "digits", "input_data": IMAGE}
    answer = client.post("/infer", json=request)
    assert (answer.http_version, answer.status_code) == ("HTTP/2", 200)
    assert answer.json()["output_data"] == server.infer("digits", input_data=IMAGE)["output_data"]
    assert {"date", "x-request-id", "server-timing", "content-length"} <= set(answer.headers)
    names = [model["name"] for model in client.get("/models").json()["models"]]
    assert "digits" in names


def test_refusals_equal_those_of_http1(client: httpx.Client, server: RunningServer) -> None:
    for method, path in (("GET", "/nothing"), ("DELETE", "/infer"), ("POST", "/infer"), ("GET", "/v2/models/none")):
        theirs = httpx.request(method, f"{server.url}{path}", trust_env=False)
        ours = client.request(method, path)
        assert ours.status_code == theirs.status_code >= 400
        assert ours.headers["content-type"] == theirs.headers["content-type"]
    assert client.get("/health/live").status_code == 200


def test_head_has_headers_and_no_body(client: httpx.Client, server: RunningServer) -> None:
    whole = client.get("/metrics/none")
    answer = client.head("/metrics/none")
    assert (answer.status_code, answer.content) == (whole.status_code, b"")


def test_long_tensors_arrive_and_return_whole(client: httpx.Client) -> None:
    body, headers = binary_request(LONG)
    answer = client.post("/v2/models/float32/infer", content=body, headers=headers)
    assert answer.status_code == 200
    start = int(answer.headers["inference-header-content-length"])
    np.testing.assert_array_equal(np.frombuffer(answer.content[start:], np.float32), LONG)


def test_body_of_unknown_length_is_read(client: httpx.Client, server: RunningServer) -> None:
    body = json.dumps({"model_name": "digits", "input_data": IMAGE}).encode()
    answer = client.post("/infer", content=iter([body[:10], body[10:]]), headers={"content-type": "application/json"})
    assert answer.json()["output_data"] == server.infer("digits", input_data=IMAGE)["output_data"]


def test_many_streams_on_one_connection_answered(server: RunningServer) -> None:
    @in_loop
    async def ask() -> None:
        async with httpx.AsyncClient(
            http1=False, http2=True, timeout=WAIT_S, trust_env=False, limits=httpx.Limits(max_connections=1)
        ) as client:

            async def one(number: int) -> None:
                request = {"model_name": "float32", "input_data": [number, number + 0.5]}
                answer = await client.post(f"{server.url}/infer", json=request)
                assert answer.json()["output_data"] == [number, number + 0.5]

            await asyncio.gather(*(one(number) for number in range(200)))

    ask()


def test_streamed_text_equals_whole_one(server: RunningServer) -> None:
    options: dict[str, Any] = {"model": "tiny-llama", "prompt": "A list is", "max_tokens": 16, "temperature": 0}
    with (
        http2_client(server.url) as http,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=http) as client,
    ):
        whole = client.completions.create(**options)
        pieces = list(client.completions.create(**options, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == whole.choices[0].text
    assert len(pieces) > 5


def test_reset_stream_cancels_its_request(server: RunningServer, client: httpx.Client) -> None:
    request = {"model_name": "tiny-llama", "prompt": "A list is", "max_tokens": 300, "stream": True}

    class Text:
        def __init__(self) -> None:
            self._answer = client.send(client.build_request("POST", "/infer", json=request), stream=True)
            assert self._answer.status_code == 200

        def __iter__(self) -> Iterator[str]:
            return self._answer.iter_lines()

        def close(self) -> None:
            self._answer.close()

    check_disconnect_frees_sequence(server, "tiny-llama", Text)
    assert client.get("/health/live").status_code == 200


def test_curl_waits_for_continue(server: RunningServer, tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model_name": "float32", "input_data": [1.0] * 400_000}))
    sent = ["-H", "expect: 100-continue", "-H", "content-type: application/json", "--data-binary", f"@{body}"]
    command = ["curl", "-sS", "-D", "-", "-o", "/dev/null", "--http2-prior-knowledge", *sent, f"{server.url}/infer"]
    heads = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
    assert [line.strip() for line in heads.splitlines() if line.startswith("HTTP")] == ["HTTP/2 100", "HTTP/2 200"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with one port for all, slow bodies that end soon, and a model that takes a while."""
    folder = tmp_path_factory.mktemp("shared")
    entries = onnx_entries(folder, {"x": onnx_graphs.identity(), "slow": onnx_costly_graphs.slow(40)})
    config = f"[server]\nbody_timeout_s = 1.0\nmax_body_bytes = 1_000_000\n{entries}"
    with serving(folder, config, {GRPC_PORT: ""}) as server:
        yield server.wait_ready()


def test_grpc_shares_the_port(shared: RunningServer) -> None:
    assert shared.grpc_port == shared.port
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{shared.port}") as client:
        given = tritonclient.grpc.InferInput("x", [3], "FP32")
        given.set_data_from_numpy(np.array([1, 2, 3], np.float32))
        assert client.infer("x", [given]).as_numpy("y").tolist() == [1, 2, 3]
    with http2_client(shared.url) as client:
        assert client.get("/health/ready").status_code == 200
    assert httpx.get(f"{shared.url}/health/ready", trust_env=False).http_version == "HTTP/1.1"


def test_grpc_that_is_off_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path, onnx_entries(tmp_path, {"x": onnx_graphs.identity()})) as server:
        server.wait_ready()
        with http2_client(server.url) as client:
            path = "/inference.GRPCInferenceService/ServerLive"
            assert client.post(path, headers={"content-type": "application/grpc"}).status_code == 404


@in_loop
async def test_slow_body_is_timed_out(shared: RunningServer) -> None:
    headers = [*((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/infer"), (b":authority", b"localhost"))]
    async with Client.connect(f"127.0.0.1:{shared.port}") as client:
        stream_id = client.engine.open([*headers, (b"content-type", b"application/json")])
        client.engine.ngh2.send_data(stream_id, b"{")
        while not (answer := client.engine.responses[stream_id]).body:
            await client.receive()
    assert answer.headers[b":status"] == b"408"
    assert json.loads(answer.body)["error"]["code"] == "request_timeout"


def test_too_large_body_is_refused(shared: RunningServer) -> None:
    with http2_client(shared.url) as client:
        answer = client.post("/infer", content=bytes(1_500_000), headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        assert client.get("/health/live").status_code == 200


def test_drain_answers_request_and_ends_idle_streams(tmp_path: Path) -> None:
    entries = onnx_entries(tmp_path, {"slow": onnx_costly_graphs.slow(500)})
    with serving(tmp_path, entries, {GRPC_PORT: ""}) as server:
        server.wait_ready()

        @in_loop
        async def ask() -> None:
            async with (
                httpx.AsyncClient(http1=False, http2=True, timeout=WAIT_S, trust_env=False) as client,
                grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
            ):
                watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
                watching = watch(b"")
                assert await watching.read() == b"\x08\x01"
                request = {"model_name": "slow", "input_data": [[1.0] * 4]}
                asked = asyncio.create_task(client.post(f"{server.url}/infer", json=request))
                await asyncio.to_thread(wait_until, lambda: server.inflight("slow") == 1)
                server.process.send_signal(signal.SIGTERM)
                assert (await asked).status_code == 200
                with suppress(grpc.aio.AioRpcError):
                    while await watching.read() is not grpc.aio.EOF:
                        pass  # its status may have changed before its end
                assert await watching.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)

        ask()
        server.wait_stopped(0)
