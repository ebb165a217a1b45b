"""Ollama's messages, options and calls, without a model."""

from types import SimpleNamespace
from typing import Any

import pytest

from app.protocols.shared.bodies import read_body
from extensions.clients.ollama.codec import EMBED_CODEC, without_tag
from extensions.clients.ollama.requests import (
    OllamaEmbedRequest,
    OllamaMessage,
    OllamaOptions,
    OllamaTextRequest,
    ignored_of,
)
from extensions.clients.ollama.texts import GENERATE_CODEC, _check, _Parts, _turns_of
from frameworks.core.errors import InvalidInput
from frameworks.generation.prompt_scores import PromptOptions
from frameworks.generation.tools.formats import TextFormat
from tests.app.protocols.openai.decoding import assert_refused, decode

SPEC: Any = None


def call(name: str) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {"city": "Bern"}}}


@pytest.mark.parametrize(
    ("given", "name"), [("org/a:latest", "org/a"), ("a", "a"), ("a:b", "a:b"), (":latest", ":latest"), (None, None)]
)
def test_tag_latest_is_left_out(given: Any, name: Any) -> None:
    assert without_tag(given) == name


def test_results_find_their_calls() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [call("first"), call("second")]},
        {"role": "tool", "content": "2", "tool_name": "second"},
        {"role": "tool", "content": "1"},
    ]
    turns = _turns_of([read_body(OllamaMessage, each) for each in messages])
    assert [each.arguments for each in turns[0].tool_calls] == ['{"city":"Bern"}'] * 2
    first, second = (each.id for each in turns[0].tool_calls)
    assert [(each.tool_call_id, each.name) for each in turns[1:]] == [(second, "second"), (first, "first")]


def test_stream_is_default_also_for_null() -> None:
    assert read_body(OllamaTextRequest, {}).stream
    assert read_body(OllamaTextRequest, {"stream": None}).stream
    assert not read_body(OllamaTextRequest, {"stream": False}).stream


def test_only_runtime_options_are_ignored() -> None:
    options = read_body(OllamaOptions, {"num_ctx": 1, "use_mmap": True, "temperature": 0.5, "seed": -1, "stop": "a"})
    body = read_body(OllamaEmbedRequest, {"input": "a", "options": options})
    assert ignored_of(body, SPEC) == ("options.num_ctx", "options.use_mmap")


def test_suffix_reaches_prompt_of_model_that_infills() -> None:
    request = decode(GENERATE_CODEC, model="coder", prompt="a", suffix="b").request
    assert (request.prompts, request.prompt_options) == (("a",), PromptOptions(suffix="b"))
    assert_refused(GENERATE_CODEC, "suffix", '"llama"', "fill-in-the-middle", model="llama", prompt="a", suffix="b")
    assert_refused(GENERATE_CODEC, "system", model="coder", prompt="a", suffix="b", system="c")


def test_options_of_vectors_are_ignored() -> None:
    # LangChain sends all options that it knows.
    options = {"mirostat": 1, "tfs_z": None, "temperature": 0.5, "num_ctx": None}
    decoded = decode(EMBED_CODEC, model="embed", input="a", options=options)
    assert decoded.ignored == ("options.mirostat", "options.temperature")


def test_options_of_other_samplers_are_refused() -> None:
    _check({"options": {"mirostat": 0, "tfs_z": 1.0}}, SPEC)
    with pytest.raises(InvalidInput, match="mirostat"):
        _check({"options": {"mirostat": 2}}, SPEC)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_calls_are_sent_whole(size: int) -> None:
    text = 'Hm.<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    body = SimpleNamespace(tools=[SimpleNamespace(function=SimpleNamespace(name="weather"))])
    decoded: Any = SimpleNamespace(body=body, request=SimpleNamespace(text_format=TextFormat("hermes")))
    parts = _Parts(decoded)
    parts._is_chat = True
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    members = [parts.push(piece, None)["message"] for piece in pieces] + [parts.push("", "stop")["message"]]
    calls = [each for member in members for each in member.get("tool_calls", ())]
    assert calls == [{"function": {"name": "weather", "arguments": {"city": "Bern"}}}]
    assert "".join(member["content"] for member in members).strip() == "Hm."
