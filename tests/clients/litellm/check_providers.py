"""LiteLLM's providers for the protocols of this server, at its own address. The model has tools in its template."""

import json
import os
from typing import Any

import litellm
import pytest

URL = os.environ["ROUNDHOUSE_URL"]
USER = {"role": "user", "content": "How warm is it in Bern?"}
TEXTS = ["Bread rises overnight.", "A roundhouse is where engines wait."]
QUERY = "Where do engines wait?"
SIZE = 384
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Bern", "Oslo"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tell the weather.", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "weather"}}
CHATS = {
    "openai": f"{URL}/v1",
    "hosted_vllm": f"{URL}/v1",
    "huggingface": URL,
    "anthropic": URL,
    "ollama_chat": URL,
}
"""Providers of chats, each with its address."""
# Equal seeds give equal texts; with the seed 1 the thinking ends.
DRAWN: dict[str, Any] = {"temperature": 1, "max_tokens": 600, "seed": 1, "allowed_openai_params": ["seed"]}
CALLING = ("openai", "hosted_vllm", "huggingface", "anthropic")
TEXTUAL = {"text-completion-openai": f"{URL}/v1", "ollama": URL}
EMBEDDING = {
    "openai": f"{URL}/v1",
    "hosted_vllm": f"{URL}/v1",
    "infinity": URL,
    "ollama": URL,
    "cohere": f"{URL}/v2/embed",
    "huggingface": URL,
}
RANKING = {"hosted_vllm": URL, "infinity": URL, "cohere": URL, "jina_ai": URL, "huggingface": f"{URL}/rerank"}


def chat(provider: str, **options: Any) -> Any:
    asked = {"messages": [USER], "max_tokens": 16, "temperature": 0, **options}
    return litellm.completion(f"{provider}/caller", api_base=CHATS[provider], api_key="none", **asked)


def text_of(message: Any) -> str:
    return (getattr(message, "reasoning_content", None) or "") + (message.content or "")


class TestChat:
    @pytest.mark.parametrize("provider", CHATS)
    def test_stream_equals_whole(self, provider: str) -> None:
        whole = chat(provider)
        chunks = list(chat(provider, stream=True, stream_options={"include_usage": True}))
        assert text_of(whole.choices[0].message)
        assert "".join(text_of(each.choices[0].delta) for each in chunks if each.choices) == text_of(
            whole.choices[0].message
        )
        assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 16)

    def test_limit_of_anthropic(self) -> None:
        # The provider sends the limit of Anthropic's models, which is longer than the context.
        asked = {"messages": [USER], "api_base": URL, "api_key": "none", "stop": ["e", "a", "i"]}
        assert litellm.completion("anthropic/caller", **asked).choices[0].finish_reason

    @pytest.mark.parametrize("provider", CALLING)
    def test_tools(self, provider: str) -> None:
        asked = {"tools": [TOOL], "tool_choice": NAMED, **DRAWN}
        message = chat(provider, **asked).choices[0].message
        (call,) = message.tool_calls
        assert call.function.name == "weather"
        chunks = list(chat(provider, stream=True, **asked))
        calls = [each.choices[0].delta.tool_calls[0] for each in chunks if each.choices[0].delta.tool_calls]
        streamed = "".join(each.function.arguments or "" for each in calls)
        assert json.loads(streamed) == json.loads(call.function.arguments)
        result = {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}
        again = chat(provider, messages=[USER, message.model_dump(), result], tools=[TOOL])
        assert again.usage.prompt_tokens > 20

    def test_tools_of_ollama(self) -> None:
        assert chat("ollama_chat", tools=[TOOL]).choices[0].finish_reason

    @pytest.mark.parametrize("provider", CHATS)
    def test_schema(self, provider: str) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
        message = chat(provider, response_format=form, **DRAWN).choices[0].message
        assert "Bern" in message.content or "Oslo" in message.content

    @pytest.mark.parametrize("provider", CHATS)
    def test_errors(self, provider: str) -> None:
        with pytest.raises((litellm.APIError, litellm.BadRequestError, litellm.APIConnectionError), match="top_p"):
            chat(provider, top_p=2.5)


class TestText:
    @pytest.mark.parametrize("provider", TEXTUAL)
    def test_stream_equals_whole(self, provider: str) -> None:
        asked = {"prompt": "A list is", "max_tokens": 16, "temperature": 0, "api_base": TEXTUAL[provider]}
        whole = litellm.text_completion(model=f"{provider}/caller", api_key="none", **asked)
        chunks = litellm.text_completion(model=f"{provider}/caller", api_key="none", stream=True, **asked)
        assert whole.choices[0].text
        assert "".join(each.choices[0].text or "" for each in chunks) == whole.choices[0].text

    def test_responses(self) -> None:
        answer = litellm.responses(
            input="How warm is it?", model="openai/caller", api_base=f"{URL}/v1", api_key="none", max_output_tokens=16
        )
        assert 0 < answer.usage.output_tokens <= 16


@pytest.mark.parametrize("provider", EMBEDDING)
def test_embeddings(provider: str) -> None:
    # Cohere's client needs the type of the texts.
    more = {"input_type": "search_document"} if provider in ("cohere", "huggingface") else {}
    if provider == "huggingface":
        more = {"input_type": "feature-extraction"}
    answer = litellm.embedding(f"{provider}/minilm", TEXTS, api_base=EMBEDDING[provider], api_key="none", **more)
    assert [len(each["embedding"]) for each in answer.data] == [SIZE, SIZE]


@pytest.mark.parametrize("provider", RANKING)
def test_rerank(provider: str) -> None:
    # LiteLLM expects texts of Infinity, where other servers have objects.
    asked = {"top_n": 1, "return_documents": provider != "infinity"}
    answer = litellm.rerank(f"{provider}/minilm", QUERY, TEXTS, api_base=RANKING[provider], api_key="none", **asked)
    assert [each["index"] for each in answer.results] == [1]
