"""Collections with several workers: one process has them, and every worker sees what was acknowledged."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.auth.principal import Scope
from tests.e2e.conftest import Start
from tests.e2e.server import MODELS, RunningServer, assert_refused, serving, wait_until
from tests.support.keyring import make_key, write_keys

pytestmark = pytest.mark.extended

MINILM = f'[[models.torch_models]]\nname = "minilm"\npath = "{MODELS / "minilm"}"\n'
WORKERS = "[server]\nworkers = 2\n"
COLLECTIONS = """
[[collections]]
name = "docs"
dimensions = 384
model = "minilm"
[[collections]]
name = "numbers"
dimensions = 256
max_rows = 20_000
"""
FIND = """
[[pipelines]]
name = "find"
inputs = ["query"]
outputs = { ids = "find.ids" }
steps = [
    { name = "embed", model = "minilm", inputs = { text = "query" } },
    { name = "find", collection = "docs", top_k = 1, inputs = { vectors = "embed" } },
]
"""
CALLS = 12
"""Each has a connection of its own, so that both workers answer some."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("workers")
    with serving(folder, WORKERS + MINILM + COLLECTIONS + FIND) as running:
        yield running.wait_ready()
        running.check_log()


def ask(server: RunningServer, path: str, key: str = "", **body: Any) -> httpx.Response:
    """Send a request on a connection of its own."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=60)


def answer(server: RunningServer, path: str, **body: Any) -> Any:
    response = ask(server, f"/v1/collections/{path}", **body)
    assert response.status_code == 200, response.text
    return response.json()


def vectors_of(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(count, 256)).round(4)


def test_acknowledged_upsert_is_seen_by_every_worker(server: RunningServer) -> None:
    for number, vector in enumerate(vectors_of(CALLS)):
        record = {"id": f"seen{number}", "vector": vector.tolist(), "metadata": {"n": number}}
        assert answer(server, "numbers/upsert", records=[record])["upserted"] == 1
        for _ in range(3):
            hits = answer(server, "numbers/search", query=vector.tolist(), top_k=1, filter={"n": {"gte": number}})
            assert [hit["id"] for hit in hits["results"]] == [f"seen{number}"]
        assert server.client.get(f"/v1/collections/numbers/records/seen{number}").status_code == 200
        assert answer(server, "numbers/delete", ids=[f"seen{number}"])["deleted"] == 1
        assert answer(server, "numbers/search", query=vector.tolist(), filter={"n": number})["results"] == []


def test_texts_are_embedded_and_found(server: RunningServer) -> None:
    texts = {"bread": "Bread rises overnight.", "shed": "Locomotives are kept in a shed."}
    records = [{"id": name, "text": text} for name, text in texts.items()]
    assert answer(server, "docs/upsert", records=records)["upserted"] == 2
    for _ in range(CALLS):
        assert answer(server, "docs/search", query="Where are engines?", top_k=1)["results"][0]["id"] == "shed"
        found = ask(server, "/infer", model_name="find", inputs={"query": ["How is bread made?"]})
        assert found.status_code == 200, found.text
        assert found.json()["outputs"]["ids"]["data"] == ["bread"]


def test_large_upsert_and_answer_pass(server: RunningServer) -> None:
    vectors = vectors_of(5000, seed=1)
    body = {"ids": [f"large{i}" for i in range(5000)], "vectors": vectors.tolist()}
    assert answer(server, "numbers/upsert", **body)["upserted"] == 5000
    found = answer(server, "numbers/search", query=vectors[0].tolist(), top_k=4000, include_vectors=True)["results"]
    assert len(found) == 4000
    assert found[0]["vector"] == pytest.approx(vectors[0].tolist(), abs=1e-6)


def test_refusals_are_those_of_one_process(server: RunningServer) -> None:
    def refusal(path: str, **body: Any) -> httpx.Response:
        return ask(server, f"/v1/collections/{path}", **body)

    assert_refused(refusal("dox/search", query=[1]), 404, "collection_not_found", 'collection "dox" does not exist')
    short = refusal("numbers/upsert", records=[{"id": "a", "vector": [1, 2]}])
    assert_refused(short, 400, "invalid_input", "records[0].vector: expected 256 numbers, got 2")
    assert_refused(refusal("numbers/delete", ids=["x" * 600]), 400, "invalid_input", "ids[0]: expected a string")
    for count in range(0, 30_000, 10_000):
        body = {"ids": [f"{count}-{i}" for i in range(10_000)], "vectors": np.ones((10_000, 256)).tolist()}
        last = refusal("numbers/upsert", **body)
    assert_refused(last, 507, "out_of_memory", "expected at most 20000 rows")


def test_counts_are_of_all_workers(server: RunningServer) -> None:
    vector = [1.0] * 256
    labels = {"collection": "numbers", "operation": "search", "code": "200"}
    before = server.sample("roundhouse_collection_requests_total", **labels)
    for _ in range(CALLS):
        answer(server, "numbers/search", query=vector)
    wait_until(lambda: server.sample("roundhouse_collection_requests_total", **labels) == before + CALLS)
    assert server.sample("roundhouse_collection_seconds_count", collection="numbers", operation="search") >= CALLS
    held = server.sample("roundhouse_model_budget_bytes", device="cpu", kind="collections")
    memory = [server.sample("roundhouse_collection_bytes", collection=c, kind="memory") for c in ("docs", "numbers")]
    assert sum(memory) <= held <= sum(memory) + 4 * 1024**2


def test_tenant_sees_only_its_collections(start: Start, tmp_path: Path) -> None:
    reader = make_key("search", Scope.READ, Scope.INFER, Scope.WRITE)
    narrow = make_key("search", Scope.READ, Scope.INFER, collections=("docs*",))
    write_keys(tmp_path / "keys.toml", reader, narrow)
    tenants = '[auth]\nmode = "required"\n[[auth.tenants]]\nname = "search"\ncollections = ["docs", "numbers"]\n'
    hidden = '[[collections]]\nname = "hidden"\ndimensions = 2\n[[collections]]\nname = "docs2"\ndimensions = 2\n'
    bare = COLLECTIONS.replace('model = "minilm"\n', "")
    server = start(WORKERS + tenants + bare + hidden)
    server.client.headers["authorization"] = f"Bearer {reader.text}"
    server.wait_ready()
    for key, names in ((reader, ["docs", "numbers"]), (narrow, ["docs"])):
        for _ in range(CALLS):
            headers = {"authorization": f"Bearer {key.text}"}
            listed = httpx.get(f"{server.url}/v1/collections", headers=headers).json()
            assert [each["name"] for each in listed["collections"]] == names
            refused = ask(server, "/v1/collections/hidden/search", key.text, query=[1, 2])
            message = assert_refused(refused, 404, "collection_not_found", 'collection "hidden" does not exist')
            assert "docs2" not in message
    refused = ask(server, "/v1/collections/numbers/search", narrow.text, query=[1] * 256)
    message = assert_refused(refused, 404, "collection_not_found", 'collection "numbers" does not exist')
    assert message.endswith("there is docs")
    metrics = httpx.get(f"{server.url}/metrics", headers={"authorization": f"Bearer {narrow.text}"}).text
    assert 'collection="docs"' in metrics
    assert "hidden" not in metrics
    assert "numbers" not in metrics


def test_killed_server_keeps_what_workers_acknowledged(start: Start) -> None:
    config = WORKERS + COLLECTIONS.replace('model = "minilm"\n', "")
    server = start(config).wait_ready()
    vectors = vectors_of(CALLS, seed=3)
    for number, vector in enumerate(vectors):
        answer(server, "numbers/upsert", records=[{"id": str(number), "vector": vector.tolist()}])
    server.process.kill()
    server.process.wait()
    again = start(config).wait_ready()
    for number, vector in enumerate(vectors):
        assert answer(again, "numbers/search", query=vector.tolist(), top_k=1)["results"][0]["id"] == str(number)
    again.check_log()
