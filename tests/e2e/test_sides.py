"""A model with encoders of queries and of documents over HTTP: each route chooses the side that its manual says."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.e2e.server import RunningServer, check_error, serving
from tests.support.models.sided_folders import save_dense
from tests.support.models.text_files import TEXTS

TOLERANCE = 1e-5
Vectors = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Vectors, Vectors]]:
    """The server, and the vectors [texts, size] of encode_query and encode_document."""
    folder = tmp_path_factory.mktemp("sides")
    reference = save_dense(folder)
    expected = [np.asarray(encode([*TEXTS])) for encode in (reference.encode_query, reference.encode_document)]
    assert not np.allclose(expected[0], expected[1], atol=1e-2)
    entry = f'[[models.torch_models]]\nname = "sides"\npath = "{folder / "saved"}"\ndtype = "f32"\n'
    collection = f'[[collections]]\nname = "docs"\nmodel = "sides"\ndimensions = {expected[0].shape[1]}\n'
    with serving(folder, entry + collection) as running:
        yield running.wait_ready(), expected[0], expected[1]


def ask(server: RunningServer, path: str, **body: object) -> Any:
    answer = server.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def vectors_of(answer: Any) -> Any:
    """Return the vectors of any route's answer."""
    if isinstance(answer, list):
        return answer
    if "data" in answer:
        return [each.get("embedding", each.get("data")) for each in answer["data"]]
    embeddings = answer["embeddings"]
    return embeddings["float"] if isinstance(embeddings, dict) else embeddings


@pytest.mark.parametrize(
    ("path", "field", "more", "is_query"),
    [
        ("/infer", "text", {"model_name": "sides"}, False),
        ("/infer", "text", {"model_name": "sides", "input_type": "query"}, True),
        ("/infer", "text", {"model_name": "sides", "parameters": {"input_type": "query"}}, True),
        ("/infer", "text", {"model_name": "sides", "input_type": "document"}, False),
        ("/pooling", "input", {"model": "sides", "input_type": "query"}, True),
        ("/pooling", "input", {"model": "sides"}, False),
        ("/embed", "inputs", {"prompt_name": "query"}, True),
        ("/embed", "inputs", {"prompt_name": "document"}, False),
        ("/embed", "inputs", {}, False),
        ("/models/sides", "inputs", {"prompt_name": "query"}, True),
        ("/models/sides", "inputs", {"parameters": {"prompt_name": "query"}}, True),
        ("/v2/embed", "texts", {"model": "sides", "input_type": "search_query"}, True),
        ("/v2/embed", "texts", {"model": "sides", "input_type": "search_document"}, False),
        ("/v1/embeddings", "input", {"model": "sides"}, False),
        ("/v1/embeddings", "input", {"model": "sides", "input_type": "query"}, True),
        ("/v1/embeddings", "input", {"model": "sides", "input_type": "passage"}, False),
    ],
)
def test_route_chooses_side(
    served: tuple[RunningServer, Vectors, Vectors], path: str, field: str, more: dict[str, Any], is_query: bool
) -> None:
    server, queries, documents = served
    found = vectors_of(ask(server, path, **{field: [*TEXTS]}, **more))
    np.testing.assert_allclose(found, queries if is_query else documents, rtol=0, atol=TOLERANCE)


def test_unknown_prompt_name_lists_sides(served: tuple[RunningServer, Vectors, Vectors]) -> None:
    answer = served[0].client.post("/embed", json={"inputs": "a", "prompt_name": "other side"})
    assert answer.status_code == 400
    assert "prompt_name: expected one of document, other, passage, query" in check_error(answer)["message"]


def test_unknown_input_type_is_refused(served: tuple[RunningServer, Vectors, Vectors]) -> None:
    answer = served[0].client.post("/infer", json={"model_name": "sides", "text": "a", "input_type": "both"})
    assert answer.status_code == 400
    assert 'input_type: expected "query" or "document"' in check_error(answer)["message"]


def test_pairs_have_query_first(served: tuple[RunningServer, Vectors, Vectors]) -> None:
    server, queries, documents = served
    ranked = ask(server, "/rerank", query=TEXTS[0], texts=[*TEXTS])
    scores = {each["index"]: each["score"] for each in ranked}
    wanted = documents @ queries[0]
    np.testing.assert_allclose([scores[index] for index in range(len(TEXTS))], wanted, rtol=0, atol=TOLERANCE)


def test_search_embeds_query_and_documents(served: tuple[RunningServer, Vectors, Vectors]) -> None:
    server, queries, documents = served
    records = [{"id": str(index), "text": text} for index, text in enumerate(TEXTS)]
    ask(server, "/v1/collections/docs/upsert", records=records)
    hits = ask(server, "/v1/collections/docs/search", query=TEXTS[1], top_k=len(TEXTS))["results"]
    found = {each["id"]: each["score"] for each in hits}
    wanted = documents @ queries[1]
    np.testing.assert_allclose([found[str(index)] for index in range(len(TEXTS))], wanted, rtol=0, atol=TOLERANCE)
