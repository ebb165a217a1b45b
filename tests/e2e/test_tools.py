"""Tools through OpenAI's own client and a real server, whole and streamed. The models have random weights."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.e2e.server import RunningServer, serving
from tests.support.models.causal_folders import save_tool_model
from tests.support.models.tool_templates import ALWAYS_THINKING, TEMPLATES

MODELS = ["hermes", "llama3_json", "mistral", "mistral_args", "pythonic", "thinker"]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Köln", 'the "old" town']},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "unit": {"anyOf": [{"const": "C"}, {"type": "null"}]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "Tell the weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
MESSAGES: list[Any] = [{"role": "user", "content": "How warm is it?"}]
WHICH: Any = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("tools")
    config = ""
    for name in MODELS:
        tools: Any = name if name in TEMPLATES else "hermes"
        template = TEMPLATES[tools] if name in TEMPLATES else ALWAYS_THINKING
        path = save_tool_model(folder / name, tools, template, max_position_embeddings=4096)
        config += f'[[models.torch_models]]\nname = "{name}"\npath = "{path}"\nkv_cache_bytes = "8MiB"\n'
    plain = save_tool_model(folder / "plain", "hermes", "{% for m in messages %}{{ m.content }}{% endfor %}")
    config += f'[[models.torch_models]]\nname = "plain"\npath = "{plain}"\nkv_cache_bytes = "1MiB"\n'
    config += (
        f'[[models.torch_models]]\nname = "set"\npath = "{plain}"\ntool_format = "mistral"\nkv_cache_bytes = "1MiB"\n'
    )
    with serving(folder, config) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, model: str, **options: Any) -> Any:
    options = {"messages": MESSAGES, "tools": TOOLS, "seed": 1, "max_tokens": 900, **options}
    return client.chat.completions.create(model=model, **options)


def check_calls(choice: Any) -> None:
    """Check that every call of a message that has ended meets the schema of its tool."""
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert len({call.id for call in choice.message.tool_calls}) == len(choice.message.tool_calls)
    for call in choice.message.tool_calls:
        arguments = json.loads(call.function.arguments)
        schema = {"weather": WEATHER, "now": {"type": "object", "maxProperties": 0}}[call.function.name]
        jsonschema.validate(arguments, schema)


@pytest.mark.parametrize("model", MODELS[:-1])
class TestEveryFormat:
    def test_forced_call_meets_schema(self, client: openai.OpenAI, model: str) -> None:
        answer = ask(client, model, tool_choice="required", parallel_tool_calls=False)
        (choice,) = answer.choices
        check_calls(choice)
        assert len(choice.message.tool_calls) == 1
        assert answer.usage.completion_tokens > 10

    def test_named_function_is_called(self, client: openai.OpenAI, model: str) -> None:
        for choice in ask(client, model, tool_choice=WHICH, n=3).choices:
            check_calls(choice)
            assert [call.function.name for call in choice.message.tool_calls] == ["weather"]

    def test_streamed_calls_equal_whole(self, client: openai.OpenAI, model: str) -> None:
        options: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
        whole = ask(client, model, **options)
        with client.chat.completions.stream(
            model=model, messages=MESSAGES, tools=TOOLS, seed=1, max_tokens=900,
            stream_options={"include_usage": True}, **options,
        ) as stream:  # fmt: skip
            chunks = sum(event.type == "chunk" for event in stream)
            last = stream.get_final_completion()
        (choice,), (expected,) = last.choices, whole.choices
        assert choice.finish_reason == "tool_calls"
        assert _functions(choice) == _functions(expected)
        # The cached tokens of the prompt depend on the requests before.
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert getattr(last.usage, name) == getattr(whole.usage, name), name
        assert chunks > 5

    def test_result_is_sent_back(self, client: openai.OpenAI, model: str) -> None:
        first = ask(client, model, tool_choice=WHICH)
        message = first.choices[0].message
        prompts = []
        for content in ("12 degrees", "12 degrees, and rain"):
            result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": content}
            talk = [*MESSAGES, message.model_dump(), result]
            second = ask(client, model, messages=talk, tool_choice=WHICH)
            check_calls(second.choices[0])
            prompts.append(second.usage.prompt_tokens)
        assert prompts[1] - prompts[0] == len(", and rain")

    def test_tokenize_counts_tools(self, client: openai.OpenAI, server: RunningServer, model: str) -> None:
        body = {"model": model, "messages": MESSAGES}
        plain, told = (
            server.client.post("/v1/tokenize", json=each).json()["count"] for each in (body, {**body, "tools": TOOLS})
        )
        assert told > plain
        assert ask(client, model, max_tokens=1).usage.prompt_tokens == told

    def test_free_text_is_content(self, client: openai.OpenAI, model: str) -> None:
        for choice_of_tool in ("auto", "none"):
            (choice,) = ask(client, model, tool_choice=choice_of_tool, max_tokens=20).choices
            assert choice.message.tool_calls is None
            assert choice.message.content


@pytest.mark.parametrize("model", MODELS[:-1])
def test_two_calls_arrive_in_one_response(client: openai.OpenAI, model: str) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("tea", "coffee")]
    options: dict[str, Any] = {
        "tools": tools,
        "tool_choice": "required",
        "n": 8,
        "temperature": 1.5,
        "max_tokens": 2000,
    }
    choices = {choice.index: choice for choice in ask(client, model, **options).choices}
    several = {index: each for index, each in choices.items() if len(each.message.tool_calls or ()) > 1}
    assert several
    streamed: dict[int, list[list[str]]] = {index: [] for index in choices}
    for chunk in ask(client, model, stream=True, **options):
        for choice in chunk.choices:
            for delta in choice.delta.tool_calls or ():
                calls = streamed[choice.index]
                if delta.id:
                    assert delta.index == len(calls)
                    calls.append([delta.function.name, ""])
                calls[delta.index][1] += delta.function.arguments
    for index, choice in choices.items():
        assert streamed[index] == [list(pair) for pair in _functions(choice)]


def test_begun_strict_call_is_held(client: openai.OpenAI, server: RunningServer) -> None:
    """The bias makes the model begin a call whenever it may."""
    strict = [TOOLS[0] | {"function": TOOLS[0]["function"] | {"strict": True}}]
    mark = server.client.post("/v1/tokenize", json={"model": "mistral", "prompt": "[TOOL_CALLS]"}).json()["tokens"]
    end = 256
    options = {"tools": strict, "parallel_tool_calls": False, "logit_bias": {str(mark[0]): 100, str(end): 50}}
    check_calls(ask(client, "mistral", **options).choices[0])


def test_thinking_is_reasoning_content(client: openai.OpenAI) -> None:
    (choice,) = ask(client, "thinker", tool_choice="none", max_tokens=12).choices
    assert choice.message.content == ""
    assert choice.message.reasoning_content
    pieces = [
        getattr(each.delta, "reasoning_content", None) or ""
        for chunk in ask(client, "thinker", tool_choice="none", max_tokens=12, stream=True)
        for each in chunk.choices
    ]
    assert "".join(pieces) == choice.message.reasoning_content


def test_json_format_follows_reasoning(client: openai.OpenAI) -> None:
    schema = {"name": "n", "schema": {"enum": ["yes"]}}
    wanted = {"type": "json_schema", "json_schema": schema}
    message = ask(client, "thinker", tools=[], response_format=wanted, max_tokens=2000).choices[0].message
    assert message.content == '"yes"'
    assert message.reasoning_content


def test_reasoning_effort_reaches_template(client: openai.OpenAI) -> None:
    usual, without = (ask(client, "hermes", max_tokens=1, reasoning_effort=each) for each in ("high", "none"))
    assert without.usage.prompt_tokens > usual.usage.prompt_tokens
    asked, unasked = (ask(client, "mistral", max_tokens=1, **options) for options in ({"reasoning_effort": "high"}, {}))
    assert asked.usage.prompt_tokens == unasked.usage.prompt_tokens


def test_format_of_entry_is_used(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="set tool_format"):
        ask(client, "plain")
    check_calls(ask(client, "set", tool_choice=WHICH, max_tokens=150).choices[0])


def test_schema_that_cannot_be_held_is_named(client: openai.OpenAI) -> None:
    bad = {"type": "function", "function": {"name": "bad", "parameters": {"type": "object", "not": {}}}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, "hermes", tools=[*TOOLS, bad], tool_choice="required")
    assert refused.value.param == "tools[2].function.parameters"
    assert ask(client, "hermes", tools=[*TOOLS, bad], max_tokens=1).choices


def _functions(choice: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
