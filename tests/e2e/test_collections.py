"""Collections over HTTP: upserts, searches, deletes, scopes of tenants, limits, and a server that is killed."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.auth.principal import Scope
from tests.e2e.configs import save_onnx_classifier
from tests.e2e.conftest import Start
from tests.e2e.server import MODELS, RunningServer, assert_refused, serving, wait_until
from tests.support.keyring import make_key, write_keys

TEXTS = {
    "bread": "Bread rises overnight.",
    "shed": "Locomotives are kept in a shed.",
    "roundhouse": "A roundhouse is where engines wait.",
}
MINILM = f'[[models.onnx_models]]\nname = "minilm"\npath = "{MODELS / "minilm-onnx"}"\n'
DIMENSIONS = 8


def collection(name: str, dimensions: int = DIMENSIONS, more: str = "") -> str:
    return f'[[collections]]\nname = "{name}"\ndimensions = {dimensions}\n{more}\n'


def _cross_encoder(folder: Path) -> str:
    path = save_onnx_classifier(folder / "cross-encoder", ("LABEL_0",))
    return f'[[models.onnx_models]]\nname = "cross-encoder"\npath = "{path}"\n'


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with an embedder, a cross-encoder, and collections of texts and of vectors."""
    folder = tmp_path_factory.mktemp("texts")
    config = MINILM + _cross_encoder(folder) + collection("docs", 384, 'model = "minilm"') + collection("numbers")
    with serving(folder, config + collection("few", more="max_rows = 9")) as running:
        running.wait_ready()
        records = [
            {"id": name, "text": text, "metadata": {"length": len(text), "topic": name}} for name, text in TEXTS.items()
        ]
        answer = ask(running, "docs/upsert", records=records)
        assert answer["upserted"] == len(TEXTS)
        assert answer["tokens"] > 0
        yield running
        running.check_log()


def ask(server: RunningServer, path: str, **body: object) -> Any:
    answer = server.client.post(f"/v1/collections/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids_of(hits: list[dict[str, Any]]) -> list[str]:
    return [hit["id"] for hit in hits]


def some_records(count: int, seed: int = 0, prefix: str = "r") -> tuple[list[dict[str, Any]], Any]:
    vectors = np.random.default_rng(seed).normal(size=(count, DIMENSIONS)).astype(np.float32)
    return [{"id": f"{prefix}{i}", "vector": row.tolist()} for i, row in enumerate(vectors)], vectors


class TestSearch:
    def test_text_finds_nearest_record(self, texts: RunningServer) -> None:
        answer = ask(texts, "docs/search", query="Where do engines wait?", top_k=2)
        assert answer["collection"] == "docs"
        assert answer["tokens"] > 0
        first = answer["results"][0]
        assert first["id"] == "roundhouse"
        assert first["text"] == TEXTS["roundhouse"]
        assert first["metadata"] == {"length": len(TEXTS["roundhouse"]), "topic": "roundhouse"}
        assert len(answer["results"]) == 2

    def test_list_of_queries_gets_lists(self, texts: RunningServer) -> None:
        results = ask(texts, "docs/search", query=["engines", "How is bread made?"], top_k=1)["results"]
        assert [ids_of(hits) for hits in results][1] == ["bread"]
        assert len(results) == 2

    def test_score_is_cosine_of_embeddings(self, texts: RunningServer) -> None:
        query = "Where do engines wait?"
        vectors = np.array(texts.infer("minilm", text=[query, *TEXTS.values()])["embeddings"])
        expected = dict(zip(TEXTS, vectors[1:] @ vectors[0], strict=True))
        hits = ask(texts, "docs/search", query=vectors[0].tolist(), include_vectors=True, include_text=False)["results"]
        assert {hit["id"]: hit["score"] for hit in hits} == pytest.approx(expected, abs=1e-5)
        rows = dict(zip(TEXTS, vectors[1:], strict=True))
        assert all(np.allclose(hit["vector"], rows[hit["id"]], atol=1e-6) for hit in hits)
        assert not any("text" in hit for hit in hits)

    def test_filter_limits_hits(self, texts: RunningServer) -> None:
        hits = ask(texts, "docs/search", query="engines", filter={"topic": {"in": ["bread", "shed"]}})["results"]
        assert sorted(ids_of(hits)) == ["bread", "shed"]

    def test_rerank_model_orders_hits(self, texts: RunningServer) -> None:
        query = "Where do engines wait?"
        hits = ask(texts, "docs/search", query=query, rerank_model="cross-encoder", top_k=3)["results"]
        body = {"model": "cross-encoder", "query": query, "documents": list(TEXTS.values())}
        ranked = texts.client.post("/v1/rerank", json=body).json()["results"]
        assert ids_of(hits) == [list(TEXTS)[each["index"]] for each in ranked]
        scores = [each["relevance_score"] for each in ranked]
        assert [hit["rerank_score"] for hit in hits] == pytest.approx(scores, abs=1e-5)

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({}, "query: expected a text, a vector or an image"),
            ({"query": 1}, "query: expected a text, a vector or an image, got 1"),
            ({"query": []}, "query: expected"),
            ({"query": [1, 2]}, "query: expected vectors of 384 numbers, got 2"),
            ({"query": [[1], [1, 2]]}, "query: expected vectors of equal length"),
            ({"query": ["a", 1]}, "query[1]: expected a string"),
            ({"query": {"image": "http://x.example/a.png"}}, "query.image: expected base64 or a data URL, got a URL"),
            ({"query": {"image": "a"}}, "query.image: expected base64"),
            ({"query": {"imge": "a"}}, "query.imge: unknown field"),
            ({"query": "a", "top_k": 0}, "top_k: expected an integer from 1 to 10000, got 0"),
            ({"query": "a", "filter": {"year": {"above": 3}}}, "filter.year.above: unknown field"),
            ({"query": "a", "candidates": 3}, "candidates: expected a number beside rerank_model only"),
            ({"query": [0] * 384, "rerank_model": "cross-encoder"}, "query: expected texts with rerank_model"),
            ({"query": "a", "rerank_model": "minilm-x"}, 'model "minilm-x" is not registered'),
            ({"query": "a", "topk": 3}, "topk: unknown field"),
        ],
    )
    def test_wrong_field_is_named(self, body: dict[str, object], message: str, texts: RunningServer) -> None:
        answer = texts.client.post("/v1/collections/docs/search", json=body)
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]["message"].startswith(message), answer.text

    def test_text_without_model_is_refused(self, texts: RunningServer) -> None:
        answer = texts.client.post("/v1/collections/numbers/search", json={"query": "a"})
        assert_refused(answer, 400, "invalid_input", "query: expected vectors, as the collection has no model")

    def test_unknown_collection_lists_near_names(self, texts: RunningServer) -> None:
        for method, path in (("POST", "dox/search"), ("GET", "dox"), ("GET", "dox/records/a"), ("POST", "dox/upsert")):
            answer = texts.client.request(method, f"/v1/collections/{path}", json={"query": "a"})
            assert_refused(answer, 404, "collection_not_found", 'collection "dox" does not exist; there is docs')

    def test_passed_deadline_never_searches(self, texts: RunningServer) -> None:
        _, vectors = some_records(2000, seed=5, prefix="late")
        body = {"query": vectors.tolist()[:1000], "timeout_ms": 1}
        answer = texts.client.post("/v1/collections/numbers/search", json=body)
        assert_refused(answer, 504, "deadline_exceeded")


class TestRecords:
    def test_upsert_is_seen_by_next_search(self, texts: RunningServer) -> None:
        records, vectors = some_records(100, seed=1, prefix="seen")
        assert ask(texts, "numbers/upsert", records=records)["upserted"] == 100
        hits = ask(texts, "numbers/search", query=vectors[7].tolist(), top_k=1)["results"]
        assert (ids_of(hits), hits[0]["metadata"]) == (["seen7"], {})

    def test_record_is_replaced_as_a_whole(self, texts: RunningServer) -> None:
        ask(texts, "numbers/upsert", records=[{"id": "a/b", "vector": [1] * 8, "text": "old", "metadata": {"x": 1}}])
        ask(texts, "numbers/upsert", records=[{"id": "a/b", "vector": [2] * 8}])
        record = texts.client.get("/v1/collections/numbers/records/a/b").json()
        assert record == {"id": "a/b", "text": None, "metadata": {}, "vector": [2.0] * 8}

    def test_deleted_records_are_gone(self, texts: RunningServer) -> None:
        records = [{"id": f"gone{i}", "vector": [i + 1.0] * 8, "metadata": {"gone": i}} for i in range(6)]
        ask(texts, "numbers/upsert", records=records)
        assert ask(texts, "numbers/delete", ids=["gone0", "never"])["deleted"] == 1
        assert ask(texts, "numbers/delete", filter={"gone": {"gte": 3}})["deleted"] == 3
        hits = ask(texts, "numbers/search", query=[1] * 8, filter={"gone": {"exists": True}})["results"]
        assert sorted(ids_of(hits)) == ["gone1", "gone2"]
        answer = texts.client.get("/v1/collections/numbers/records/gone0")
        assert_refused(answer, 404, "record_not_found", 'collection "numbers" has no record "gone0"')

    @pytest.mark.parametrize(
        ("path", "body", "message"),
        [
            ("upsert", {}, "records: expected a list of records, got null"),
            ("upsert", {"records": []}, "records: expected 1 to 10000 records, got 0"),
            ("upsert", {"records": [1]}, "records[0]: expected an object with id, got a number"),
            ("upsert", {"records": [{"vector": [1]}]}, "records[0].id: expected a non-empty string"),
            ("upsert", {"records": [{"id": "a"}]}, "records[0]: expected one of vector, text and image, got none"),
            ("upsert", {"records": [{"id": "a", "vector": [[1]]}]}, "records[0].vector: expected a list of numbers"),
            ("upsert", {"records": [{"id": "a", "vector": [1, 2]}]}, "records[0].vector: expected"),
            ("upsert", {"records": [{"id": "a", "text": "b"}]}, "records[0].text: expected vectors, as the collection"),
            ("upsert", {"ids": ["a"], "vectors": [[1, 2]]}, "vectors[0]: expected"),
            ("upsert", {"ids": ["a", "b"], "texts": ["c", "d"]}, "texts[0]: expected vectors, as the collection"),
            ("upsert", {"ids": ["a" * 600], "vectors": [[1] * 8]}, "ids[0]: expected"),
            ("upsert", {"ids": ["a"], "vectors": [[1] * 8], "metadata": [{"k": {}}]}, "metadata[0].k: expected"),
            ("upsert", {"records": [{"id": "a", "vektor": [1]}]}, "records[0].vektor: unknown field"),
            ("delete", {}, "ids: expected one of ids, filter and all, got none"),
            ("delete", {"ids": ["a"], "all": True}, "all: expected one of ids, filter and all, got ids and all"),
            ("delete", {"filter": {}}, "filter: expected a condition, got an empty object"),
            ("delete", {"ids": []}, "ids: expected a list of 1 to 10000"),
        ],
    )
    def test_wrong_field_is_named(self, path: str, body: dict[str, object], message: str, texts: RunningServer) -> None:
        answer = texts.client.post(f"/v1/collections/numbers/{path}", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(message), answer.text

    def test_invalid_record_leaves_collection_as_it_was(self, texts: RunningServer) -> None:
        records = [{"id": "valid", "vector": [1] * 8}, {"id": "short", "vector": [1] * 7}]
        answer = texts.client.post("/v1/collections/numbers/upsert", json={"records": records})
        assert_refused(answer, 400, "invalid_input", "records[1].vector")
        assert texts.client.get("/v1/collections/numbers/records/valid").status_code == 404

    def test_description_and_metrics_count_records(self, texts: RunningServer) -> None:
        shown = texts.client.get("/v1/collections/docs").json()
        assert (shown["rows"], shown["dimensions"], shown["metric"], shown["model"]) == (3, 384, "cosine", "minilm")
        listed = texts.client.get("/v1/collections").json()["collections"]
        assert [each["name"] for each in listed] == ["docs", "numbers", "few"]
        assert texts.sample("roundhouse_collection_rows", collection="docs") == 3
        labels = {"collection": "docs", "operation": "upsert", "code": "200"}
        assert texts.sample("roundhouse_collection_requests_total", **labels) == 1
        assert texts.sample("roundhouse_collection_seconds_count", collection="docs", operation="search") >= 1

    def test_upsert_beyond_max_rows_is_refused(self, texts: RunningServer) -> None:
        records, _ = some_records(10, prefix="few")
        assert ask(texts, "few/upsert", records=records[:8])["upserted"] == 8
        answer = texts.client.post("/v1/collections/few/upsert", json={"records": records[6:]})
        assert_refused(answer, 507, "out_of_memory", 'collection "few": expected at most 9 rows, got 10')
        assert ask(texts, "few/upsert", records=records[:9])["upserted"] == 9
        assert texts.client.get("/v1/collections/few").json()["rows"] == 9


def test_acknowledged_upserts_survive_kill(start: Start) -> None:
    """A writer sends upserts without a pause; the server is killed while it writes. Each one that was answered is there
    after the next start, and none is there in part.
    """
    config = collection("numbers")
    server = start(config).wait_ready()
    batches = [some_records(50, seed=i, prefix=f"b{i}-") for i in range(400)]
    acknowledged: list[int] = []
    is_killed = threading.Event()

    def write(first: int) -> None:
        for i in range(first, len(batches), 2):
            try:
                answer = server.client.post("/v1/collections/numbers/upsert", json={"records": batches[i][0]})
            except httpx.HTTPError:
                assert is_killed.is_set()
                return
            assert answer.status_code == 200, answer.text
            acknowledged.append(i)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, first) for first in range(2)]
        wait_until(lambda: len(acknowledged) >= 20)
        is_killed.set()
        server.process.kill()
        server.process.wait()
        for writer in writers:
            writer.result()
    assert len(acknowledged) < len(batches)
    again = start(config).wait_ready()
    shown = again.client.get("/v1/collections/numbers").json()
    assert shown["rows"] % 50 == 0
    assert shown["rows"] >= 50 * len(acknowledged)
    for i in acknowledged:
        hits = ask(again, "numbers/search", query=batches[i][1].tolist(), top_k=1)["results"]
        assert [ids_of(each) for each in hits] == [[record["id"]] for record in batches[i][0]]
    again.check_log()


@pytest.mark.extended
def test_collection_that_cannot_open_leaves_server_degraded(start: Start, tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("no folder")
    server = start(collection("numbers") + collection("broken", more=f'path = "{tmp_path / "broken"}"')).wait_ready()
    health = server.client.get("/health").json()
    assert (health["status"], health["collections"]) == ("degraded", {"numbers": "ready", "broken": "failed"})
    answer = server.client.post("/v1/collections/broken/search", json={"query": [1] * 8})
    assert_refused(answer, 503, "model_failed", 'collection "broken" could not be opened')
    server.wait_for_log("collection failed to open", collection="broken")
    assert ask(server, "numbers/search", query=[1] * 8)["results"] == []


TENANTS = """
[auth]
mode = "required"
[[auth.tenants]]
name = "search"
collections = ["docs*"]
requests_per_minute = 600
[[auth.tenants]]
name = "writer"
models = ["none"]
"""


KEYS = {
    "search": make_key("search", Scope.INFER, Scope.READ),
    "writer": make_key("writer", Scope.WRITE, Scope.INFER, Scope.READ),
}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("tenants")
    write_keys(folder / "keys.toml", *KEYS.values())
    config = MINILM + collection("docs", 384, 'model = "minilm"') + collection("private") + TENANTS
    with serving(folder, config) as running:
        yield running.wait_ready()
        running.check_log()


def send(server: RunningServer, key: str, path: str, **body: object) -> httpx.Response:
    method = "POST" if body else "GET"
    return server.client.request(method, f"/v1/collections{path}", json=body or None, headers=KEYS[key].headers)


class TestTenants:
    def test_tenant_sees_only_its_collections(self, keyed: RunningServer) -> None:
        listed = send(keyed, "search", "").json()["collections"]
        assert [each["name"] for each in listed] == ["docs"]
        for path, body in (("/private", {}), ("/private/search", {"query": [1] * 8}), ("/private/records/a", {})):
            answer = send(keyed, "search", path, **body)
            assert_refused(answer, 404, "collection_not_found", '"private" does not exist; there is docs')
        page = keyed.client.get("/metrics", headers=KEYS["search"].headers).text
        assert 'collection="docs"' in page
        assert "private" not in page
        assert "private" not in keyed.client.get("/health", headers=KEYS["search"].headers).text

    def test_write_scope_is_needed_to_change_records(self, keyed: RunningServer) -> None:
        records = [{"id": "a", "vector": [1] * 384}]
        assert_refused(send(keyed, "search", "/docs/upsert", records=records), 403, "forbidden", "write")
        assert_refused(send(keyed, "search", "/docs/delete", ids=["a"]), 403, "forbidden", "write")
        assert send(keyed, "writer", "/docs/upsert", records=records).status_code == 200

    def test_hidden_model_is_not_named(self, keyed: RunningServer) -> None:
        answer = send(keyed, "writer", "/docs/search", query="a")
        message = assert_refused(answer, 403, "forbidden", "query: expected vectors")
        assert "minilm" not in message
        assert send(keyed, "writer", "/docs").json()["model"] is None
        assert send(keyed, "search", "/docs").json()["model"] == "minilm"
        body = {"query": "a", "rerank_model": "minilm"}
        answer = send(keyed, "writer", "/docs/search", **body)
        assert_refused(answer, 404, "model_not_found", 'model "minilm" is not registered; no model')

    def test_searches_count_for_limit_of_tenant(self, keyed: RunningServer) -> None:
        statuses = [send(keyed, "search", "/docs/search", query=[1.0] * 384).status_code for _ in range(100)]
        assert set(statuses) == {200, 429}


@pytest.mark.extended
@pytest.mark.parametrize("workers", [1, 2])
def test_created_collection_survives_restart(start: Start, tmp_path: Path, workers: int) -> None:
    server = start(f"[server]\nworkers = {workers}\n" + collection("kept")).wait_ready()

    def all_workers_list(server: RunningServer, *names: str) -> None:
        for _ in range(4 * workers):  # each on a connection of its own
            listed = httpx.get(f"{server.url}/v1/collections", timeout=60).json()["collections"]
            assert [each["name"] for each in listed] == list(names)
            for name in names:
                body = {"query": [1.0] * DIMENSIONS}
                found = httpx.post(f"{server.url}/v1/collections/{name}/search", json=body, timeout=60)
                assert found.status_code == 200, found.text

    body = {"name": "made", "dimensions": DIMENSIONS, "metric": "dot"}
    made = server.client.post("/v1/collections", json=body)
    assert made.status_code == 201, made.text
    assert (made.json()["rows"], made.json()["metric"], made.json()["is_created"]) == (0, "dot", True)
    all_workers_list(server, "kept", "made")
    assert ask(server, "made/upsert", records=[{"id": "a", "vector": [1.0] * DIMENSIONS}])["upserted"] == 1
    assert_refused(server.client.post("/v1/collections", json=body), 409, "collection_exists", '"made" exists already')
    assert_refused(server.client.delete("/v1/collections/kept"), 403, "forbidden", "config file", "remove its entry")
    assert_refused(server.client.delete("/v1/collections/none"), 404, "collection_not_found")
    for wrong, words in (
        ({"dimensions": 0}, ["dimensions:"]), ({"name": "a/b"}, ["name:"]), ({"metric": "l2"}, ["metric:"]),
        ({"name": None}, ["name:"]),
    ):  # fmt: skip
        assert_refused(server.client.post("/v1/collections", json={**body, **wrong}), 400, "invalid_input", *words)
    unknown = server.client.post("/v1/collections", json={**body, "name": "other", "model": "none"})
    assert_refused(unknown, 404, "model_not_found")
    server.stop()
    again = start(f"[server]\nworkers = {workers}\n" + collection("kept")).wait_ready()
    assert again.client.get("/v1/collections/made").json()["rows"] == 1
    all_workers_list(again, "kept", "made")
    assert again.client.delete("/v1/collections/made").json() == {"deleted": "made"}
    all_workers_list(again, "kept")
    assert [each.name for each in (tmp_path / "collections").iterdir()] == ["kept"]
    assert_refused(again.client.post("/v1/collections/made/search", json={"query": [1]}), 404, "collection_not_found")
    assert again.client.post("/v1/collections", json=body).json()["rows"] == 0
