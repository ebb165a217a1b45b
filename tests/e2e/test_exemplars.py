"""Exemplars of a real server: the page in OpenMetrics, that of several workers, and a Prometheus that stores them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.docker.prometheus import running_prometheus
from tests.e2e.configs import onnx_entries
from tests.e2e.server import WAIT_S, RunningServer, serving, wait_until
from tests.e2e.test_health_and_metrics import FAMILIES, HISTOGRAMS
from tests.support.models import onnx_graphs
from tests.support.otlp_collector import collecting

pytestmark = pytest.mark.extended

OPEN = {"accept": "application/openmetrics-text; version=1.0.0"}
KEY = "k" * 40
WORKERS = 2 if sys.platform == "linux" else 1


def post(server: RunningServer, number: int, flag: str = "01") -> None:
    """Send a request in a trace of its own, over a connection of its own."""
    headers = {"traceparent": f"00-{number:032x}-{1:016x}-{flag}", "x-api-key": KEY}
    with httpx.Client(base_url=server.url, timeout=WAIT_S, trust_env=False, verify=False) as client:
        assert client.post("/models/local/infer", json={"input_data": [1.0]}, headers=headers).status_code == 200


def exemplars(server: RunningServer, name: str) -> set[int]:
    """Return the traces on the page of a family."""
    page = server.client.get("/metrics", headers=OPEN)
    assert page.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in text_string_to_metric_families(page.text)}  # type: ignore[no-untyped-call]
    assert {family.name: family.type for family in families.values()} == FAMILIES
    return {int(each.exemplar.labels["trace_id"], 16) for each in families[name].samples if each.exemplar}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("exemplars")
    entries = f"[server]\nworkers = {WORKERS}\n{onnx_entries(folder, {'local': onnx_graphs.identity()})}"
    with collecting() as collector:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "ROUNDHOUSE_API_KEY": KEY}
        with serving(folder, entries, environ) as running:
            running.client.headers["x-api-key"] = KEY
            yield running.wait_ready()


def test_page_has_exemplars_of_sampled_requests(server: RunningServer) -> None:
    sampled = range(1, 25)
    for number in sampled:
        post(server, number)
        post(server, 100 + number, flag="00")
    for name in HISTOGRAMS:
        found = exemplars(server, name)
        assert found
        assert found <= set(sampled)
    assert 'le="1"' in server.client.get("/metrics").text


def test_prometheus_stores_exemplars(server: RunningServer, tmp_path: Path) -> None:
    post(server, 50)
    with running_prometheus(tmp_path, [f"127.0.0.1:{server.port}"], KEY, stores_exemplars=True) as prometheus:
        wait_until(lambda: bool(prometheus.exemplars("roundhouse_request_seconds_bucket")))
        found = prometheus.exemplars("roundhouse_request_seconds_bucket")
        assert f"{50:032x}" in {each["labels"]["trace_id"] for each in found}
        # The bounds of this family are whole numbers.
        wait_until(lambda: bool(prometheus.query('roundhouse_batch_size_bucket{le="1.0"} >= 1')))
