"""`roundhouse deploy` on a local cluster of three nodes: answers, faults and updates under load."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.on_ray.cluster import DeployedServer, RayCluster
from tests.e2e.on_ray.load import RetriedLoad
from tests.e2e.server import MODELS, READY_WITHIN_S, free_port, wait_until

pytestmark = pytest.mark.ray

RAY = "ingress_replicas = 2\ningress_cpus = 0.5\n"
REPLICAS = {"Ingress": 2, "model-digits": 2, "model-tiny-llama": 1}
CONFIG = f"""
[performance]
intra_op_threads = 1
[[models.onnx_models]]
name = "digits"
path = "{MODELS / "digits"}"
replicas = 2
num_cpus = 0.5
[[models.torch_models]]
name = "tiny-llama"
path = "{MODELS / "tiny-llama"}"
num_cpus = 0.5
"""
KILL_ATTEMPTS = 5
DIGIT: dict[str, Any] = {"input_data": [[0.0] * 64]}


def digit(number: int) -> dict[str, Any]:
    """Return a request that is like no other one."""
    return {"input_data": [[float(number), *[0.0] * 63]]}


@pytest.fixture(scope="module")
def deployed(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedServer]:
    server = DeployedServer(cluster, tmp_path_factory.mktemp("deployed"), CONFIG, RAY)
    yield server
    server.client.close()


def wait_for_full_capacity(server: DeployedServer) -> None:
    """Wait until all replicas run, and all models answer."""
    wait_until(lambda: {name: server.num_running(name) for name in REPLICAS} == REPLICAS, READY_WITHIN_S)
    server.wait_ready()


def test_request_crosses_cluster(deployed: DeployedServer) -> None:
    answer = deployed.client.post("/models/digits/infer", json=DIGIT, headers={"x-request-id": "across"})
    assert answer.json()["output_data"] == [4]
    assert answer.headers["x-request-id"] == "across"


def test_metrics_name_replica_and_node(deployed: DeployedServer) -> None:
    deployed.infer("digits", **DIGIT)
    samples = [sample for family in deployed.metrics().values() for sample in family.samples]
    assert samples
    assert all(sample.labels["replica"] and sample.labels["node"] for sample in samples)


@pytest.mark.extended
def test_replica_killed_no_request_fails(deployed: DeployedServer) -> None:
    with RetriedLoad(deployed.url, "digits", digit) as load:
        load.wait_for(200)
        deployed.kill_replica("model-digits")
        load.wait_for(200)
    assert not load.failures
    wait_for_full_capacity(deployed)


@pytest.mark.extended
def test_ingress_killed_no_request_fails(deployed: DeployedServer) -> None:
    with RetriedLoad(deployed.url, "digits", digit) as load:
        load.wait_for(200)
        deployed.kill_replica("Ingress")
        load.wait_for(200)
    assert not load.failures
    wait_for_full_capacity(deployed)


def events_after_kill(deployed: DeployedServer) -> list[str]:
    """Return the events of a text whose replica is killed behind the first one."""
    body = {"prompt": "The module", "max_tokens": 400, "ignore_eos": True, "stream": True}
    (replica, *_) = deployed.replicas("model-tiny-llama")
    with deployed.client.stream("POST", "/models/tiny-llama/infer", json=body) as answer:
        events = (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))
        assert "text" in json.loads(next(events))
        replica.kill()
        rest = list(events)
    wait_for_full_capacity(deployed)
    return rest


@pytest.mark.extended
def test_killed_replica_stream_ends_with_error(deployed: DeployedServer) -> None:
    for _ in range(KILL_ATTEMPTS):
        rest = events_after_kill(deployed)
        if not any('"finish_reason":"length"' in event for event in rest[-2:]):
            break  # otherwise the text ended before the signal, which a busy machine delays
    assert any(event.startswith('{"error"') for event in rest[-2:]), rest[-2:]


@pytest.mark.extended
def test_update_under_load_no_request_fails(deployed: DeployedServer) -> None:
    before = {process.pid for name in REPLICAS for process in deployed.replicas(name)}
    with RetriedLoad(deployed.url, "digits", digit) as load:
        load.wait_for(100)
        deployed.update(CONFIG)
        load.wait_for(100)
    assert not load.failures
    wait_until(lambda: not before & {p.pid for name in REPLICAS for p in deployed.replicas(name)})
    wait_for_full_capacity(deployed)


@pytest.mark.extended
def test_node_killed_no_request_fails(deployed: DeployedServer) -> None:
    with RetriedLoad(deployed.url, "digits", digit) as load:
        load.wait_for(200)
        deployed.cluster.kill_node()
        load.wait_for(200)
    assert not load.failures
    deployed.cluster.add_node()
    wait_for_full_capacity(deployed)


@pytest.mark.extended
def test_wrong_model_path_is_named_without_traceback(cluster: RayCluster, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    missing = tmp_path / "missing.onnx"
    config.write_text(
        f"[server]\nport = {free_port()}\ngrpc_port = 0\n[ray]\napplication = 'wrong'\ningress_cpus = 0.1\n"
        f"[[models.onnx_models]]\nname = 'wrong'\npath = '{missing}'\nnum_cpus = 0.1\n",
        encoding="utf-8",
    )
    try:
        done = cluster.deploy(config)
    finally:
        cluster.delete("wrong")
    assert done.returncode == 1
    assert f"wrong: failed\nmodel-wrong: {missing}: no such file or folder\n" in done.stderr
    _, is_there, shown = done.stderr.partition("Traceback")
    assert not is_there, f"{done.stderr[:500]} ... Traceback{shown[-3000:]}"
