"""Counts of a server with two workers: one view, whichever worker answers."""

import sys
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from psutil import Process
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from memory.host import bytes_together
from tests.e2e.configs import onnx_entries
from tests.e2e.server import GRPC_PORT, WAIT_S, RunningServer, free_port, serving, wait_until
from tests.support.models import onnx_graphs

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux"), pytest.mark.extended]

NEW_CONNECTIONS = 16
"""A worker gets none of them once in 2**15 times."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("counts")
    onnx_entries(folder, {"again": onnx_graphs.identity()})
    entries = onnx_entries(folder, {"local": onnx_graphs.identity(), "apart": onnx_graphs.identity()})
    entries = entries.replace('name = "apart"\n', 'name = "apart"\nisolation = "process"\n')
    config = f'[server]\nworkers = 2\n[models]\nroots = ["."]\n{entries}'
    with serving(folder, config, {GRPC_PORT: free_port()}) as running:
        running.wait_ready()
        yield running
        running.check_log()


def on_new_connections(server: RunningServer, path: str, body: object = None) -> list[Any]:
    """Send a request on each of many new connections, and return the JSON of the responses."""
    answers = []
    for _ in range(NEW_CONNECTIONS):
        with httpx.Client(base_url=server.url, timeout=WAIT_S, trust_env=False, verify=False) as client:
            answer = client.get(path) if body is None else client.post(path, json=body)
            assert answer.is_success, answer.text
            answers.append(answer.json())
    return answers


def infer(server: RunningServer, model: str) -> None:
    on_new_connections(server, f"/models/{model}/infer", {"input_data": [1.0]})


@pytest.mark.parametrize("model", ["local", "apart"])
def test_all_pages_show_all_requests(server: RunningServer, model: str) -> None:
    infer(server, model)
    for described in on_new_connections(server, f"/models/{model}"):
        assert described["requests"] == {"total": NEW_CONNECTIONS, "failed": 0, "inflight": 0}
        assert described["last_used"] is not None
    # An engine process reports its batches at intervals.
    wait_until(lambda: server.sample("roundhouse_batch_size_sum", model=model) == NEW_CONNECTIONS)
    for statistics in on_new_connections(server, f"/v2/models/{model}/stats"):
        (found,) = statistics["model_stats"]
        assert found["inference_stats"]["success"]["count"] == NEW_CONNECTIONS
        assert found["inference_count"] == NEW_CONNECTIONS
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        request = messages.ModelStatisticsRequest(name=model)
        answer = GRPCInferenceServiceStub(channel).ModelStatistics(request, timeout=WAIT_S)
        assert answer.model_stats[0].inference_stats.success.count == NEW_CONNECTIONS
    assert server.sample("roundhouse_requests_total", model=model) == NEW_CONNECTIONS
    assert server.sample("roundhouse_request_seconds_count", model=model) == NEW_CONNECTIONS


def test_recreated_model_shows_no_old_counts(server: RunningServer) -> None:
    for _ in range(3):
        created = server.client.post("/models", json={"framework": "onnx", "name": "again", "path": "./again"})
        assert created.status_code == 201, created.text
        assert created.json()["requests"] == {"total": 0, "failed": 0, "inflight": 0}
        assert created.json()["last_used"] is None
        infer(server, "again")
        assert {each["requests"]["total"] for each in on_new_connections(server, "/models/again")} == {NEW_CONNECTIONS}
        assert server.client.delete("/models/again").status_code == 200
        assert 'model="again"' not in server.client.get("/metrics").text


def test_health_shows_memory_of_all_processes(server: RunningServer) -> None:
    shown = server.client.get("/health").json()["metrics"]["resident_memory_bytes"]
    workers = [
        each.pid for each in Process(server.process.pid).children(recursive=True) if each.name()[:9] == "rh:worker"
    ]
    assert len(workers) == 2
    # Memory that they share is counted once, and each worker has memory of its own.
    assert shown > 1.1 * bytes_together([server.process.pid])
    assert shown < 1.5 * bytes_together([server.process.pid, *workers])
