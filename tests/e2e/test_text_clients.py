"""Requests as the clients of other servers send them: Text Embeddings Inference, Cohere, vLLM, Jina and Infinity."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.configs import text_entries
from tests.e2e.server import MODELS, RunningServer, serving

QUERY = "Where do engines wait?"
DOCUMENTS = ["Bread rises overnight.", "Locomotives are kept in a shed.", "A roundhouse is where engines wait."]
MINILM = f'[[models.torch_models]]\nname = "minilm"\npath = "{MODELS / "minilm"}"\n'
Vector = "np.ndarray[Any, np.dtype[np.float32]]"


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with one model of each kind, so that no request needs to name it."""
    folder = tmp_path_factory.mktemp("few")
    entries = ["", *text_entries(folder).split("[[models.")]
    chosen = [f"[[models.{each}" for each in entries if 'name = "classify"' in each or 'name = "cross-encoder"' in each]
    with serving(folder, MINILM + "".join(chosen)) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture(scope="module")
def ask(few: RunningServer) -> Callable[..., Any]:
    def post(path: str, body: dict[str, object]) -> Any:
        answer = few.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return post


def refusal(server: RunningServer, path: str, **body: object) -> Any:
    answer = server.client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def vectors(few: RunningServer) -> Any:
    return np.array(few.infer("minilm", text=DOCUMENTS)["embeddings"])


@pytest.fixture(scope="module")
def scores(few: RunningServer) -> list[float]:
    """The cross-encoder's scores of the documents."""
    body = {"model": "cross-encoder", "text_1": QUERY, "text_2": DOCUMENTS}
    data = few.client.post("/v1/score", json=body).json()["data"]
    return [each["score"] for each in data]


@pytest.fixture(scope="module")
def predictions(few: RunningServer) -> Any:
    return few.infer("classify", text=DOCUMENTS)["predictions"]


def logit(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


class TestEmbed:
    @pytest.mark.parametrize("path", ["/embed", "/"])
    def test_tei_answers_list_of_vectors(self, path: str, ask: Callable[..., Any], vectors: Any) -> None:
        assert np.allclose(ask(path, {"inputs": DOCUMENTS, "truncate": True}), vectors, atol=1e-6)
        one = ask(path, {"inputs": DOCUMENTS[0], "normalize": True, "prompt_name": None})
        assert np.allclose(one, vectors[:1], atol=1e-6)

    @pytest.mark.parametrize("path", ["/embeddings", "/v1/embeddings"])
    def test_infinity_answers_as_openai(self, path: str, ask: Callable[..., Any], vectors: Any) -> None:
        body = {"input": DOCUMENTS, "model": "default/not-specified", "dimensions": 0, "modality": "text"}
        answer = ask(path, body)
        assert answer["model"] == "minilm"
        assert np.allclose([each["embedding"] for each in answer["data"]], vectors, atol=1e-6)

    def test_vllm_pooling_answers_vectors(self, ask: Callable[..., Any], vectors: Any) -> None:
        data = ask("/pooling", {"model": "minilm", "input": DOCUMENTS, "task": "embed"})["data"]
        assert np.allclose([each["data"] for each in data], vectors, atol=1e-6)

    def test_cohere_answers_each_type(self, ask: Callable[..., Any], vectors: Any) -> None:
        body = {
            "model": "minilm",
            "texts": DOCUMENTS,
            "input_type": "search_document",
            "embedding_types": ["float", "base64", "ubinary"],
        }
        answer = ask("/v2/embed", body)
        assert answer["texts"] == DOCUMENTS
        forms = answer["embeddings"]
        assert np.allclose(forms["float"], vectors, atol=1e-6)
        rows = [np.frombuffer(base64.b64decode(each), "<f4") for each in forms["base64"]]
        assert np.allclose(rows, vectors, atol=1e-6)
        assert forms["ubinary"] == np.packbits(vectors >= 0, axis=1).tolist()

    def test_similarity_is_the_cosine(self, ask: Callable[..., Any], vectors: Any) -> None:
        body = {"inputs": {"source_sentence": DOCUMENTS[0], "sentences": DOCUMENTS[1:]}, "parameters": {}}
        for path in ("/similarity", "/"):
            assert ask(path, body) == pytest.approx((vectors[1:] @ vectors[0]).tolist(), abs=1e-5)


class TestRerank:
    """The cross-encoder answers, as no request names a model."""

    def test_tei_ranks_texts(self, ask: Callable[..., Any], scores: list[float]) -> None:
        for path in ("/rerank", "/"):
            ranks = ask(path, {"query": QUERY, "texts": DOCUMENTS, "raw_scores": False, "return_text": True})
            assert [each["score"] for each in ranks] == pytest.approx(sorted(scores, reverse=True), abs=1e-6)
            assert all(each["text"] == DOCUMENTS[each["index"]] for each in ranks)

    def test_raw_scores_are_logits(self, ask: Callable[..., Any], scores: list[float]) -> None:
        ranks = ask("/rerank", {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True})
        logits = sorted(map(logit, scores), reverse=True)
        assert [each["score"] for each in ranks] == pytest.approx(logits, abs=1e-4)
        body = {"query": QUERY, "documents": DOCUMENTS, "model": "default/not-specified", "raw_scores": True}
        results = ask("/v1/rerank", body)["results"]
        assert [each["relevance_score"] for each in results] == pytest.approx(logits, abs=1e-4)

    @pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
    def test_documents_are_ranked(self, path: str, ask: Callable[..., Any], scores: list[float]) -> None:
        answer = ask(path, {"query": QUERY, "documents": DOCUMENTS, "top_n": 2, "max_tokens_per_doc": 4096})
        best = sorted(scores, reverse=True)[:2]
        assert [each["relevance_score"] for each in answer["results"]] == pytest.approx(best, abs=1e-6)
        assert answer["model"] == "cross-encoder"

    def test_score_at_root(self, ask: Callable[..., Any], scores: list[float]) -> None:
        data = ask("/score", {"queries": QUERY, "items": DOCUMENTS, "mm_processor_kwargs": None})["data"]
        assert [each["score"] for each in data] == pytest.approx(scores, abs=1e-6)


class TestClassify:
    @pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
    def test_vllm_and_infinity_differ_by_raw_scores(self, path: str, ask: Callable[..., Any], predictions: Any) -> None:
        of_vllm = ask(path, {"input": DOCUMENTS, "use_activation": None})
        assert [each["label"] for each in of_vllm["data"]] == [row[0]["label"] for row in predictions]
        assert of_vllm["usage"]["prompt_tokens"] > len(DOCUMENTS)
        of_infinity = ask(path, {"input": DOCUMENTS, "model": "default/not-specified", "raw_scores": False})
        for row, expected in zip(of_infinity["data"], predictions, strict=True):
            assert [each["label"] for each in row] == [each["label"] for each in expected]
            assert [each["score"] for each in row] == pytest.approx([each["score"] for each in expected], abs=1e-6)
        for each, row in zip(of_vllm["data"], of_infinity["data"], strict=True):
            assert sorted(each["probs"], reverse=True) == pytest.approx([label["score"] for label in row], abs=1e-6)

    def test_tei_predicts_texts_and_pairs(self, ask: Callable[..., Any], predictions: Any) -> None:
        batch = ask("/predict", {"inputs": [[text] for text in DOCUMENTS]})
        assert [row[0]["label"] for row in batch] == [row[0]["label"] for row in predictions]
        single = ask("/predict", {"inputs": DOCUMENTS[0]})
        assert [each["score"] for each in single] == pytest.approx([each["score"] for each in batch[0]], abs=1e-6)
        pair = ask("/predict", {"inputs": [QUERY, DOCUMENTS[0]]})
        assert [each["label"] for each in pair] != []
        assert sum(each["score"] for each in pair) == pytest.approx(1, abs=1e-6)

    def test_root_answers_hugging_face(self, ask: Callable[..., Any], predictions: Any) -> None:
        answer = ask("/", {"inputs": DOCUMENTS[0], "parameters": {"top_k": 1}})
        assert [[each["label"] for each in row] for row in answer] == [[predictions[0][0]["label"]]]


class TestTokenize:
    def test_tei_shows_spans(self, ask: Callable[..., Any], few: RunningServer) -> None:
        (tokens,) = ask("/tokenize", {"inputs": DOCUMENTS[0]})
        body = {"model": "minilm", "prompt": DOCUMENTS[0]}
        for path in ("/tokenize", "/v1/tokenize"):
            assert few.client.post(path, json=body).json()["tokens"] == [each["id"] for each in tokens]
        assert [each["special"] for each in tokens] == [True, *[False] * (len(tokens) - 2), True]
        assert all(DOCUMENTS[0][each["start"] : each["stop"]] == each["text"] for each in tokens[1:-1])

    def test_detokenize_at_root(self, ask: Callable[..., Any]) -> None:
        tokens = ask("/tokenize", {"model": "minilm", "prompt": "the cat"})["tokens"]
        assert ask("/detokenize", {"model": "minilm", "tokens": tokens}) == {"prompt": "the cat"}


class TestInfo:
    def test_info_describes_the_embedder(self, few: RunningServer) -> None:
        info = few.client.get("/info").json()
        assert (info["model_id"], info["max_input_length"]) == ("minilm", 256)
        assert info["model_type"] == {"embedding": {"pooling": "mean"}}

    @pytest.mark.parametrize(("model", "kind"), [("cross-encoder", "reranker"), ("classify", "classifier")])
    def test_info_shows_labels(self, model: str, kind: str, few: RunningServer) -> None:
        (shown,) = few.client.get("/info", params={"model": model}).json()["model_type"].items()
        assert shown[0] == kind
        assert shown[1]["label2id"] == {label: int(i) for i, label in shown[1]["id2label"].items()}

    def test_info_needs_a_text_model(self, server: RunningServer) -> None:
        for query in ("?model=digits", ""):
            answer = server.client.get(f"/info{query}")
            assert answer.status_code == 400


class TestErrors:
    """Each error has the form of the API whose route was called."""

    def test_candidates_are_named(self, server: RunningServer) -> None:
        error = refusal(server, "/embed", inputs="a")
        assert error["error"].startswith("model: expected a model name, got none, and minilm-onnx, minilm, ")
        assert error["error_type"] == "Validation"
        error = refusal(server, "/v1/classify", input="a")
        assert "classify-onnx, classify, classify-many classify texts" in error["error"]["message"]

    @pytest.mark.parametrize(
        ("path", "body", "message"),
        [
            ("/rerank", {"query": 1, "texts": ["a"]}, "query: expected a string, got 1"),
            ("/embed", {"inputs": 1}, "inputs: expected "),
            ("/", {"inputs": {"source_sentence": 1, "sentences": []}}, "inputs.source_sentence: "),
            ("/predict", {"inputs": [["a", "b", "c"]]}, "inputs"),
            ("/tokenize", {"inputs": 1}, "inputs: "),
            ("/embed", {"inputs": "a b " * 999, "truncate": False}, "inputs[0]: expected at most 256 tokens"),
            ("/rerank", {"query": "a", "texts": ["a " * 999], "truncate": False}, "texts[0]: expected at most "),
        ],
    )
    def test_tei_errors_name_field(self, path: str, body: dict[str, object], message: str, few: RunningServer) -> None:
        error = refusal(few, path, **body)
        assert error["error"].startswith(message), error

    def test_cohere_errors_are_messages(self, few: RunningServer) -> None:
        assert refusal(few, "/v2/rerank", query="a")["message"].startswith("documents: expected ")
        error = refusal(few, "/v2/embed", texts=["a " * 999], truncate="NONE")
        assert error["message"].startswith("texts[0]: expected at most 256 tokens")

    @pytest.mark.parametrize("path", ["/embed", "/", "/v2/rerank", "/rerank", "/classify"])
    def test_other_methods_and_bodies_are_refused(self, path: str, few: RunningServer) -> None:
        assert few.client.put(path, json={}).status_code == 405
        assert few.client.post(path, content=b"{").status_code == 400
        assert few.client.post(path, content=b"a", headers={"content-type": "text/plain"}).status_code == 415

    def test_root_keeps_its_index(self, few: RunningServer) -> None:
        assert few.client.get("/").json()["name"] == "roundhouse"
        assert few.client.head("/").status_code == 200

    def test_requests_are_counted(self, few: RunningServer) -> None:
        before = few.sample("roundhouse_requests_total", model="minilm", code="200")
        assert few.client.post("/embed", json={"inputs": "a"}).status_code == 200
        assert few.sample("roundhouse_requests_total", model="minilm", code="200") == before + 1


def test_lazy_model_answers_alone(tmp_path: Path) -> None:
    """A model that was never loaded is meant if it is the only one."""
    with serving(tmp_path, MINILM + 'load = "lazy"\n') as running:
        assert len(running.client.post("/embed", json={"inputs": "a"}).json()[0]) == 384


def test_models_are_listed_as_infinity_does(few: RunningServer) -> None:
    listed = few.client.get("/models").json()
    assert listed["object"] == "list"
    assert [each["id"] for each in listed["data"]] == [each["name"] for each in listed["models"]]
    assert {each["id"]: each["capabilities"] for each in listed["data"]} == {
        "minilm": ["embed"], "classify": ["classify"], "cross-encoder": ["rerank"]
    }  # fmt: skip


def test_prompts_of_files_are_put_before_texts(tmp_path: Path) -> None:
    from tests.support.models.text_files import write_json
    from tests.support.models.torch_folders import save_embedder

    save_embedder(tmp_path / "prompted")
    prompts = {"query": "the ", "passage": "a "}
    write_json(tmp_path / "prompted" / "config_sentence_transformers.json", {"prompts": prompts})
    entry = f'[[models.torch_models]]\nname = "prompted"\npath = "{tmp_path / "prompted"}"\n'
    with serving(tmp_path, entry) as running:
        client = running.wait_ready().client

        def embedded(**body: object) -> Any:
            return np.array(client.post("/embed", json=body).json())

        the_cat, plain = embedded(inputs="the cat"), embedded(inputs="cat")
        assert np.allclose(embedded(inputs="cat", prompt_name="query"), the_cat, atol=1e-6)
        assert not np.allclose(plain, the_cat, atol=1e-3)
        for input_type, expected in (("search_query", the_cat), ("clustering", plain)):
            answer = client.post("/v2/embed", json={"texts": ["cat"], "input_type": input_type}).json()
            assert np.allclose(answer["embeddings"]["float"], expected, atol=1e-6)
        assert "one of passage, query" in refusal(running, "/embed", inputs="cat", prompt_name="document")["error"]


@pytest.mark.parametrize("isolation", ["none", pytest.param("process", marks=pytest.mark.extended)])
def test_decoders_embed_and_rank(tmp_path: Path, isolation: str) -> None:
    from tests.support.models.decoder_folders import HIDDEN_SIZE, PROMPTS, save_decoder_embedder, save_ranking_model

    save_decoder_embedder(tmp_path / "embedder")
    save_ranking_model(tmp_path / "ranker")
    entry = '[[models.torch_models]]\nname = "{0}"\npath = "{1}/{0}"\n{2}\n'
    ranking = f'score_tokens = ["no", "yes"]\nisolation = "{isolation}"'
    with serving(
        tmp_path, entry.format("embedder", tmp_path, "") + entry.format("ranker", tmp_path, ranking)
    ) as running:
        client = running.wait_ready().client
        query = client.post("/embed", json={"inputs": "the cat", "prompt_name": "query"}).json()
        body = {"model": "embedder", "input": [PROMPTS["query"] + "the cat", "the engine of steam"]}
        data = client.post("/v1/embeddings", json=body).json()["data"]
        assert len(data[0]["embedding"]) == HIDDEN_SIZE
        assert np.allclose(query[0], data[0]["embedding"], atol=1e-5)
        info = client.get("/info", params={"model": "embedder"}).json()
        assert info["model_type"] == {"embedding": {"pooling": "last_token"}}

        ranked = client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS}).json()
        scored = client.post("/v1/score", json={"model": "ranker", "text_1": QUERY, "text_2": DOCUMENTS}).json()["data"]
        by_index = {each["index"]: each["score"] for each in ranked}
        assert np.allclose([by_index[each["index"]] for each in scored], [each["score"] for each in scored], atol=1e-5)
        assert [each["score"] for each in ranked] == sorted(by_index.values(), reverse=True)
        assert 0 < min(by_index.values()) < max(by_index.values()) < 1
        long = {"model": "ranker", "query": QUERY, "documents": ["a", "engine " * 400], "truncate": False}
        assert "documents[1]: expected at most 320 tokens" in refusal(running, "/v1/rerank", **long)["error"]["message"]
        assert "task" in refusal(running, "/v1/completions", model="ranker", prompt="a")["error"]["message"]
        running.check_log()
