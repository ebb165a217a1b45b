"""A rolling update by a changed config on a local cluster, under load."""

from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.e2e.on_ray.cluster import DeployedServer, RayCluster
from tests.e2e.on_ray.load import RetriedLoad
from tests.e2e.server import wait_until
from tests.support.models.onnx_graphs import save, scaled

pytestmark = [pytest.mark.ray, pytest.mark.nightly]

SETTINGS = "[performance]\nintra_op_threads = 1\n"
PAUSE_S = 0.05
"""Of each client: the update needs the cores of the machine too."""
RAY = "ingress_cpus = 0.1\n"


def entry(name: str, graph: onnx.ModelProto, folder: Path) -> str:
    """Save a graph; return the entry of its model."""
    folder.mkdir()
    path = save(graph, folder)
    return f'[[models.onnx_models]]\nname = "{name}"\npath = "{path}"\nreplicas = 1\nnum_cpus = 0.1\n'


def body(number: int) -> dict[str, Any]:
    """Return the body of a request by its number; the answer is a multiple of the number."""
    return {"input_data": [float(number)]}


def answers(*factors: float) -> Any:
    """Return how answers are checked: each is the number of its request times one of the factors."""
    return lambda number, answer: answer["output_data"][0] in [factor * number for factor in factors]


def test_changed_config_under_load_no_request_fails(cluster: RayCluster, tmp_path: Path) -> None:
    """A model gets another path, one more replicas; one is added, one is removed. Those that stay answer all along."""
    resized = entry("resized", scaled(5.0), tmp_path / "resized")
    first = entry("moved", scaled(2.0), tmp_path / "first") + resized
    first += entry("removed", scaled(7.0), tmp_path / "removed")
    server = DeployedServer(cluster, tmp_path, SETTINGS + first, RAY, "changed").wait_ready()
    assert server.infer("removed", **body(1))["output_data"] == [7.0]
    second = entry("moved", scaled(3.0), tmp_path / "second") + resized.replace("replicas = 1", "replicas = 2")
    second += entry("added", scaled(11.0), tmp_path / "added")
    before = server.replicas("Ingress")
    assert before
    moved, kept = (
        RetriedLoad(server.url, "moved", body, answers(2.0, 3.0), PAUSE_S),
        RetriedLoad(server.url, "resized", body, answers(5.0), PAUSE_S),
    )
    with moved, kept:
        moved.wait_for(100)
        kept.wait_for(100)
        server.update(SETTINGS + second)
        moved.wait_for(100)
        kept.wait_for(100)
    assert [moved.failures, kept.failures] == [[], []]
    # Until an ingress of the first config has ended, it may answer.
    wait_until(lambda: not any(process.is_running() for process in before))
    check_second(server.wait_ready())
    server.client.close()
    cluster.delete("changed")


def check_second(server: DeployedServer) -> None:
    """Check that the second config is in force, at each of many requests."""
    wait_until(lambda: (server.num_running("model-resized"), server.num_running("model-removed")) == (2, 0))
    for number in range(20):
        assert server.infer("moved", **body(number))["output_data"] == [3.0 * number]
        assert server.infer("added", **body(number))["output_data"] == [11.0 * number]
        assert server.client.post("/models/removed/infer", json=body(number)).status_code == 404
