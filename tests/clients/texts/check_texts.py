"""Clients of embeddings and rankers, as the documentation of each shows them."""

import json
import os
from typing import Any

import cohere
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError
from infinity_client import Client
from infinity_client.api.default import classify, embeddings, health, models, rerank
from infinity_client.models import ClassifyInput, OpenAIEmbeddingInputText, RerankInput
from infinity_client.vision_client import InfinityVisionAPI

URL = os.environ["ROUNDHOUSE_URL"]
QUERY = "Where do engines wait?"
DOCUMENTS = ["Bread rises overnight.", "Locomotives are kept in a shed.", "A roundhouse is where engines wait."]
SIZE = 384
PROMPT = "A list is"


class TestCohere:
    @pytest.fixture
    def client(self) -> cohere.ClientV2:
        return cohere.ClientV2(api_key="none", base_url=URL)

    def test_embed(self, client: cohere.ClientV2) -> None:
        answer = client.embed(
            model="minilm",
            texts=DOCUMENTS,
            input_type="search_document",
            embedding_types=["float", "ubinary"],
        )
        assert np.array(answer.embeddings.float_).shape == (3, SIZE)
        assert np.array(answer.embeddings.ubinary).shape == (3, SIZE // 8)
        assert answer.meta.billed_units.input_tokens > 3

    def test_rerank(self, client: cohere.ClientV2) -> None:
        answer = client.rerank(model="minilm", query=QUERY, documents=DOCUMENTS, top_n=2)
        assert [each.index for each in answer.results] == [2, 1]
        assert answer.results[0].relevance_score > 0.6

    def test_errors(self, client: cohere.ClientV2) -> None:
        with pytest.raises(cohere.NotFoundError, match="minilm"):
            client.rerank(model="minilm-2", query=QUERY, documents=DOCUMENTS)
        with pytest.raises(cohere.BadRequestError, match="embedding_types"):
            client.embed(model="minilm", texts=["a"], input_type="search_query", embedding_types=["int8"])


class TestHuggingFaceHub:
    """The client at the root URL."""

    @pytest.fixture
    def client(self) -> InferenceClient:
        return InferenceClient(URL)

    def test_feature_extraction(self, client: InferenceClient) -> None:
        one = client.feature_extraction(DOCUMENTS[0])
        many = client.feature_extraction(DOCUMENTS, normalize=True, truncate=True, truncation_direction="right")
        assert (one.shape, many.shape) == ((1, SIZE), (3, SIZE))
        assert np.allclose(one[0], many[0], atol=1e-5)

    def test_sentence_similarity(self, client: InferenceClient) -> None:
        scores = client.sentence_similarity(QUERY, other_sentences=DOCUMENTS)
        assert int(np.argmax(scores)) == 2

    def test_text_classification(self, client: InferenceClient) -> None:
        labels = client.text_classification(DOCUMENTS[0])
        assert sum(each.score for each in labels) == pytest.approx(1, abs=1e-5)
        assert client.text_classification(DOCUMENTS[0], top_k=1) == labels[:1]


class TestTextGeneration:
    """huggingface_hub's client of Text Generation Inference."""

    @pytest.fixture
    def client(self) -> Any:
        return InferenceClient(URL)

    def test_text(self, client: Any) -> None:
        text = client.text_generation(PROMPT, max_new_tokens=8)
        assert text
        assert client.text_generation(PROMPT, max_new_tokens=8, return_full_text=True) == PROMPT + text

    def test_details(self, client: Any) -> None:
        options = {"max_new_tokens": 8, "details": True, "decoder_input_details": True, "top_n_tokens": 2}
        answer = client.text_generation(PROMPT, **options)
        assert (answer.details.finish_reason, answer.details.generated_tokens) == ("length", 8)
        assert "".join(each.text for each in answer.details.tokens) == answer.generated_text
        assert len(answer.details.prefill) > 1
        assert [len(each) for each in answer.details.top_tokens] == [2] * 8

    def test_stream(self, client: Any) -> None:
        text = client.text_generation(PROMPT, max_new_tokens=8)
        assert "".join(client.text_generation(PROMPT, max_new_tokens=8, stream=True)) == text
        events = list(client.text_generation(PROMPT, max_new_tokens=8, stream=True, details=True))
        assert events[-1].generated_text == text
        assert events[-1].details.generated_tokens == len(events) == 8

    def test_options(self, client: Any) -> None:
        drawn = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1}
        assert client.text_generation(PROMPT, max_new_tokens=8, seed=1, **drawn) == client.text_generation(
            PROMPT, max_new_tokens=8, seed=1, **drawn
        )
        number = client.text_generation(PROMPT, max_new_tokens=8, grammar={"type": "regex", "value": "[0-9]{3}"})
        assert number.isdigit()
        stopped = client.text_generation(PROMPT, max_new_tokens=40, stop=[" "], details=True)
        assert (stopped.details.finish_reason, stopped.generated_text[-1]) == ("stop_sequence", " ")

    def test_errors(self, client: Any) -> None:
        with pytest.raises(ValidationError, match=r"parameters\.best_of"):
            client.text_generation(PROMPT, max_new_tokens=8, best_of=2)


class TestChatCompletion:
    """huggingface_hub's client of chats, which names no model."""

    @pytest.fixture
    def client(self) -> Any:
        return InferenceClient(URL)

    def test_stream_equals_whole(self, client: Any) -> None:
        asked = {"messages": [{"role": "user", "content": "A list is"}], "max_tokens": 16, "temperature": 0.0}
        whole = client.chat_completion(**asked)
        chunks = client.chat_completion(**asked, stream=True, stream_options={"include_usage": True})
        pieces = [each.choices[0].delta.content or "" for each in chunks if each.choices]
        assert "".join(pieces) == whole.choices[0].message.content

    def test_response_format(self, client: Any) -> None:
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {"city": {"enum": ["Bern", "Oslo"]}},
            "required": ["city"],
        }
        schema["additionalProperties"] = False
        talk = [{"role": "user", "content": "Where?"}]
        for form in (
            {"type": "json_schema", "json_schema": {"name": "place", "schema": schema, "strict": True}},
            {"type": "json_object", "value": schema},
        ):
            answer = client.chat_completion(talk, response_format=form, max_tokens=400, seed=1)
            assert json.loads(answer.choices[0].message.content)["city"] in ("Bern", "Oslo")


class TestInfinity:
    @pytest.fixture
    def client(self) -> Client:
        return Client(base_url=URL)

    def test_models_and_health(self, client: Client) -> None:
        with client as opened:
            assert {each.id for each in models.sync(client=opened).data} >= {"minilm", "cross-encoder"}
            assert health.sync_detailed(client=opened).status_code == 200

    def test_embeddings(self, client: Client) -> None:
        with client as opened:
            body = OpenAIEmbeddingInputText.from_dict({"input": DOCUMENTS, "model": "minilm"})
            answer = embeddings.sync(client=opened, body=body)
            assert [len(each.embedding) for each in answer.data] == [SIZE] * 3
            unnamed = embeddings.sync(client=opened, body=OpenAIEmbeddingInputText(input_="a"))
            assert unnamed.model == "minilm"

    def test_rerank(self, client: Client) -> None:
        with client as opened:
            body = RerankInput(query=QUERY, documents=DOCUMENTS, model="minilm", return_documents=True, top_n=1)
            (best,) = rerank.sync(client=opened, body=body).results
            assert best.index == 2

    def test_classify(self, client: Client) -> None:
        with client as opened:
            answer = classify.sync(client=opened, body=ClassifyInput(input_=DOCUMENTS))
            assert answer.model == "classify"
            for row in answer.data:
                assert sum(each.score for each in row) == pytest.approx(1, abs=1e-5)

    def test_texts_of_vision_client(self) -> None:
        vectors, tokens = InfinityVisionAPI(URL, model="minilm").embed("minilm", DOCUMENTS).result(timeout=60)
        assert len(vectors) == 3
        assert tokens > 3
