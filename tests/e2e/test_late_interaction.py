"""A model of late interaction over HTTP: vectors of tokens, MaxSim, and refusals by name."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.e2e.configs import late_entry
from tests.e2e.server import RunningServer, check_error, serving
from tests.support.models.late_folders import QUERY_LENGTH, VECTOR_SIZE

pytestmark = pytest.mark.extended

QUERY = "the engine of steam"
DOCUMENTS = ["the cat sat on the mat .", "steam", "the engine , the turntable ."]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("late")
    isolated = late_entry(folder).replace('"colbert"', '"isolated"', 1) + 'isolation = "process"\n'
    with serving(folder, late_entry(folder) + isolated) as running:
        yield running.wait_ready()


def ask(server: RunningServer, path: str, **body: object) -> Any:
    answer = server.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("model", ["colbert", "isolated"])
def test_scores_equal_max_sim_of_vectors(server: RunningServer, model: str) -> None:
    found = ask(server, "/infer", model_name=model, text=DOCUMENTS)
    documents = [np.array(each) for each in found["multi_embeddings"]]
    [query] = ask(server, "/infer", model_name=model, text=QUERY, input_type="query")["multi_embeddings"]
    assert np.shape(query) == (QUERY_LENGTH, VECTOR_SIZE)
    assert found["tokens"] > sum(map(len, documents)), "punctuation is read, and has no vector"
    expected = [float((np.array(query) @ document.T).max(axis=1).sum()) for document in documents]
    scored = ask(server, "/v1/score", model=model, text_1=QUERY, text_2=DOCUMENTS)["data"]
    np.testing.assert_allclose([each["score"] for each in scored], expected, rtol=1e-4)
    ranked = ask(server, "/rerank", model=model, query=QUERY, documents=DOCUMENTS)["results"]
    assert [each["index"] for each in ranked] == np.argsort(-np.array(expected)).tolist()


def test_pooling_returns_vectors_of_tokens(server: RunningServer) -> None:
    expected = ask(server, "/infer", model_name="colbert", text=DOCUMENTS)["multi_embeddings"]
    pooled = ask(server, "/pooling", model="colbert", input=DOCUMENTS, task="token_embed")["data"]
    for each, own in zip(pooled, expected, strict=True):
        np.testing.assert_allclose(each["data"], own, atol=1e-6)
    coded = ask(server, "/pooling", model="colbert", input=DOCUMENTS[0], encoding_format="base64")["data"][0]["data"]
    numbers = np.frombuffer(base64.b64decode(coded), "<f4").reshape(-1, VECTOR_SIZE)
    np.testing.assert_allclose(numbers, expected[0], atol=1e-6)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "colbert", "input": DOCUMENTS}),
        ("/v2/models/colbert/infer", {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}),
    ],
)
def test_single_vectors_refused_by_name(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    answer = server.client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert "one with a vector for each token; post the texts to /infer or /pooling" in answer.text


def test_similarity_is_max_sim(server: RunningServer) -> None:
    scored = ask(server, "/v1/score", model="colbert", text_1=QUERY, text_2=DOCUMENTS)["data"]
    expected = np.array([each["score"] for each in scored])
    [row] = ask(server, "/v1/similarity", model="colbert", items=[QUERY], others=DOCUMENTS)["scores"]
    np.testing.assert_allclose(row, expected, rtol=1e-3, atol=1e-3)
    own = ask(server, "/v1/similarity", model="colbert", items=DOCUMENTS)["scores"]
    assert np.shape(own) == (3, 3)
    best = ask(server, "/v1/similarity", model="colbert", items=[QUERY], others=DOCUMENTS, top_k=1)
    assert str(int(expected.argmax())) in str(best)
    tei = {"inputs": {"source_sentence": QUERY, "sentences": DOCUMENTS}, "model": "colbert"}
    np.testing.assert_allclose(ask(server, "/similarity", **tei), expected, rtol=1e-3, atol=1e-3)


def test_input_type_refused_with_wrong_side(server: RunningServer) -> None:
    answer = server.client.post("/infer", json={"model_name": "colbert", "text": "a", "input_type": "passage"})
    assert answer.status_code == 400
    assert 'input_type: expected "query" or "document"' in check_error(answer)["message"]


def test_similarity_refuses_many_pairs(server: RunningServer) -> None:
    answer = server.client.post("/v1/similarity", json={"model": "colbert", "items": ["a"] * 300})
    assert answer.status_code == 400
    assert "expected at most 65536 pairs of texts" in answer.text
    answer = server.client.post("/v1/similarity", json={"model": "colbert", "items": ["a"], "metric": "euclid"})
    assert answer.status_code == 400
    assert check_error(answer)["message"].startswith('metric: expected "cosine" or "dot"')
