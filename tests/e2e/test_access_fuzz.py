"""Random requests without a right: over all routes and methods only health checks and documents are answered."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.e2e.configs import onnx_entries
from tests.e2e.server import GRPC_PORT, RunningServer, free_port, serving
from tests.support.hostile_keys import REPLAYS, Keys, fuzz_grpc, fuzz_http
from tests.support.keyring import write_keys
from tests.support.models import onnx_graphs

pytestmark = pytest.mark.extended

KEYS = Keys()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("keyed")
    write_keys(folder / "keys.toml", *KEYS.in_file)
    config = onnx_entries(folder, {"vector": onnx_graphs.identity("float32", None)})
    config += '[logging]\nrequests = "none"\n[[auth.tenants]]\nname = "search"\noperator = true\n'
    with serving(folder, config, {GRPC_PORT: free_port()}) as server:
        yield server.wait_ready()


def requests_of_models(server: RunningServer) -> float:
    page = server.client.get("/metrics", headers=KEYS.valid.headers).text
    lines = [line for line in page.splitlines() if line.startswith("roundhouse_requests_total{")]
    return sum(float(line.split()[-1]) for line in lines)


def check_unchanged(server: RunningServer) -> None:
    """Check that the model is ready, and that no log line has a secret."""
    model = server.client.get("/models/vector", headers=KEYS.valid.headers).json()
    assert model["state"] == "ready"
    assert not [line for line in server.lines if KEYS.valid.text[16:] in line]
    server.check_log()


@pytest.mark.parametrize("count", [3000, pytest.param(90_000, marks=pytest.mark.nightly)])
def test_http_refuses_requests_without_a_right(keyed: RunningServer, count: int) -> None:
    before = requests_of_models(keyed)
    outcome = asyncio.run(fuzz_http(keyed.port, KEYS, count, seed=count))
    assert requests_of_models(keyed) - before == REPLAYS
    assert not outcome.allowed, outcome.allowed[:10]
    assert outcome.responses >= count
    assert outcome.statuses["401"] > count // 2
    assert outcome.statuses["200"] > 0
    check_unchanged(keyed)


@pytest.mark.parametrize("count", [600, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_grpc_refuses_calls_without_a_right(keyed: RunningServer, count: int) -> None:
    outcome = asyncio.run(fuzz_grpc(keyed.grpc_port, KEYS, count, seed=count))
    assert not outcome.allowed, outcome.allowed[:10]
    assert outcome.responses == count
    check_unchanged(keyed)
