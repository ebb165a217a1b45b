"""The OpenAI API of text models, by OpenAI's own client: models, embeddings, scores, tokens, errors."""

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from tests.e2e.server import RunningServer, check_error
from tests.support.alike import check_alike
from tests.support.models.text_files import TEXTS

QUERY = "Where do engines wait?"
DOCUMENTS = ["Bread rises overnight.", "Locomotives are kept in a shed.", "A roundhouse is where engines wait."]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(server: RunningServer, path: str, **body: object) -> Any:
    """Return the JSON body of a request that must be answered with 200."""
    answer = server.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(server: RunningServer, path: str, **body: object) -> dict[str, str]:
    answer = server.client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return check_error(answer)


class TestModels:
    def test_list_shows_every_model(self, client: openai.OpenAI, server: RunningServer) -> None:
        models = {model.id: model for model in client.models.list()}
        assert models.keys() == {model["name"] for model in server.client.get("/models").json()["models"]}
        assert {model.owned_by for model in models.values()} == {"roundhouse"}
        assert models["minilm"].to_dict()["max_model_len"] == 256
        assert "max_model_len" not in models["digits"].to_dict()

    def test_entries_say_what_models_can_do(self, client: openai.OpenAI) -> None:
        found = {model.id: model.to_dict() for model in client.models.list()}
        shown = {name: (each["task"], each["capabilities"], each["ready"]) for name, each in found.items()}
        assert shown["minilm"] == ("embed", ["embedding"], True)
        assert shown["tiny-llama"] == ("generate", ["completion", "chat", "tools"], True)
        assert shown["cross-encoder"] == ("classify", ["rerank"], True)
        assert shown["classify"] == ("classify", ["classification"], True)
        assert shown["digits"] == ("tensor", ["tensor"], True)

    def test_list_of_task_has_only_its_models(self, client: openai.OpenAI) -> None:
        every = {model.id: model.to_dict()["task"] for model in client.models.list()}
        for task in ("generate", "embed", "classify", "tensor"):
            listed = {model.id for model in client.models.list(extra_query={"task": task})}
            assert listed == {name for name, own in every.items() if own == task}
        with pytest.raises(openai.BadRequestError, match=r"expected one of tensor, embed, classify, generate, .*got"):
            client.models.list(extra_query={"task": "chat"})

    def test_model_by_name(self, client: openai.OpenAI) -> None:
        assert client.models.retrieve("minilm").id == "minilm"
        with pytest.raises(openai.NotFoundError, match="minilm") as refused:
            client.models.retrieve("minilm-2")
        assert refused.value.code == "model_not_found"


class TestEmbeddings:
    @pytest.mark.parametrize("model", ["minilm", "minilm-onnx"])
    def test_embeddings_equal_infer(self, client: openai.OpenAI, server: RunningServer, model: str) -> None:
        infer = server.infer(model, text=DOCUMENTS)
        # By default the client asks for base64 and decodes it.
        for options in ({}, {"encoding_format": "float"}):
            answer = client.embeddings.create(model=model, input=DOCUMENTS, **options)
            assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (infer["tokens"], infer["tokens"])
            rows = np.array([each.embedding for each in answer.data])
            assert np.allclose(rows, infer["embeddings"], atol=1e-6)

    def test_base64_is_exact(self, server: RunningServer) -> None:
        numbers = ask(server, "/v1/embeddings", model="minilm", input=QUERY)["data"][0]["embedding"]
        answer = ask(server, "/v1/embeddings", model="minilm", input=QUERY, encoding_format="base64")
        row = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
        check_alike(row, np.array(numbers, dtype=np.float32))

    def test_empty_list_refused(self, server: RunningServer) -> None:
        for model in ("minilm", "minilm-onnx", "embed-cuts"):
            for given in ("[]", "[[]]"):
                error = refused(server, "/v1/embeddings", model=model, input=json.loads(given))
                assert "expected a" in error["message"]

    def test_token_ids_refused_unless_entry_accepts_them(self, server: RunningServer) -> None:
        for model in ("minilm", "minilm-onnx"):
            for ids in ([101, 102], [[101, 102]]):
                error = refused(server, "/v1/embeddings", model=model, input=ids)
                assert error["param"] == "input"
                assert "check_embedding_ctx_length=False" in error["message"]
                assert 'token_ids = "own"' in error["message"]

    def test_own_token_ids_equal_their_texts(self, server: RunningServer) -> None:
        texts = [*TEXTS, "the cat sat on the mat . " * 100]
        wanted = ask(server, "/v1/embeddings", model="embed-cuts", input=texts)
        ids = [ask(server, "/v1/tokenize", model="embed-cuts", prompt=text)["tokens"] for text in texts]
        answer = ask(server, "/v1/embeddings", model="embed-cuts", input=ids)
        assert answer["usage"] == wanted["usage"]
        rows, expected = ([each["embedding"] for each in body["data"]] for body in (answer, wanted))
        assert np.allclose(rows, expected, atol=1e-5)
        one = ask(server, "/v1/embeddings", model="embed-cuts", input=ids[0])["data"]
        assert np.allclose(one[0]["embedding"], expected[0], atol=1e-5)
        error = refused(server, "/v1/embeddings", model="embed-cuts", input=ids, truncate=False)
        assert (error["param"], "expected at most" in error["message"]) == (f"input[{len(TEXTS)}]", True)
        error = refused(server, "/v1/embeddings", model="embed-cuts", input=[[5], [5, 99_999]])
        assert error["param"] == "input[1][1]"

    def test_concurrent_embeddings(self, server: RunningServer) -> None:
        async def embed() -> list[Any]:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
                return await asyncio.gather(
                    *(client.embeddings.create(model="minilm", input=text) for text in DOCUMENTS * 4)
                )

        answers = asyncio.run(embed())
        wanted = server.infer("minilm", text=DOCUMENTS)["embeddings"]
        for place, answer in enumerate(answers):
            assert np.allclose(answer.data[0].embedding, wanted[place % len(DOCUMENTS)], atol=1e-5)

    def test_dimensions_of_matryoshka_model(self, client: openai.OpenAI, server: RunningServer) -> None:
        whole = np.array(server.infer("embed-cuts", text=list(TEXTS), normalize=False)["embeddings"])
        answer = client.embeddings.create(model="embed-cuts", input=list(TEXTS), dimensions=8)
        wanted = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
        assert np.allclose([each.embedding for each in answer.data], wanted, atol=1e-5)
        with pytest.raises(openai.BadRequestError, match="8, 16"):
            client.embeddings.create(model="embed-cuts", input="a", dimensions=7)
        with pytest.raises(openai.BadRequestError, match="384"):
            client.embeddings.create(model="minilm", input="a", dimensions=8)
        assert len(client.embeddings.create(model="minilm", input="a", dimensions=384).data[0].embedding) == 384

    def test_long_text_truncated_or_refused(self, server: RunningServer) -> None:
        body = {"model": "minilm", "input": ["short", "word " * 300]}
        assert ask(server, "/v1/embeddings", **body)["usage"]["prompt_tokens"] == 3 + 256
        error = refused(server, "/v1/embeddings", **body, truncate=False)
        assert error["param"] == "input[1]"
        assert "got 302" in error["message"]
        assert "256" in error["message"]


class TestScores:
    def test_cross_encoder_equals_sentence_transformers(self, server: RunningServer) -> None:
        from sentence_transformers import CrossEncoder

        details = server.client.get("/models/cross-encoder").json()["version_details"]
        pairs = [(one, other) for one in TEXTS[:4] for other in TEXTS]
        wanted = CrossEncoder(details["1"]["path"], device="cpu").predict(pairs)
        firsts, seconds = zip(*pairs, strict=True)
        answer = ask(server, "/v1/score", model="cross-encoder", text_1=list(firsts), text_2=list(seconds))
        assert np.allclose([each["score"] for each in answer["data"]], wanted, atol=1e-5)
        assert len({round(float(score), 4) for score in wanted}) > len(TEXTS), "they differ, or nothing is shown"

    def test_embed_model_scores_by_cosine(self, server: RunningServer) -> None:
        query, *rows = np.array(server.infer("minilm-onnx", text=[QUERY, *DOCUMENTS])["embeddings"])
        answer = ask(server, "/v1/score", model="minilm-onnx", text_1=QUERY, text_2=DOCUMENTS)
        assert np.allclose([each["score"] for each in answer["data"]], [query @ row for row in rows], atol=1e-5)

    @pytest.mark.parametrize("model", ["minilm", "cross-encoder"])
    def test_rerank_sorts_by_score(self, server: RunningServer, model: str) -> None:
        scored = ask(server, "/v1/score", model=model, queries=QUERY, documents=DOCUMENTS)["data"]
        by_index = {each["index"]: each["score"] for each in scored}
        answer = ask(server, "/v1/rerank", model=model, query=QUERY, documents=DOCUMENTS, return_documents=True)
        assert [each["index"] for each in answer["results"]] == sorted(by_index, key=lambda i: -by_index[i])
        for each in answer["results"]:
            assert each["relevance_score"] == pytest.approx(by_index[each["index"]], abs=1e-6)
            assert each["document"] == {"text": DOCUMENTS[each["index"]]}
        two = ask(server, "/v1/rerank", model=model, query=QUERY, documents=DOCUMENTS, top_n=2)["results"]
        assert [each["index"] for each in two] == [each["index"] for each in answer["results"]][:2]

    def test_empty_list_of_documents(self, server: RunningServer) -> None:
        for model in ("minilm", "cross-encoder"):
            answer = ask(server, "/v1/rerank", model=model, query=QUERY, documents=[])
            assert (answer["results"], answer["usage"]["total_tokens"]) == ([], 0)

    def test_long_pairs_truncated_or_refused(self, server: RunningServer) -> None:
        long = "word " * 300
        for model, where in (("cross-encoder", "documents[1]"), ("minilm", "documents[1]")):
            body = {"model": model, "query": "a", "documents": ["short", long]}
            assert len(ask(server, "/v1/rerank", **body)["results"]) == 2
            assert refused(server, "/v1/rerank", **body, truncate=False)["param"] == where

    def test_best_of_many_documents(self, server: RunningServer) -> None:
        documents = [f"document {number}" for number in range(150)]
        results = ask(server, "/v1/rerank", model="minilm", query="document 7", documents=documents, top_n=3)["results"]
        assert results[0]["index"] == 7
        assert results[0]["relevance_score"] == pytest.approx(1, abs=1e-5)


class TestTokens:
    @pytest.mark.parametrize("model", ["minilm", "minilm-onnx"])
    def test_tokenize_and_detokenize_round_trip(self, server: RunningServer, model: str) -> None:
        answer = ask(server, "/v1/tokenize", model=model, prompt="a roundhouse", return_token_strs=True)
        assert answer["count"] == len(answer["tokens"]) == server.infer(model, text="a roundhouse")["tokens"]
        assert (answer["token_strs"][0], answer["token_strs"][-1]) == ("[CLS]", "[SEP]")
        assert answer["max_model_len"] == 256
        bare = ask(server, "/v1/tokenize", model=model, prompt="a roundhouse", add_special_tokens=False)
        assert bare["tokens"] == answer["tokens"][1:-1]
        assert bare["token_strs"] is None
        assert ask(server, "/v1/detokenize", model=model, tokens=answer["tokens"]) == {"prompt": "a roundhouse"}

    def test_unknown_token_refused(self, server: RunningServer) -> None:
        error = refused(server, "/v1/detokenize", model="minilm", tokens=[1, 10**6])
        assert error["param"] == "tokens"

    def test_tokenize_never_truncates(self, server: RunningServer) -> None:
        assert ask(server, "/v1/tokenize", model="minilm", prompt="word " * 300)["count"] == 302


class TestErrors:
    @pytest.mark.parametrize(
        ("method", "path", "status", "kind"),
        [
            ("GET", "/v1", 404, "not_found_error"),
            ("GET", "/v1/nothing", 404, "not_found_error"),
            ("POST", "/v1/models", 405, "invalid_request_error"),
            ("GET", "/v1/embeddings", 405, "invalid_request_error"),
            ("DELETE", "/v1/models/minilm", 405, "invalid_request_error"),
        ],
    )
    def test_unknown_paths_and_methods_refused(
        self, server: RunningServer, method: str, path: str, status: int, kind: str
    ) -> None:
        answer = server.client.request(method, path)
        assert (answer.status_code, check_error(answer)["type"]) == (status, kind)

    def test_client_raises_error_of_status(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as missing:
            client.embeddings.create(model="minilm-2", input="a")
        assert (missing.value.code, missing.value.type) == ("model_not_found", "not_found_error")
        with pytest.raises(openai.BadRequestError) as wrong:
            client.embeddings.create(model="minilm", input="a", extra_body={"inputs": "a"})
        assert (wrong.value.code, wrong.value.param) == ("unknown_field", "inputs")
        with pytest.raises(openai.APITimeoutError):
            client.embeddings.create(model="minilm", input=["a"] * 20_000, timeout=0.05)
        with pytest.raises(openai.InternalServerError) as late:
            client.embeddings.create(model="minilm", input=DOCUMENTS, extra_body={"timeout_ms": 1})
        assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")

    def test_model_of_other_task_refused(self, client: openai.OpenAI) -> None:
        for model in ("digits", "classify"):
            with pytest.raises(openai.BadRequestError, match="task is") as refused:
                client.embeddings.create(model=model, input="a")
            assert refused.value.param == "model"
        with pytest.raises(openai.BadRequestError, match="generate"):
            client.chat.completions.create(model="minilm", messages=[{"role": "user", "content": "a"}])

    def test_invalid_bodies_refused(self, server: RunningServer) -> None:
        for body, code in ((b"", "invalid_json"), (b"{", "invalid_json"), (b"[]", "invalid_input")):
            answer = server.post("/v1/embeddings", body)
            assert (answer.status_code, check_error(answer)["code"]) == (400, code)
        form = server.client.post("/v1/embeddings", data={"model": "minilm"})
        assert (form.status_code, check_error(form)["code"]) == (415, "unsupported_media_type")
