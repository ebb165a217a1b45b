"""Three kinds of vectors of one folder over HTTP: every route that has a form for a kind, isolated or not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.server import RunningServer, check_error, serving
from tests.support.models.combined_folders import Combined, combined_vectors, save_combined
from tests.support.models.text_files import TEXTS

TOLERANCE = 1e-5
Server = tuple[RunningServer, list[Combined]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server, and the vectors of TEXTS by plain transformers."""
    root = tmp_path_factory.mktemp("kinds")
    folder: Path = save_combined(root / "combined")
    entry = f'[[models.torch_models]]\nname = "{{}}"\npath = "{folder}"\ndtype = "f32"\n'
    allowed = "allow_pickled_weights = true\ncache = true\n"
    isolated = entry.format("isolated") + allowed + 'isolation = "process"\n'
    config = entry.format("combined") + allowed + isolated + entry.format("plain")
    with serving(root, config) as running:
        yield running.wait_ready(), [combined_vectors(folder, text) for text in TEXTS]


def ask(server: Server, path: str, **body: object) -> Any:
    answer = server[0].client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def check_sparse(rows: list[dict[int, float]], expected: list[Combined]) -> None:
    for row, each in zip(rows, expected, strict=True):
        assert row.keys() == each.sparse.keys()
        np.testing.assert_allclose([row[i] for i in each.sparse], [*each.sparse.values()], rtol=0, atol=TOLERANCE)


def check_multi(rows: list[Any], expected: list[Combined]) -> None:
    for row, each in zip(rows, expected, strict=True):
        np.testing.assert_allclose(row, each.multi, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("model", ["combined", "isolated"])
def test_infer_answers_each_kind(served: Server, model: str) -> None:
    for _ in range(2):  # the second answer is the cached one
        answer = ask(served, "/infer", model_name=model, text=[*TEXTS], vectors=["sparse", "dense", "multi"])
        np.testing.assert_allclose(answer["embeddings"], [each.dense for each in served[1]], rtol=0, atol=TOLERANCE)
        sparse = answer["sparse_embeddings"]
        check_sparse([dict(zip(each["indices"], each["values"], strict=True)) for each in sparse], served[1])
        check_multi(answer["multi_embeddings"], served[1])
        assert answer["tokens"] == ask(served, "/infer", model_name="plain", text=[*TEXTS])["tokens"]


def test_infer_answers_embeddings_by_default(served: Server) -> None:
    for options in ({}, {"vectors": "dense"}, {"parameters": {"vectors": ["dense"]}}):
        answer = ask(served, "/infer", model_name="combined", text=[*TEXTS], **options)
        assert "sparse_embeddings" not in answer
        np.testing.assert_allclose(answer["embeddings"], [each.dense for each in served[1]], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("model", ["combined", "isolated"])
def test_embed_sparse_answers_weights_of_tokens(served: Server, model: str) -> None:
    rows = ask(served, "/embed_sparse", model=model, inputs=[*TEXTS])
    check_sparse([{each["index"]: each["value"] for each in row} for row in rows], served[1])


def test_pooling_answers_vectors_of_tokens(served: Server) -> None:
    answer = ask(served, "/pooling", model="combined", input=[*TEXTS], task="token_embed")
    check_multi([each["data"] for each in answer["data"]], served[1])
    answer = ask(served, "/pooling", model="combined", input=[*TEXTS])
    found = [each["data"] for each in answer["data"]]
    np.testing.assert_allclose(found, [each.dense for each in served[1]], rtol=0, atol=TOLERANCE)


def test_other_routes_answer_embeddings(served: Server) -> None:
    expected = [each.dense for each in served[1]]
    answer = ask(served, "/v1/embeddings", model="combined", input=[*TEXTS])
    np.testing.assert_allclose([each["embedding"] for each in answer["data"]], expected, rtol=0, atol=TOLERANCE)
    ranked = ask(served, "/rerank", model="combined", query=TEXTS[0], texts=[*TEXTS])
    scores = {each["index"]: each["score"] for each in ranked}
    wanted = np.stack(expected) @ expected[0]
    np.testing.assert_allclose([scores[index] for index in range(len(TEXTS))], wanted, rtol=0, atol=TOLERANCE)


def test_description_lists_kinds(served: Server) -> None:
    described = served[0].client.get("/models/combined").json()
    assert (described["vectors"], described["other_vectors"]) == ("dense", ["sparse", "multi"])
    plain = served[0].client.get("/models/plain").json()
    assert (plain["vectors"], plain["other_vectors"]) == ("dense", [])


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/infer", {"model_name": "plain", "text": "a", "vectors": "sparse"}, "kinds out of dense"),
        ("/infer", {"model_name": "combined", "text": "a", "vectors": []}, "kinds out of dense, sparse, multi"),
        ("/infer", {"model_name": "combined", "text": "a", "vectors": ["dense", "dense"]}, "vectors: expected"),
        ("/infer", {"model_name": "combined", "text": "a", "vectors": [1]}, "vectors: expected"),
        ("/infer", {"model_name": "combined", "text": "a", "vectors": None}, "vectors: expected"),
        (
            "/infer",
            {"model_name": "combined", "text": "a", "vectors": "sparse", "dimensions": 4},
            "dimensions: expected",
        ),
        ("/infer", {"model_name": "combined", "text": "a", "top_k": 4}, "top_k: expected"),
        ("/infer", {"model_name": "combined", "text": "a", "min_value": 1}, "min_value: expected"),
        (
            "/infer",
            {"model_name": "combined", "text": "a", "vectors": ["sparse"], "normalize": True},
            "normalize: expected no true",
        ),
        ("/embed_sparse", {"model": "plain", "inputs": "a"}, "model: expected a model of sparse vectors"),
        ("/pooling", {"model": "plain", "input": "a", "task": "token_embed"}, "task: expected"),
    ],
)
def test_wrong_kinds_refused_by_name(served: Server, path: str, body: dict[str, Any], message: str) -> None:
    answer = served[0].client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert message in check_error(answer)["message"]
