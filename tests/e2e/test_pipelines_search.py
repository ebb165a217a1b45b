"""Pipelines that search a collection, over real sockets: retrieve, then rank."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.e2e.configs import save_onnx_classifier
from tests.e2e.conftest import Start
from tests.e2e.server import MODELS, RunningServer, serving
from tests.support.keyring import make_key, write_keys

TEXTS = {
    "bread": ("Bread rises overnight.", 2019),
    "shed": ("Locomotives are kept in a shed.", 2021),
    "depot": ("A roundhouse is where engines wait.", 2024),
    "sofa": ("Cats sleep on the sofa all day.", 2024),
    "park": ("Dogs run in the park.", 2023),
}
QUERIES = ["Where do engines wait?", "Where do cats sleep?"]
MINILM = f'[[models.onnx_models]]\nname = "minilm"\npath = "{MODELS / "minilm-onnx"}"\n'
DOCS = '[[collections]]\nname = "docs"\ndimensions = 384\nmodel = "minilm"\n'
STEPS = """
[[pipelines]]
name = "answers"
inputs = ["query"]
outputs = { texts = "find", scores = "rank", ids = "find.ids", rows = "find.rows", found = "find.scores" }
steps = [
    { name = "embed", model = "minilm", inputs = { text = "query" } },
    { name = "find", collection = "docs", top_k = 3, filter.year.gte = 2020, inputs = { vectors = "embed" } },
    { name = "rank", model = "cross-encoder", inputs = { query = "query", text = "find", rows = "find.rows" } },
]
"""
FIND = """
[[pipelines]]
name = "find"
inputs = ["vectors"]
outputs = { ids = "find.ids" }
steps = [{ name = "find", collection = "docs", inputs = { vectors = "vectors" } }]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("answers")
    path = save_onnx_classifier(folder / "ranker", ("LABEL_0",))
    ranker = f'[[models.onnx_models]]\nname = "cross-encoder"\npath = "{path}"\n'
    config = MINILM + ranker + DOCS + STEPS + FIND
    with serving(folder, config) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture(scope="module")
def filled(server: RunningServer) -> RunningServer:
    """The server with TEXTS in its collection. It was asked before: an empty collection has no hits."""
    assert answers_of(server)["rows"]["shape"] == [0]
    records = [{"id": name, "text": text, "metadata": {"year": year}} for name, (text, year) in TEXTS.items()]
    asked(server, "/v1/collections/docs/upsert", {"records": records})
    return server


def asked(server: RunningServer, path: str, body: dict[str, Any]) -> Any:
    answer = server.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def answers_of(server: RunningServer) -> Any:
    return asked(server, "/infer", {"model_name": "answers", "inputs": {"query": QUERIES}})["outputs"]


def test_ranked_hits_equal_those_by_hand(filled: RunningServer) -> None:
    outputs = {name: each["data"] for name, each in answers_of(filled).items()}
    body = {"query": QUERIES, "top_k": 3, "filter": {"year": {"gte": 2020}}}
    by_hand = asked(filled, "/v1/collections/docs/search", body)["results"]
    hits = [hit for row in by_hand for hit in row]
    assert outputs["rows"] == [0, 0, 0, 1, 1, 1]
    assert outputs["ids"] == [hit["id"] for hit in hits]
    assert outputs["texts"] == [hit["text"] for hit in hits]
    np.testing.assert_allclose(outputs["found"], [hit["score"] for hit in hits], atol=1e-5)
    assert "bread" not in outputs["ids"]
    for at, query in enumerate(QUERIES):
        ranked = {"model": "cross-encoder", "query": query, "documents": [hit["text"] for hit in by_hand[at]]}
        results = asked(filled, "/v1/rerank", ranked)["results"]
        scores = [each["relevance_score"] for each in sorted(results, key=lambda each: each["index"])]
        np.testing.assert_allclose(outputs["scores"][3 * at : 3 * at + 3], scores, atol=1e-5)


def test_search_has_its_step_timing(filled: RunningServer) -> None:
    answer = filled.client.post("/infer", json={"model_name": "answers", "inputs": {"query": QUERIES}})
    timing = answer.headers["server-timing"]
    assert [f"step-{name};dur=" in timing for name in ("embed", "find", "rank")] == [True] * 3
    metrics = filled.client.get("/metrics").text
    assert 'roundhouse_pipeline_step_seconds_count{model="answers",step="find"}' in metrics


def test_wrong_vectors_name_the_step(filled: RunningServer) -> None:
    answer = filled.client.post("/models/find/infer", json={"inputs": {"vectors": [[1.0, 2.0]]}})
    assert answer.status_code == 400
    answer = filled.client.post("/models/find/infer", json={"inputs": {"vectors": [[1e20] * 384]}})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith('(step "find")')


@pytest.mark.extended
def test_tenant_needs_no_right_to_the_collection(start: Start, tmp_path: Any) -> None:
    key = make_key("red")
    write_keys(tmp_path / "keys.toml", key)
    auth = '[auth]\nmode = "required"\n[[auth.tenants]]\nname = "red"\nmodels = ["find"]\ncollections = []\n'
    server = start(DOCS.replace('model = "minilm"\n', "") + FIND + auth).wait_ready()
    server.client.headers.update(key.headers)
    body = {"inputs": {"vectors": np.zeros((1, 384)).tolist()}}
    assert asked(server, "/models/find/infer", body)["outputs"]["ids"]["data"] == []
    assert server.client.post("/v1/collections/docs/search", json={"query": [0.0] * 384}).status_code == 404


@pytest.mark.extended
def test_dimensions_that_do_not_fit_fail_the_pipeline(start: Start) -> None:
    wrong = DOCS.replace("384", "383").replace('model = "minilm"\n', "")
    steps = STEPS.replace("cross-encoder", "minilm")
    server = start(MINILM + wrong + steps)
    server.wait_for_log("model failed to load", model="answers")
    reason = server.client.get("/models/answers").json()["reason"]
    assert "steps[1].inputs.vectors: expected float32[-1, 383], got float32[-1, 384]" in reason
