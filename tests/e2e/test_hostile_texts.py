"""Requests for much work on texts, over sockets: each is answered or refused, and says both lengths."""

from typing import Any

import numpy as np
import pytest

from tests.e2e.server import RunningServer, check_error
from tests.support import hostile_texts
from tests.support.alike import check_alike

MODEL = "tiny-llama"

REFUSED = {
    "long prompt": ("/v1/completions", hostile_texts.long_prompt(MODEL), "prompt: expected fewer than 512 tokens"),
    "long prompts": ("/v1/completions", hostile_texts.long_prompts(MODEL), "prompt[0]: expected fewer than 512 tokens"),
    "long ids": (
        "/v1/completions",
        {"model": MODEL, "prompt": [1] * 100_000},
        "prompt: expected fewer than 512 tokens",
    ),
    "conversation": (
        "/v1/chat/completions",
        hostile_texts.long_conversation(MODEL),
        "messages: expected fewer than 512 tokens",
    ),
    "messages": (
        "/v1/chat/completions",
        hostile_texts.many_messages(MODEL),
        "messages: expected fewer than 512 tokens",
    ),
    "text": (
        "/v1/embeddings",
        hostile_texts.refused_text("minilm"),
        "input[0]: expected at most 256 tokens, got 3200000",
    ),
    "counted": (
        "/v1/tokenize",
        hostile_texts.counted_text(MODEL),
        "prompt: expected at most 131072 characters, got 3200000",
    ),
    "stops": (
        "/v1/completions",
        hostile_texts.too_many_stop_characters(MODEL),
        "stop: expected at most 2048 characters",
    ),
    "log probabilities": (
        "/v1/chat/completions",
        hostile_texts.too_many_log_probabilities(MODEL),
        "max_tokens: expected at most 48 with logprobs, got 49",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_request_for_too_much_is_refused(server: RunningServer, name: str) -> None:
    path, body, message = REFUSED[name]
    answer = server.client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert check_error(answer)["message"].startswith(message)


@pytest.mark.parametrize("model", ["minilm", "minilm-onnx"])
def test_long_text_embedded_as_its_beginning(server: RunningServer, model: str) -> None:
    body = hostile_texts.long_text(model)
    vectors = [vector_of(server, text | {"model": model}) for text in (body, {"input": body["input"][:4000]})]
    check_alike(*vectors)


def test_long_word_and_white_space_are_answered(server: RunningServer) -> None:
    unknown = vector_of(server, {"model": "minilm", "input": "a" * 200})
    check_alike(vector_of(server, hostile_texts.long_word("minilm")), unknown)
    empty = vector_of(server, {"model": "minilm", "input": ""})
    check_alike(vector_of(server, hostile_texts.blank_text("minilm")), empty)


def test_score_of_long_pair_is_that_of_beginnings(server: RunningServer) -> None:
    body = hostile_texts.long_pair("minilm")
    short = body | {"query": body["query"][:4000], "documents": [body["documents"][0][:4000]]}
    scores = [server.client.post("/v1/rerank", json=each).json()["results"] for each in (body, short)]
    check_alike(scores[0], scores[1])


@pytest.mark.parametrize(
    "body", [hostile_texts.stop_strings(MODEL), hostile_texts.logit_biases(MODEL, 2048)], ids=["stops", "biases"]
)
def test_most_that_is_accepted_is_answered(server: RunningServer, body: dict[str, Any]) -> None:
    answer = server.client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text


def test_many_log_probabilities_are_written_whole(server: RunningServer) -> None:
    body = hostile_texts.log_probabilities(MODEL, max_tokens=40) | {"n": 8}
    choices = server.client.post("/v1/chat/completions", json=body).json()["choices"]
    assert [len(choice["logprobs"]["content"]) for choice in choices] == [40] * 8
    assert {len(token["top_logprobs"]) for choice in choices for token in choice["logprobs"]["content"]} == {20}


def vector_of(server: RunningServer, body: dict[str, Any]) -> Any:
    answer = server.client.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["data"][0]["embedding"])
