"""Ollama's client, as its documentation shows it. The model has random weights, and tools in its chat template."""

import os
from typing import Any

import ollama
import pytest

URL = os.environ["ROUNDHOUSE_URL"]
MODEL = "caller"
USER = {"role": "user", "content": "How warm is it in Bern?"}
ASKED: dict[str, Any] = {"model": MODEL, "options": {"seed": 1, "num_predict": 20}}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Tell.", "parameters": PARAMETERS}}]


@pytest.fixture(scope="module")
def client() -> ollama.Client:
    return ollama.Client(URL)


def test_chat_stream_equals_whole(client: ollama.Client) -> None:
    whole = client.chat(**ASKED, messages=[USER])
    pieces = list(client.chat(**ASKED, messages=[USER], stream=True))
    joined = "".join((each.message.thinking or "") + each.message.content for each in pieces)
    assert joined == (whole.message.thinking or "") + whole.message.content
    assert (pieces[-1].done, whole.done_reason, pieces[-1].eval_count) == (True, "length", whole.eval_count)


def test_chat_with_tools(client: ollama.Client) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Bern"}}}
    talk = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_name": "weather", "content": "9"}]
    assert client.chat(**ASKED, messages=talk, tools=TOOLS).done


def test_generate(client: ollama.Client) -> None:
    assert client.generate(**ASKED, prompt="Hello", system="Be short.").eval_count == 20


def test_embed(client: ollama.Client) -> None:
    vectors = client.embed("minilm", ["a", "b"]).embeddings
    assert len(vectors) == 2
    assert sum(each**2 for each in vectors[0]) == pytest.approx(1, abs=1e-4)
    assert client.embeddings("minilm", "a").embedding == pytest.approx(vectors[0], abs=1e-4)


def test_models(client: ollama.Client) -> None:
    assert MODEL in [each.model for each in client.list().models]
    assert MODEL in [each.model for each in client.ps().models]
    assert "tools" in client.show(MODEL).capabilities


def test_unknown_model(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="absent") as refused:
        client.chat("absent", [USER])
    assert refused.value.status_code == 404
