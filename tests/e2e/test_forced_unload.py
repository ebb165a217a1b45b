"""Slow readers do not hold a model, and an unload with a drain timeout ends the requests that are left."""

import json
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.e2e.conftest import Start
from tests.e2e.gates import RunGate
from tests.e2e.load import QUESTION, callers, occupy_worker, slow_model, wait_for_inflight
from tests.e2e.server import GRPC_PORT, WAIT_S, RunningServer, assert_refused, free_port, serving, wait_until
from tests.e2e.triton_clients import grpc_channel, grpc_tensor, refusal, string_array, triton_client
from tests.support.models.causal_folders import save_causal_model

CONTEXT = 4096
ENDLESS = {"prompt": "on and on", "max_tokens": CONTEXT - 100, "ignore_eos": True}
SLOWLY_READ = {"prompt": "a", "max_tokens": 150, "n": 16, "logprobs": 20, "ignore_eos": True, "stream": True}
"""Its events take more bytes than the buffers of a connection."""


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, RunGate]]:
    folder = tmp_path_factory.mktemp("unloads")
    entry, gate = slow_model(folder)
    path = save_causal_model(folder / "lm", max_position_embeddings=CONTEXT)
    text_model = f'[[models.torch_models]]\nname = "lm"\npath = "{path}"\nkv_cache_bytes = "8MiB"\n'
    with serving(folder, entry + text_model, {GRPC_PORT: free_port()}, gated=True) as server:
        yield server.wait_ready(), gate


@pytest.fixture
def server(module_server: tuple[RunningServer, RunGate]) -> Iterator[RunningServer]:
    """The server, with both models loaded again."""
    server, _ = module_server
    for model in ("lm", "slow"):
        assert server.client.post(f"/models/{model}/load").status_code == 200
    yield server
    wait_until(lambda: server.sample("roundhouse_inflight") == 0)


def unload(server: RunningServer, model: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/models/{model}/unload", json=body, timeout=WAIT_S)


def running_sequences(server: RunningServer) -> float:
    return server.sample("roundhouse_sequences", model="lm", state="running")


def ask_slowly(connection: socket.socket, server: RunningServer, body: dict[str, Any]) -> bytes:
    """Send a request for a stream, and return the beginning of its response."""
    content = json.dumps(body).encode()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(WAIT_S)
    connection.connect(("127.0.0.1", server.port))
    head = "POST /models/lm/infer HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    connection.sendall(head.encode() + f"content-length: {len(content)}\r\n\r\n".encode() + content)
    return connection.recv(1024)


@pytest.mark.extended
def test_slow_reader_does_not_delay_unload(server: RunningServer) -> None:
    with socket.socket() as connection:
        received = ask_slowly(connection, server, SLOWLY_READ)
        answer = unload(server, "lm")
        assert (answer.status_code, answer.json()["state"]) == (200, "unloaded")
        assert server.client.get("/models/lm").json()["requests"]["inflight"] == 1, "the text is still being sent"
        parts = [received]
        while not parts[-1].endswith(b"0\r\n\r\n"):
            parts.append(connection.recv(1 << 20))
    whole = b"".join(parts)
    assert whole.startswith(b"HTTP/1.1 200")
    assert whole.count(b'"finish_reason"') == 16
    assert b"data: [DONE]" in whole


def test_drain_timeout_ends_streams_and_whole_texts(server: RunningServer) -> None:
    events: list[Any] = []
    begun = threading.Event()

    def read() -> None:
        with httpx.stream(
            "POST", f"{server.url}/models/lm/infer", json=ENDLESS | {"stream": True}, timeout=WAIT_S
        ) as sent:
            for line in sent.iter_lines():
                if "{" in line:
                    events.append(json.loads(line.removeprefix("data: ")))
                    begun.set()

    with ThreadPoolExecutor(1) as pool, callers(server, 1) as asked:
        reading = pool.submit(read)
        whole = asked.ask("lm", **ENDLESS)
        assert begun.wait(WAIT_S)
        wait_until(lambda: running_sequences(server) == 2)
        answer = unload(server, "lm", drain_timeout_s=0.1)
        assert (answer.status_code, answer.json()["state"]) == (200, "unloaded")
        reading.result(WAIT_S)
        assert_refused(whole.result(WAIT_S), 503, "draining", "was unloaded before the request was answered")
    assert "text" in events[0]
    assert events[-1]["error"]["code"] == "draining"


@pytest.mark.extended
@pytest.mark.parametrize("protocol", ["grpc", "/v2"])
def test_drain_timeout_of_open_inference_protocol(server: RunningServer, protocol: str) -> None:
    prompt = [grpc_tensor("text_input", string_array("on"), "BYTES")]
    options = {"max_tokens": CONTEXT - 100, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool, triton_client(server, "grpc") as client, grpc_channel(server) as channel:
        asked = pool.submit(client.infer, "lm", prompt, parameters=options)
        wait_until(lambda: running_sequences(server) == 1)
        if protocol == "grpc":
            order = service_pb2.RepositoryModelUnloadRequest(model_name="lm")
            order.parameters["drain_timeout_s"].int64_param = 0
            service_pb2_grpc.GRPCInferenceServiceStub(channel).RepositoryModelUnload(order, timeout=WAIT_S)
        else:
            body = {"parameters": {"drain_timeout_s": 0, "unload_dependents": False}}
            answer = httpx.post(f"{server.url}/v2/repository/models/lm/unload", json=body, timeout=WAIT_S)
            assert answer.status_code == 200
        with refusal("UNAVAILABLE", "was unloaded before the request was answered"):
            asked.result(WAIT_S)


def test_drain_timeout_ends_queued_batches(server: RunningServer, module_server: tuple[RunningServer, RunGate]) -> None:
    gate = module_server[1]
    with ThreadPoolExecutor(1) as pool, callers(server, 8) as asked, gate.closed():
        held = occupy_worker(server, lambda: asked.ask("slow", **QUESTION))
        queued = [asked.ask("slow", **QUESTION) for _ in range(6)]
        wait_for_inflight(server, 8)
        order = pool.submit(unload, server, "slow", drain_timeout_s=0)
        for each in queued:
            assert_refused(each.result(WAIT_S), 503, "draining", "was unloaded before the request was answered")
        assert not order.done()
        assert not held[0].done()
        gate.open()
        assert order.result(WAIT_S).status_code == 200
        assert [each.result(WAIT_S).status_code for each in held] == [200, 200]
    assert_refused(server.client.post("/models/slow/infer", json=QUESTION), 503, "unloaded")


@pytest.mark.extended
@pytest.mark.parametrize(("value", "words"), [(-1, "from 0"), ("1", "number"), (1e9, "86400")])
def test_invalid_drain_timeout_refused(server: RunningServer, value: object, words: str) -> None:
    assert_refused(
        unload(server, "slow", drain_timeout_s=value), 400, "invalid_input", "drain_timeout_s: expected", words
    )
    body = {"parameters": {"drain_timeout_s": value}}
    answer = server.client.post("/v2/repository/models/slow/unload", json=body)
    assert answer.status_code == 400
    assert "parameters.drain_timeout_s: expected" in answer.json()["error"]
    assert server.client.post("/models/slow/infer", json=QUESTION).status_code == 200
    assert unload(server, "slow", drain_timeout_s=None).status_code == 200


@pytest.mark.extended
def test_stop_ends_stream_of_stopped_reader(start: Start, tmp_path: Path) -> None:
    path = save_causal_model(tmp_path / "lm", max_position_embeddings=CONTEXT)
    entry = f'[[models.torch_models]]\nname = "lm"\npath = "{path}"\nkv_cache_bytes = "8MiB"\n'
    server = start(f"{entry}[server]\ndrain_timeout_s = 1\n").wait_ready()
    with socket.socket() as connection:
        ask_slowly(connection, server, SLOWLY_READ)
        server.process.send_signal(signal.SIGTERM)
        server.wait_stopped(0)
