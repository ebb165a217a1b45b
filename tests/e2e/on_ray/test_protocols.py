"""TLS, gRPC, traces and cold starts of a deployment on Ray: one node, and one ingress with all of them."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.e2e.on_ray.cluster import DeployedServer, RayCluster, cluster_of
from tests.e2e.server import MODELS, READY_WITHIN_S, WAIT_S, wait_until
from tests.e2e.tls_server import TlsServer
from tests.support.certificates import Authority, server_pair
from tests.support.otlp_collector import Collector, attributes, collecting

pytestmark = [pytest.mark.ray, pytest.mark.extended]

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
DIGIT: dict[str, Any] = {"input_data": [[0.0] * 64]}
CONFIG = f"""
[performance]
intra_op_threads = 1
[[models.onnx_models]]
name = "digits"
path = "{MODELS / "digits"}"
num_cpus = 0.1
[[models.onnx_models]]
name = "cold"
path = "{MODELS / "digits"}"
load = "lazy"
replicas = {{ min = 0, max = 1 }}
num_cpus = 0.1
"""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def deployed(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    folder, authority = tmp_path_factory.mktemp("protocols"), Authority()
    certificate, key = server_pair(authority).write(folder, "server")
    (folder / "ca.pem").write_bytes(authority.pem)
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "20",
        "ROUNDHOUSE_SERVER__TLS_CERTIFICATE": str(certificate),
        "ROUNDHOUSE_SERVER__TLS_KEY": str(key),
    }
    with cluster_of(1, 4.0, environ) as cluster:
        server = DeployedServer(cluster, folder, CONFIG, "ingress_cpus = 0.1\n")
        yield TlsServer(server, folder, authority)
        server.client.close()


@pytest.fixture(scope="module")
def cluster(deployed: TlsServer) -> RayCluster:
    """Instead of the cluster of the other files."""
    assert isinstance(deployed.server, DeployedServer)
    return deployed.server.cluster


@pytest.fixture(scope="module")
def client(deployed: TlsServer) -> Iterator[httpx.Client]:
    with deployed.client() as found:
        yield found


def pids_of(cluster: RayCluster, deployment: str) -> set[int]:
    return {process.pid for process in cluster.replicas(deployment)}


def test_ingress_serves_tls_only(deployed: TlsServer, client: httpx.Client) -> None:
    assert client.post("/models/digits/infer", json=DIGIT).json()["output_data"] == [4]
    plain = httpx.get(f"http://127.0.0.1:{deployed.server.port}/health/live", verify=False, trust_env=False)
    assert plain.status_code == 400
    assert "expected https" in plain.text


def test_client_of_triton_gets_answers(deployed: TlsServer) -> None:
    address, authority = f"localhost:{deployed.server.grpc_port}", str(deployed.folder / "ca.pem")
    image = tritonclient.grpc.InferInput("image", [1, 64], "FP32")
    image.set_data_from_numpy(np.zeros((1, 64), np.float32))
    with tritonclient.grpc.InferenceServerClient(address, ssl=True, root_certificates=authority) as triton:
        assert triton.is_model_ready("digits")
        assert triton.infer("digits", [image]).as_numpy("output_label").tolist() == [4]
        with pytest.raises(InferenceServerException, match="NOT_FOUND"):
            triton.infer("unknown", [image])


def test_trace_links_ingress_and_replica(client: httpx.Client, cluster: RayCluster, collector: Collector) -> None:
    headers = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
    assert client.post("/models/digits/infer", json=DIGIT, headers=headers).status_code == 200

    def requests() -> list[Any]:
        return [span for span in collector.requests(model="digits") if span.trace_id.hex() == TRACE_ID]

    wait_until(lambda: bool(requests()), WAIT_S)
    (span,) = requests()
    assert span.parent_span_id.hex() == SPAN_ID
    wait_until(lambda: collector.process_of(span) in pids_of(cluster, "Ingress"))
    children = collector.children(span)
    assert [child.name for child in children] == ["decode", "queue", "compute", "encode"]
    assert {child.trace_id.hex() for child in children} == {TRACE_ID}
    wait_until(lambda: bool(collector.batches(span)), WAIT_S)
    (batch,) = collector.batches(span)
    assert (span.trace_id, span.span_id) in {(link.trace_id, link.span_id) for link in batch.links}
    replica = attributes(batch)["process.pid"]
    wait_until(lambda: replica in pids_of(cluster, "model-digits"))


def test_cold_start_waits_up_to_deadline(client: httpx.Client, cluster: RayCluster) -> None:
    assert not cluster.replicas("model-cold")
    late = client.post("/models/cold/infer", json=DIGIT | {"timeout_ms": 200})
    assert late.status_code == 504, late.text
    assert late.json()["error"]["code"] == "deadline_exceeded"
    answer = client.post("/models/cold/infer", json=DIGIT, timeout=READY_WITHIN_S)
    assert answer.json()["output_data"] == [4], answer.text
    wait_until(lambda: bool(cluster.replicas("model-cold")))


def test_renewed_certificate_is_served(deployed: TlsServer) -> None:
    renewed = server_pair(deployed.authority)
    renewed.write(deployed.folder, "server")
    wait_until(partial(is_served, deployed, renewed.certificate))


def is_served(deployed: TlsServer, certificate: bytes) -> bool:
    return deployed.serial().split() == certificate.split()
