"""LiteLLM's provider for Triton: embeddings, and texts by generate and by infer."""

import os
from typing import Any

import litellm
import pytest

URL = os.environ["ROUNDHOUSE_URL"]
MODEL = "tiny-llama"
PROMPT = [{"role": "user", "content": "A list is"}]


def complete(route: str, **options: Any) -> Any:
    return litellm.completion(
        model=f"triton/{MODEL}", api_base=f"{URL}/v2/models/{MODEL}/{route}", messages=PROMPT, **options
    )


def test_embeddings() -> None:
    texts = ["Bread rises overnight.", "A roundhouse is where engines wait."]
    answer = litellm.embedding(model="triton/minilm", api_base=f"{URL}/v2/models/minilm/infer", input=texts)
    assert [len(each["embedding"]) for each in answer.data] == [384, 384]
    assert answer.data[0]["embedding"] != answer.data[1]["embedding"]


@pytest.mark.parametrize("route", ["generate", "infer"])
def test_text(route: str) -> None:
    answers = [complete(route, max_tokens=8, random_seed=seed) for seed in (1, 1)]
    texts = [answer.choices[0].message.content for answer in answers]
    assert texts[0]
    assert texts[0] == texts[1]


def test_stream() -> None:
    whole = complete("generate", max_tokens=8, random_seed=1).choices[0].message.content
    chunks = list(complete("generate", max_tokens=8, random_seed=1, stream=True))
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == whole


def test_errors() -> None:
    with pytest.raises((litellm.APIError, litellm.BadRequestError), match="max_tokens"):
        complete("generate", max_tokens=0)
