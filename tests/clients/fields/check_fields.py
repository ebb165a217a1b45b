"""Fields that clients send without being asked are answered, and have rows in docs/client-fields.md."""

import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anthropic
import cohere
import instructor
import ollama
import openai
import pytest
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
from huggingface_hub import InferenceClient
from infinity_client import Client
from infinity_client.api.default import classify, embeddings, rerank
from infinity_client.models import ClassifyInput, OpenAIEmbeddingInputText, RerankInput
from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

FOLDER = Path(__file__).parent
PAGE = (FOLDER.parents[2] / "docs" / "client-fields.md").read_text(encoding="utf-8")
MODEL, VECTORS, RANKER = "caller", "minilm", "cross-encoder"
USER: list[Any] = [{"role": "user", "content": "Hi"}]
# Paths that are other names of routes.
NAMES = {"/embeddings": "/v1/embeddings", "/classify": "/v1/classify"}


class Answer(BaseModel):
    """An answer."""

    city: str


def _proxy() -> Any:
    spec = importlib.util.spec_from_file_location("recording_proxy", FOLDER / "proxy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def proxy() -> Iterator[tuple[str, list[Any]]]:
    set_tracing_disabled(disabled=True)
    with _proxy().recording(os.environ["ROUNDHOUSE_URL"]) as (url, recorded):
        yield url, recorded


def rows() -> dict[str, set[str]]:
    """Return the fields of each table of the manual, by the path of its route."""
    found: dict[str, set[str]] = {}
    for section in PAGE.split("\n## ")[1:]:
        path = re.search(r"`POST (\S+)`", section)
        if path is not None:
            found[path[1]] = set(re.findall(r"^\| `([^`]+)` \| `", section, flags=re.MULTILINE))
    # POST / takes the bodies of /generate too.
    found["/"] |= found["/generate"]
    # A route that runs no model.
    found["/api/show"] = {"model", "name", "verbose"}
    return found


def fields_of(body: dict[str, Any]) -> set[str]:
    """Return the fields of a body, and the members of its options that are not null."""
    members = {
        f"{name}.{member}"
        for name in ("options", "parameters")
        for member, value in (body.get(name) or {}).items()
        if value is not None
    }
    return members | body.keys()


def of_openai(url: str) -> list[Callable[[], Any]]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    return [
        lambda: client.chat.completions.create(model=MODEL, messages=USER),
        lambda: list(client.chat.completions.create(model=MODEL, messages=USER, stream=True)),
        lambda: client.completions.create(model=MODEL, prompt="Hi"),
        lambda: client.responses.create(model=MODEL, input="Hi"),
        lambda: client.embeddings.create(model=VECTORS, input="Hi"),
    ]


def of_anthropic(url: str) -> list[Callable[[], Any]]:
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "messages": USER}

    def stream() -> None:
        with client.messages.stream(**asked) as stream:
            stream.get_final_message()

    return [
        lambda: client.messages.create(**asked),
        stream,
        lambda: client.messages.count_tokens(model=MODEL, messages=USER),
    ]


def of_ollama(url: str) -> list[Callable[[], Any]]:
    client = ollama.Client(url)
    return [
        lambda: client.chat(MODEL, USER),
        lambda: list(client.chat(MODEL, USER, stream=True)),
        lambda: client.generate(MODEL, "Hi"),
        lambda: client.embed(VECTORS, "Hi"),
        lambda: client.embeddings(VECTORS, "Hi"),
    ]


def of_hugging_face(url: str) -> list[Callable[[], Any]]:
    client = InferenceClient(url)
    return [
        lambda: client.chat_completion(USER),
        lambda: list(client.chat_completion(USER, stream=True)),
        lambda: client.text_generation("Hi"),
        lambda: list(client.text_generation("Hi", stream=True, details=True)),
        lambda: client.feature_extraction("Hi"),
        lambda: client.sentence_similarity("Hi", other_sentences=["a"]),
        lambda: client.text_classification("Hi"),
    ]


def of_cohere(url: str) -> list[Callable[[], Any]]:
    client = cohere.ClientV2(api_key="none", base_url=url)
    return [
        lambda: client.embed(model=VECTORS, texts=["a"], input_type="search_query", embedding_types=["float"]),
        lambda: client.rerank(model=RANKER, query="Hi", documents=["a"]),
    ]


def of_infinity(url: str) -> list[Callable[[], Any]]:
    def call(route: Any, body: Any) -> Callable[[], Any]:
        return lambda: route.sync_detailed(client=Client(base_url=url), body=body)

    return [
        call(embeddings, OpenAIEmbeddingInputText(input_="a")),
        call(rerank, RerankInput(query="Hi", documents=["a"])),
        call(classify, ClassifyInput(input_=["a"])),
    ]


def of_langchain(url: str) -> list[Callable[[], Any]]:
    own: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}
    chat, local = ChatOpenAI(model=MODEL, **own), ChatOllama(base_url=url, model=MODEL)
    other = ChatAnthropic(base_url=url, api_key="none", model=MODEL, max_tokens=8, max_retries=0)
    return [
        lambda: chat.invoke("Hi"),
        lambda: list(chat.stream("Hi")),
        lambda: chat.bind_tools([Answer]).invoke("Hi"),
        lambda: ChatOpenAI(model=MODEL, use_responses_api=True, **own).invoke("Hi"),
        lambda: OpenAI(model=MODEL, **own).invoke("Hi"),
        lambda: OpenAIEmbeddings(model=VECTORS, check_embedding_ctx_length=False, **own).embed_query("Hi"),
        lambda: other.invoke("Hi"),
        lambda: list(other.stream("Hi")),
        lambda: other.bind_tools([Answer]).invoke("Hi"),
        lambda: local.invoke("Hi"),
        lambda: local.bind_tools([Answer]).invoke("Hi"),
        lambda: OllamaLLM(base_url=url, model=MODEL).invoke("Hi"),
        lambda: OllamaEmbeddings(base_url=url, model=VECTORS).embed_query("Hi"),
    ]


def of_llama_index(url: str) -> list[Callable[[], Any]]:
    own: dict[str, Any] = {"api_base": f"{url}/v1", "api_key": "none", "max_retries": 0}
    chat = OpenAILike(model=MODEL, is_chat_model=True, **own)
    return [
        lambda: chat.complete("Hi"),
        lambda: list(chat.stream_complete("Hi")),
        lambda: OpenAILike(model=MODEL, is_chat_model=False, **own).complete("Hi"),
        lambda: OpenAILikeEmbedding(model_name=VECTORS, **own).get_text_embedding("Hi"),
        lambda: Ollama(model=MODEL, base_url=url).complete("Hi"),
        lambda: OllamaEmbedding(model_name=VECTORS, base_url=url).get_text_embedding("Hi"),
        lambda: TextEmbeddingsInference(model_name=VECTORS, base_url=url).get_text_embedding("Hi"),
    ]


def of_agents(url: str) -> list[Callable[[], Any]]:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    typed = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))
    return [
        lambda: Runner.run_sync(Agent(name="a", model=OpenAIResponsesModel(MODEL, client)), "Hi"),
        lambda: Runner.run_sync(Agent(name="a", model=OpenAIChatCompletionsModel(MODEL, client)), "Hi"),
        lambda: typed.chat.completions.create(model=MODEL, messages=USER, response_model=Answer, max_retries=0),
    ]


CLIENTS = (
    of_openai, of_anthropic, of_ollama, of_hugging_face, of_cohere, of_infinity, of_langchain, of_llama_index,
    of_agents,
)  # fmt: skip


@pytest.mark.parametrize("calls_of", CLIENTS, ids=lambda each: each.__name__)
def test_sent_fields_are_answered_and_have_rows(proxy: tuple[str, list[Any]], calls_of: Any) -> None:
    url, recorded = proxy
    calls, known = calls_of(url), rows()
    recorded.clear()
    for call in calls:
        # Clients raise for a text of random weights that is cut off.
        with suppress(Exception):
            call()
    assert len(recorded) >= len(calls)
    for each in recorded:
        assert each.status == 200, (each.path, each.body, each.response)
        path = "/v1/rerank" if each.path == "/rerank" and "texts" not in each.body else each.path
        assert fields_of(each.body) <= known[NAMES.get(path, path)], each
