"""Haystack's components for the servers whose protocols this one has. The model has tools in its chat template."""

import json
import os
from typing import Any

import pytest
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from haystack_integrations.components.embedders.cohere import CohereDocumentEmbedder, CohereTextEmbedder
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from haystack_integrations.components.embedders.ollama import OllamaDocumentEmbedder, OllamaTextEmbedder
from haystack_integrations.components.generators.huggingface_api import HuggingFaceAPIChatGenerator
from haystack_integrations.components.generators.ollama import OllamaChatGenerator
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

URL = os.environ["ROUNDHOUSE_URL"]
KEY = Secret.from_token("none")
OPENAI: dict[str, Any] = {"api_base_url": f"{URL}/v1", "api_key": KEY}
COHERE: dict[str, Any] = {"api_base_url": URL, "api_key": KEY, "model": "minilm"}
HUGGING_FACE: dict[str, Any] = {"api_type": "text_embeddings_inference", "api_params": {"url": URL}, "token": None}
OLLAMA: dict[str, Any] = {"url": URL, "model": "minilm"}
MODEL = "caller"
USER = ChatMessage.from_user("How warm is it in Bern?")
TALK = [ChatMessage.from_system("Be short."), USER]
TEXTS = ["Bread rises overnight.", "Locomotives are kept in a shed.", "A roundhouse is where engines wait."]
QUERY = "Where do engines wait?"
SIZE = 384
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Bern", "Oslo"]}}, "required": ["city"]}


def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"12 degrees in {city}"


TOOL = Tool("weather", "Tell the weather.", SCHEMA, weather)
# With the seed 1 the thinking of the model ends.
DRAWN: dict[str, Any] = {"max_tokens": 600, "seed": 1}


def openai(**options: Any) -> Any:
    return OpenAIChatGenerator(model=MODEL, generation_kwargs=options, **OPENAI)


def hugging_face(**options: Any) -> Any:
    return HuggingFaceAPIChatGenerator(
        api_type="text_generation_inference", api_params={"url": URL}, token=None, generation_kwargs=options
    )


def ollama(**options: Any) -> Any:
    named = {"max_tokens": "num_predict"}
    return OllamaChatGenerator(
        model=MODEL, url=URL, generation_kwargs={named.get(name, name): value for name, value in options.items()}
    )


@pytest.mark.parametrize("make", [openai, hugging_face, ollama])
def test_chat_stream_equals_whole(make: Any) -> None:
    (whole,) = make(**DRAWN).run([USER])["replies"]
    pieces: list[str] = []
    make(**DRAWN).run([USER], streaming_callback=lambda chunk: pieces.append(chunk.content))
    assert whole.text
    assert "".join(pieces) == whole.text


@pytest.mark.parametrize("make", [openai, hugging_face, ollama])
def test_limit(make: Any) -> None:
    (reply,) = make(max_tokens=16, temperature=0.0).run(TALK)["replies"]
    # Haystack does not know this reason of Ollama.
    assert reply.meta["finish_reason"] == (None if make is ollama else "length")


@pytest.mark.parametrize("make", [openai, hugging_face])
def test_tools(make: Any) -> None:
    generator = make(**DRAWN, tool_choice={"type": "function", "function": {"name": "weather"}})
    (reply,) = generator.run([USER], tools=[TOOL])["replies"]
    assert reply.tool_calls[0].tool_name == "weather"
    result = ChatMessage.from_tool(weather("Bern"), origin=reply.tool_calls[0])
    assert make(max_tokens=8).run([USER, reply, result], tools=[TOOL])["replies"]


def test_tools_of_ollama() -> None:
    assert ollama(**DRAWN).run(TALK, tools=[TOOL])["replies"]


def test_schema() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    (reply,) = openai(**DRAWN, response_format=form).run(TALK)["replies"]
    assert json.loads(reply.text)["city"] in ("Bern", "Oslo")


def test_responses() -> None:
    generator = OpenAIResponsesChatGenerator(model=MODEL, generation_kwargs={"max_output_tokens": 16}, **OPENAI)
    assert 0 < generator.run(TALK)["replies"][0].meta["usage"]["output_tokens"] <= 16


@pytest.mark.parametrize(
    "embedder",
    [
        OpenAITextEmbedder(model="minilm", **OPENAI),
        HuggingFaceAPITextEmbedder(**HUGGING_FACE),
        OllamaTextEmbedder(**OLLAMA),
        CohereTextEmbedder(**COHERE),
    ],
    ids=lambda each: type(each).__name__,
)
def test_text_embedder(embedder: Any) -> None:
    assert len(embedder.run(QUERY)["embedding"]) == SIZE


@pytest.mark.parametrize(
    "embedder",
    [
        OpenAIDocumentEmbedder(model="minilm", **OPENAI),
        HuggingFaceAPIDocumentEmbedder(**HUGGING_FACE),
        OllamaDocumentEmbedder(**OLLAMA),
        CohereDocumentEmbedder(**COHERE),
    ],
    ids=lambda each: type(each).__name__,
)
def test_document_embedder(embedder: Any) -> None:
    documents = embedder.run([Document(content=text) for text in TEXTS])["documents"]
    assert [len(each.embedding) for each in documents] == [SIZE] * 3


@pytest.mark.parametrize(
    "ranker",
    [HuggingFaceTEIRanker(url=URL, top_k=1, token=None), CohereRanker(top_k=1, **COHERE)],
    ids=lambda each: type(each).__name__,
)
def test_ranker(ranker: Any) -> None:
    (best,) = ranker.run(query=QUERY, documents=[Document(content=text) for text in TEXTS])["documents"]
    assert best.score is not None
