"""The application of the RayService runs on a local cluster with its config, and passes the probes of all pods."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import httpx
import pytest

from tests.docker.container_check import DIGIT
from tests.docker.manifests import KUBERNETES, of_kind, read_documents
from tests.docker.ray_pods import RayPods
from tests.docker.test_kubernetes_start import create_key
from tests.e2e.server import WAIT_S, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.extended]

OBJECTS = list(read_documents((KUBERNETES / "ray/rayservice.yaml").read_text(encoding="utf-8")))


@pytest.fixture
def key(tmp_path: Path) -> tuple[str, bytes]:
    return create_key(tmp_path)


@pytest.fixture
def pods(key: tuple[str, bytes], tmp_path: Path) -> Iterator[RayPods]:
    """One ingress and one replica."""
    objects = deepcopy(OBJECTS)
    data = of_kind(objects, "ConfigMap")["data"]
    data["config.toml"] = data["config.toml"].replace("replicas = 2", "replicas = 1")
    with RayPods(objects, {"roundhouse-keys": {"keys.toml": key[1]}}, tmp_path) as running:
        yield running


def test_pods_pass_probes_and_serve(pods: RayPods, key: tuple[str, bytes]) -> None:
    assert not pods.kubelets["ingress"].probe("readinessProbe")
    assert pods.refuses_other_tokens()
    pods.submit()
    for kubelet in pods.kubelets.values():
        wait_until(lambda kubelet=kubelet: kubelet.probe("readinessProbe"))  # type: ignore[misc]
        assert kubelet.probe("livenessProbe")
    url = f"http://127.0.0.1:{pods.ports[8080]}/models/digits/infer"
    with httpx.Client(verify=False, trust_env=False, timeout=WAIT_S) as client:
        assert client.post(url, json=DIGIT, headers={"x-api-key": key[0]}).json()["output_data"] == [3]
        assert client.post(url, json=DIGIT).status_code == 401
