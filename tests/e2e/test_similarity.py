"""Texts and vectors compared by /v1/similarity, against numpy and sentence-transformers."""

from typing import Any

import numpy as np
import pytest

from tests.e2e.server import RunningServer

TEXTS = ["Bread rises overnight.", "Locomotives are kept in a shed.", "A roundhouse is where engines wait."]
QUERIES = ["Where do engines wait?", "How is bread made?"]


def compare(server: RunningServer, **body: object) -> Any:
    answer = server.client.post("/v1/similarity", json=body)
    assert answer.status_code == 200, answer.text
    assert "server-timing" in answer.headers
    return answer.json()


def refusal(server: RunningServer, body: dict[str, object], status: int = 400) -> Any:
    answer = server.client.post("/v1/similarity", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]
    return answer.json()["error"]


def vectors_of(seed: int, rows: int, dimensions: int = 24) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, dimensions)).astype(np.float32)


class TestVectors:
    @pytest.mark.parametrize("metric", ["cosine", "dot", "euclid"])
    def test_scores_equal_sentence_transformers(self, metric: str, server: RunningServer) -> None:
        util: Any = pytest.importorskip("sentence_transformers.util")
        references = {"cosine": util.cos_sim, "dot": util.dot_score, "euclid": util.euclidean_sim}
        items, others = vectors_of(1, 7), vectors_of(2, 5)
        answer = compare(server, items=items.tolist(), others=others.tolist(), metric=metric)
        assert answer["metric"] == metric
        assert np.allclose(answer["scores"], references[metric](items, others).numpy(), atol=1e-5)
        assert not answer.keys() & {"nearest", "model", "tokens"}

    def test_top_k_equals_sorted_scores(self, server: RunningServer) -> None:
        items, others = vectors_of(3, 300).tolist(), vectors_of(4, 5000).tolist()
        nearest = compare(server, items=items, others=others, top_k=3)["nearest"]
        scores = np.array(compare(server, items=items, others=others)["scores"])
        assert scores.shape == (300, 5000)
        best = np.argsort(-scores, axis=1)[:, :3]
        assert [[each["index"] for each in row] for row in nearest] == best.tolist()
        found = [[each["score"] for each in row] for row in nearest]
        assert np.allclose(found, np.take_along_axis(scores, best, 1), atol=1e-6)

    def test_list_with_itself_leaves_item_out(self, server: RunningServer) -> None:
        items = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]]
        nearest = compare(server, items=items, top_k=9, metric="euclid")["nearest"]
        assert [[each["index"] for each in row] for row in nearest] == [[2, 1], [2, 0], [0, 1]]
        assert compare(server, items=items)["scores"][1][1] == pytest.approx(1)

    def test_zero_vector_has_cosine_zero(self, server: RunningServer) -> None:
        assert compare(server, items=[[0, 0]], others=[[3, 4]])["scores"] == [[0.0]]


class TestTexts:
    def test_scores_are_those_of_embeddings(self, server: RunningServer) -> None:
        answer = compare(server, model="minilm", items=QUERIES, others=TEXTS)
        embeddings = server.infer("minilm", text=[*QUERIES, *TEXTS])
        vectors = np.array(embeddings["embeddings"])
        assert np.allclose(answer["scores"], vectors[:2] @ vectors[2:].T, atol=1e-5)
        assert (answer["model"], answer["tokens"]) == ("minilm", embeddings["tokens"])

    def test_nearest_text_answers_question(self, server: RunningServer) -> None:
        nearest = compare(server, model="minilm", items=QUERIES, others=TEXTS, top_k=1)["nearest"]
        assert [row[0]["index"] for row in nearest] == [2, 0]

    def test_request_counts_for_model(self, server: RunningServer) -> None:
        def count() -> float:
            return server.sample("roundhouse_requests_total", model="minilm", code="200")

        before = count()
        compare(server, model="minilm", items=TEXTS)
        assert count() == before + 1


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({}, "items: expected a list of texts or of vectors, got nothing"),
            ({"items": []}, "items: expected"),
            ({"items": "a"}, "items: expected a list of texts or of vectors, got a string"),
            ({"items": [1, 2]}, "items: expected a list of vectors, got 1 level"),
            ({"items": [[1, 2], [1]]}, "items: expected vectors of equal length, got a ragged array"),
            ({"items": [[1, None]]}, "items: expected numbers, got null"),
            ({"items": ["a", 1]}, "items"),
            ({"items": [[1e39]]}, "items: expected numbers in the range of float32"),
            ({"items": [[]]}, "items: expected vectors of 1 to 65536 numbers, got 0"),
            ({"items": [[1, 2]], "others": [[1]]}, "others: expected vectors of 2 numbers as in items, got 1"),
            ({"items": [[1, 2]], "others": ["a"]}, "others: expected vectors as in items"),
            ({"items": [[1]], "model": "minilm"}, "model: expected no model for vectors"),
            ({"items": ["a"], "model": "digits"}, "model: expected a model that embeds texts"),
            ({"items": [[1]], "metric": "l2"}, 'metric: expected "cosine" or "dot" or "euclid", got "l2"'),
            ({"items": [[1]], "top_k": 0}, "top_k: expected an integer from 1 to 10000, got 0"),
            ({"items": [[1]] * 3000}, "items: expected at most 4194304 scores, got 3000 times 3000"),
        ],
    )
    def test_wrong_field_is_named(self, body: dict[str, object], message: str, server: RunningServer) -> None:
        error = refusal(server, body)
        assert error["message"].startswith(message), error
        assert error["code"] == "invalid_input"

    def test_unknown_field_and_model_are_named(self, server: RunningServer) -> None:
        assert refusal(server, {"items": [[1]], "topk": 1})["code"] == "unknown_field"
        assert refusal(server, {"items": ["a"], "model": "minilim"}, 404)["message"].endswith("minilm, minilm-onnx")

    def test_passed_deadline_is_reported(self, server: RunningServer) -> None:
        rows = vectors_of(5, 20_000, 8).tolist()
        error = refusal(server, {"items": rows, "top_k": 1, "timeout_ms": 1}, 504)
        assert error["message"].startswith("the server did not answer within timeout_ms")
