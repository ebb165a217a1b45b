"""Function calls and reasoning of /v1/responses by OpenAI's own client. The models have random weights."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.e2e.server import RunningServer, serving
from tests.support.models.causal_folders import save_tool_model
from tests.support.models.tool_templates import ALWAYS_THINKING, TEMPLATES

# The text of these begins with the call, that of the other two may begin with reasoning.
CALLERS = ["llama3_json", "mistral_args"]
MODELS = [*CALLERS, "hermes", "thinker"]
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Köln", 'the "old" town']}, "days": {"enum": [1, 2, 3]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "name": "weather", "description": "Tell the weather.", "parameters": WEATHER, "strict": True},
    {"type": "function", "name": "now"},
]
QUESTION = {"role": "user", "content": "How warm is it?"}
WHICH: Any = {"type": "function", "name": "weather"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("tools")
    config = ""
    for name in MODELS:
        tools: Any = name if name in TEMPLATES else "hermes"
        template = TEMPLATES[tools] if name in TEMPLATES else ALWAYS_THINKING
        path = save_tool_model(folder / name, tools, template, max_position_embeddings=4096)
        config += f'[[models.torch_models]]\nname = "{name}"\npath = "{path}"\nkv_cache_bytes = "8MiB"\n'
    with serving(folder, config) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def options_of(**options: Any) -> dict[str, Any]:
    return {"input": [QUESTION], "tools": TOOLS, "extra_body": {"seed": 1}, "max_output_tokens": 900, **options}


def ask(client: openai.OpenAI, model: str, **options: Any) -> Any:
    return client.responses.create(model=model, **options_of(**options))


def calls_of(response: Any) -> list[tuple[str, str]]:
    """Return the name and the arguments of each call."""
    return [(item.name, item.arguments) for item in response.output if item.type == "function_call"]


@pytest.mark.parametrize("model", CALLERS)
class TestCalls:
    def test_named_function_is_called(self, client: openai.OpenAI, model: str) -> None:
        answer = ask(client, model, tool_choice=WHICH)
        (call,) = answer.output
        assert (answer.status, call.type) == ("completed", "function_call")
        assert (call.name, call.status) == ("weather", "completed")
        jsonschema.validate(json.loads(call.arguments), WEATHER)

    def test_streamed_calls_equal_whole(self, client: openai.OpenAI, model: str) -> None:
        options: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
        whole = ask(client, model, **options)
        with client.responses.stream(model=model, **options_of(**options)) as stream:
            deltas = [event for event in stream if event.type == "response.function_call_arguments.delta"]
            last = stream.get_final_response()
        assert calls_of(last) == calls_of(whole)
        assert len(calls_of(last)) == 1
        assert deltas[-1].snapshot == calls_of(whole)[0][1]
        assert last.usage == whole.usage

    def test_result_is_sent_back(self, client: openai.OpenAI, model: str) -> None:
        first = ask(client, model, tool_choice=WHICH)
        call = first.output[-1]
        lengths = []
        for output in ("12 degrees", "12 degrees, and rain"):
            result = {"type": "function_call_output", "call_id": call.call_id, "output": output}
            second = ask(client, model, input=[QUESTION, *first.output, result], tool_choice=WHICH)
            assert [name for name, _ in calls_of(second)] == ["weather"]
            lengths.append(second.usage.input_tokens)
        assert lengths[1] - lengths[0] == len(", and rain")

    def test_prompt_equals_that_of_chat(self, client: openai.OpenAI, model: str) -> None:
        called = {"name": "weather", "arguments": '{"city": "Köln"}'}
        items = [QUESTION, {"type": "function_call", "call_id": "call_abc1", **called}]
        items.append({"type": "function_call_output", "call_id": "call_abc1", "output": "12"})
        if model == "mistral_args":
            items = [{**item, "call_id": "callabcd1"} if "call_id" in item else item for item in items]
        call_id = items[1]["call_id"]
        messages: Any = [
            QUESTION,
            {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": called}]},
            {"role": "tool", "tool_call_id": call_id, "content": "12"},
        ]
        tools: Any = [
            {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
            for tool in TOOLS
        ]
        chat = client.chat.completions.create(
            model=model, messages=messages, tools=tools, temperature=0, max_tokens=8, tool_choice="required"
        )
        answer = ask(client, model, input=items, temperature=0, max_output_tokens=8, tool_choice="required")
        assert chat.usage is not None
        assert answer.usage.input_tokens == chat.usage.prompt_tokens
        assert calls_of(answer) == [
            (call.function.name, call.function.arguments) for call in chat.choices[0].message.tool_calls or ()
        ]

    def test_counted_tokens_are_those_read(self, client: openai.OpenAI, model: str) -> None:
        tools: list[Any] = TOOLS
        prompts: list[dict[str, Any]] = [
            {"input": "How warm is it?"},
            {"input": [QUESTION], "instructions": "Use the tools.", "tools": tools, "tool_choice": "required"},
            {"input": [QUESTION], "text": {"format": {"type": "json_object"}}, "parallel_tool_calls": False},
        ]
        for prompt in prompts:
            counted = client.responses.input_tokens.count(model=model, **prompt)
            answer = client.responses.create(model=model, max_output_tokens=1, **prompt)
            assert answer.usage is not None
            assert (counted.object, counted.input_tokens) == ("response.input_tokens", answer.usage.input_tokens)
        with pytest.raises(openai.BadRequestError, match="no response is stored"):
            client.responses.input_tokens.count(model=model, input="a", previous_response_id="resp_1")

    def test_free_text_is_message(self, client: openai.OpenAI, model: str) -> None:
        for choice in ("auto", "none"):
            answer = ask(client, model, tool_choice=choice, max_output_tokens=20)
            assert [item.type for item in answer.output] == ["message"]
            assert answer.output_text


def test_thinking_is_reasoning_item(client: openai.OpenAI) -> None:
    answer = ask(client, "thinker", tools=[], max_output_tokens=12)
    (item,) = answer.output
    assert (answer.status, item.type, item.status, answer.output_text) == ("incomplete", "reasoning", "incomplete", "")
    assert item.content[0].text
    assert answer.usage.output_tokens_details.reasoning_tokens == answer.usage.output_tokens == 12
    events = ask(client, "thinker", tools=[], max_output_tokens=12, stream=True)
    assert (
        "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
        == item.content[0].text
    )


def reasoning_of_chat(client: openai.OpenAI, model: str, **options: Any) -> tuple[int | None, int]:
    """Return the tokens of the thinking, and all generated ones."""
    messages: Any = [QUESTION]
    answer: Any = client.chat.completions.create(model=model, messages=messages, max_tokens=12, **options)
    usage = list(answer)[-1].usage if "stream" in options else answer.usage
    return usage.completion_tokens_details.reasoning_tokens, usage.completion_tokens


def test_chat_counts_same_reasoning_tokens(client: openai.OpenAI) -> None:
    for seed in (1, 2, 3):
        usage = ask(client, "thinker", tools=[], max_output_tokens=12, extra_body={"seed": seed}).usage
        counts = usage.output_tokens_details.reasoning_tokens, usage.output_tokens
        assert counts[0] > 0
        assert reasoning_of_chat(client, "thinker", seed=seed) == counts
        streamed = reasoning_of_chat(client, "thinker", seed=seed, stream=True, stream_options={"include_usage": True})
        assert streamed == counts
    assert reasoning_of_chat(client, CALLERS[0], seed=1)[0] == 0


def test_reasoning_before_forced_call_is_counted(client: openai.OpenAI) -> None:
    answer = ask(client, "thinker", tool_choice=WHICH, max_output_tokens=2000)
    kinds = [item.type for item in answer.output]
    assert kinds in (["reasoning", "function_call"], ["function_call"], ["reasoning"])
    assert 0 < answer.usage.output_tokens_details.reasoning_tokens <= answer.usage.output_tokens


def test_reasoning_item_is_sent_back(client: openai.OpenAI) -> None:
    (item,) = ask(client, "thinker", tools=[], max_output_tokens=12).output
    answer = ask(client, "thinker", tools=[], input=[QUESTION, item, QUESTION], max_output_tokens=1)
    assert answer.usage.input_tokens > 0


def test_reasoning_effort_reaches_template(client: openai.OpenAI) -> None:
    usual, without = (
        ask(client, "hermes", max_output_tokens=1, reasoning={"effort": each}) for each in ("high", "none")
    )
    assert without.usage.input_tokens > usual.usage.input_tokens
    efforts: tuple[dict[str, Any], ...] = ({"reasoning": {"effort": "high"}}, {})
    asked, unasked = (ask(client, "mistral_args", max_output_tokens=1, **each) for each in efforts)
    assert asked.usage.input_tokens == unasked.usage.input_tokens


def test_schema_that_cannot_be_held_is_named(client: openai.OpenAI) -> None:
    bad = {"type": "function", "name": "bad", "parameters": {"type": "object", "not": {}}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, "hermes", tools=[*TOOLS, bad], tool_choice="required")
    assert refused.value.param == "tools[2].parameters"
