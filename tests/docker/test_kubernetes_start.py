"""Containers of the chart start with the environment and files of their pod, pass their probes, and stop in time."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.docker.container_check import DIGIT
from tests.docker.kubelet import Files, Kubelet, data_of
from tests.docker.manifests import RELEASE, VALUES, of_kind, render
from tests.e2e.server import ROOT, wait_until
from tests.support.certificates import Authority, server_pair

pytestmark = pytest.mark.extended

Start = Callable[[str], Kubelet]
API_KEY = "a-key-of-the-environment"


def create_key(folder: Path) -> tuple[str, bytes]:
    """Return a key and its keys file, as the manual makes them."""
    file = folder / "keys.toml"
    arguments = ("--tenant", "default", "--scopes", "infer,read,manage", "--file", str(file))
    command = [sys.executable, "-m", "app", "keys", "create", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    content = file.read_bytes()
    file.unlink()
    return done.stdout.strip(), content


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    return create_key(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def start(key: tuple[str, bytes], authority: Authority, tmp_path: Path) -> Start:
    """Return a function that makes the pod of one of VALUES, with the Secrets that an operator makes."""
    pair = server_pair(authority)
    secrets: dict[str, Files] = {
        f"{RELEASE}-roundhouse-keys": {"keys.toml": key[1]},
        "our-keys": {"keys.toml": key[1]},
        "our-key": {"api-key": API_KEY.encode()},
        "certificate": {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.pem},
    }

    def pod(case: str) -> Kubelet:
        values = dict(VALUES[case])
        if "keys" in values.get("auth", ()):
            values["auth"] = {"keys": key[1].decode()}
        objects = render(values)
        found = of_kind(objects, "Deployment", "StatefulSet")
        claims = [claim["metadata"]["name"] for claim in found["spec"].get("volumeClaimTemplates", ())]
        return Kubelet(found["spec"]["template"]["spec"], data_of(objects, secrets), tmp_path, claims)

    return pod


def key_of(case: str, key: tuple[str, bytes]) -> str:
    return {"api-key": API_KEY, "open": ""}.get(case, key[0])


@pytest.mark.parametrize("case", [case for case in VALUES if not case.endswith("certificates")])
def test_container_passes_probes_and_drains(case: str, start: Start, key: tuple[str, bytes]) -> None:
    pod, text = start(case), key_of(case, key)
    checked = pod.check()
    assert checked.returncode == 0, checked.stderr
    # One case starts as the image does, without a fork of the test.
    with pod.running(is_fork=case != "defaults") as server:
        assert server.port == pod.ports[8080]
        assert server.grpc_port == pod.ports[8081]
        if case == "tls":
            return
        status = server.client.post("/models/digits/infer", json=DIGIT).status_code
        assert status == (200 if case == "open" else 401)
        answer = server.client.post("/models/digits/infer", json=DIGIT, headers={"x-api-key": text})
        assert answer.json()["output_data"] == [3]
        assert server.client.get("/metrics", headers={"x-api-key": text}).status_code == 200
        pod.stop(DIGIT, "/models/digits/infer", text)


def test_container_without_keys_refuses_to_start(start: Start) -> None:
    pod = start("defaults")
    pod.place("/app/keys/keys.toml").unlink()
    checked = pod.check()
    assert checked.returncode == 2
    assert 'server.host "0.0.0.0" is not loopback' in checked.stderr + checked.stdout


def test_container_with_client_certificates_passes_probes(start: Start, authority: Authority) -> None:
    pod = start("client-certificates")
    with pod.running() as server, pytest.raises(httpx.TransportError):
        httpx.get(f"https://127.0.0.1:{server.port}/health/live", verify=False, trust_env=False)


def test_changed_secret_gives_new_keys(start: Start, key: tuple[str, bytes], tmp_path_factory: Any) -> None:
    """A kubelet replaces the folder behind the links; the server reads the file again."""
    pod = start("defaults")
    new, content = create_key(tmp_path_factory.mktemp("new"))
    with pod.running() as server:
        assert server.client.get("/models", headers={"x-api-key": new}).status_code == 401
        pod.write_volume("/app/keys", {"keys.toml": content})
        wait_until(lambda: server.client.get("/models", headers={"x-api-key": new}).status_code == 200)
        assert server.client.get("/models", headers={"x-api-key": key[0]}).status_code == 401


def test_hosts_of_service_are_answered(start: Start) -> None:
    hosts = {f"{RELEASE}-roundhouse": 200, f"{RELEASE}-roundhouse.models.svc": 200, "10.244.1.17:8080": 200}
    hosts |= {f"{RELEASE}-roundhouse.models.svc.cluster.local": 200, "evil.example.org": 403}
    with start("defaults").running() as server:
        found = {host: server.client.get("/health/live", headers={"host": host}).status_code for host in hosts}
    assert found == hosts


def test_allowed_host_of_values_is_answered(start: Start) -> None:
    with start("keys").running() as server:
        headers = {"host": "models.example.org"}
        assert server.client.get("/health/live", headers=headers).status_code == 200


def test_health_over_grpc_needs_no_key(start: Start) -> None:
    with start("defaults").running() as server, grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
