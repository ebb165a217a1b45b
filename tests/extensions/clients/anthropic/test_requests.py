"""Requests of Anthropic's API: what reaches the model, and what is refused by name."""

import json
from typing import Any

import pytest

from extensions.clients.anthropic.messages import COUNT_TOKENS_CODEC, MESSAGES_CODEC
from frameworks.generation.tools.definition import ToolsDefinition
from frameworks.generation.tools.formats import TextFormat
from frameworks.generation.types import (
    Choice,
    Constraint,
    GenerateAnswer,
    Message,
    MessageCall,
    Sampling,
    Stopping,
    Usage,
)
from frameworks.text.tokens import TokenizeRequest
from tests.app.protocols.openai.decoding import CONTEXT, decode
from tests.extensions.clients.anthropic.messages import SCHEMA, USER, ask, count, refusal, tool

BEGUN = [*USER, {"role": "assistant", "content": "It is ("}]
FORM = {"type": "json_schema", "schema": SCHEMA}
CALL = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bern"}}


def turns(messages: list[Any], **fields: object) -> tuple[Message, ...]:
    found: tuple[Message, ...] = ask(messages=messages, **fields).request.prompts[0].messages
    return found


def definition_of(**fields: object) -> ToolsDefinition:
    constraint = ask(**{"tools": [tool("a"), tool("b")], **fields}).request.constraint
    assert constraint.kind == "tools"
    return ToolsDefinition.from_json(constraint.definition)


class TestConversation:
    def test_system_is_first_turn(self) -> None:
        blocks = [{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "."}]
        assert turns(USER, system="Be.") == (Message("system", "Be."), Message("user", "How warm?"))
        assert turns(USER, system=blocks) == turns(USER, system="Be.")
        assert turns(USER, system=[]) == turns(USER, system=None) == turns(USER)

    def test_blocks_of_response_are_one_turn(self) -> None:
        content = [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "text", "text": "I look.", "citations": None},
            {**CALL, "caller": None},
        ]
        result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "12"}]}
        messages = [*USER, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        _, response, answer = turns(messages)
        calls = (MessageCall("c1", "weather", '{"city":"Bern"}'),)
        assert response == Message("assistant", "I look.", calls, reasoning="Hm.")
        assert answer == Message("tool", "12", (), "c1", "weather")

    @pytest.mark.parametrize("content", ["It is (", [{"type": "text", "text": "It is ("}]])
    def test_last_response_is_continued(self, content: Any) -> None:
        messages = [*USER, {"role": "assistant", "content": content}]
        prompt = ask(messages=messages).request.prompts[0]
        assert (prompt.ending, prompt.messages[-1].content) == ("last_message", "It is (")
        assert count(messages=messages).request.prompt == prompt
        assert ask().request.prompts[0].ending == "response"

    def test_results_and_texts_keep_their_order(self) -> None:
        results = [{"type": "tool_result", "tool_use_id": name, "is_error": True} for name in ("c1", "c2")]
        content = [*results, {"type": "text", "text": "And"}, {"type": "text", "text": " now?"}]
        called = {"role": "assistant", "content": [CALL, {**CALL, "id": "c2", "name": "now"}]}
        _, _, first, second, text = turns([*USER, called, {"role": "user", "content": content}])
        assert [(each.role, each.name, each.content) for each in (first, second)] == [
            ("tool", "weather", ""),
            ("tool", "now", ""),
        ]
        assert text == Message("user", "And now?")

    def test_neighbours_of_one_role_are_joined(self) -> None:
        messages = [
            *USER,
            {"role": "user", "content": [{"type": "text", "text": "Now."}]},
            {"role": "assistant", "content": "12."},
            {"role": "assistant", "content": "Or 13."},
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "Which?"},
        ]
        assert [(each.role, each.content) for each in turns(messages)] == [
            ("user", "How warm?\n\nNow."),
            ("assistant", "12.\n\nOr 13."),
            ("system", "Be short."),
            ("user", "Which?"),
        ]

    def test_count_has_same_prompt_as_message(self) -> None:
        fields: dict[str, Any] = {"system": "Be.", "tools": [tool()], "thinking": {"type": "disabled"}}
        assert count(**fields).request == TokenizeRequest(ask(**fields).request.prompts[0])


class TestSampling:
    def test_options_reach_the_model(self) -> None:
        request = ask(temperature=0.5, top_p=0.9, top_k=3, seed=1, stop_sequences=["\n", "END"]).request
        assert request.sampling == Sampling(temperature=0.5, top_p=0.9, top_k=3, seed=1)
        assert request.stopping == Stopping(20, strings=("\n", "END"), may_be_fewer=True)
        assert (request.num_choices, request.constraint) == (1, None)

    def test_omitted_options_are_those_of_model(self) -> None:
        request = ask(model="llama").request
        assert request.sampling == Sampling(temperature=0.7, top_k=40)
        assert request.text_format == TextFormat()

    def test_stream_and_priority_are_read(self) -> None:
        decoded = ask(stream=True, priority=2, timeout_ms=50, metadata={"user_id": "u"}, service_tier="auto")
        assert (decoded.stream, decoded.priority, decoded.timeout_ms) == (True, 2, 50)

    def test_format_of_output_is_constraint(self) -> None:
        config = {"format": {"type": "json_schema", "schema": SCHEMA}}
        assert ask(output_config=config).request.constraint == Constraint(
            "json_schema", json.dumps(SCHEMA, separators=(",", ":")), thinks=True
        )
        assert definition_of(output_config=config).content == SCHEMA


class TestThinking:
    @pytest.mark.parametrize(
        ("fields", "effort"),
        [
            ({}, None),
            ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, "none"),
            ({"thinking": {"type": "adaptive"}}, None),
            ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "medium"),
            ({"thinking": {"type": "enabled", "budget_tokens": 9}, "output_config": {"effort": "max"}}, "max"),
            ({"output_config": {"effort": "low"}}, "low"),
        ],
    )
    def test_effort_reaches_template(self, fields: dict[str, Any], effort: str | None) -> None:
        assert ask(**fields).request.prompts[0].reasoning_effort == effort

    def test_model_without_thinking_refuses_it(self) -> None:
        assert ask(model="llama", thinking={"type": "disabled"}).request.prompts[0].reasoning_effort is None
        assert ask(model="llama", thinking={"type": "adaptive"})
        enabled = refusal(model="llama", thinking={"type": "enabled", "budget_tokens": 9})
        assert enabled["error"]["message"].startswith("thinking: expected a model that thinks")

    def test_fields_of_its_service_are_ignored(self) -> None:
        fields = {"service_tier": "priority", "inference_geo": "us", "context_management": {"edits": [{"type": "a"}]}}
        assert set(ask(**fields).ignored) == set(fields)

    def test_effort_without_reader_is_ignored(self) -> None:
        request = ask(model="llama", output_config={"effort": "high"})
        assert (request.request.prompts[0].reasoning_effort, request.ignored) == (None, ("output_config.effort",))
        headers = MESSAGES_CODEC.encode(request, GenerateAnswer([Choice("Hi", "stop")], Usage(1, 1)), CONTEXT).headers
        assert headers == [(b"request-id", b"abc-1"), (b"x-roundhouse-ignored", b"output_config.effort")]


class TestTools:
    def test_auto_is_default_without_constraint(self) -> None:
        request = ask(tools=[tool(description="Tell.", type="custom", cache_control={"type": "ephemeral"})]).request
        assert (request.constraint, request.text_format) == (None, TextFormat("hermes", thinks=True))
        function = {"name": "weather", "description": "Tell.", "parameters": SCHEMA}
        assert json.loads(request.prompts[0].tools) == [{"type": "function", "function": function}]

    def test_any_forces_a_call(self) -> None:
        definition = definition_of(tool_choice={"type": "any"})
        assert (definition.is_forced, definition.is_parallel) == (True, True)
        single = definition_of(tool_choice={"type": "any", "disable_parallel_tool_use": True})
        assert (single.is_forced, single.is_parallel) == (True, False)

    def test_chosen_tool_is_the_only_one(self) -> None:
        definition = definition_of(tool_choice={"type": "tool", "name": "b"})
        assert [each.name for each in definition.tools] == ["b"]
        assert not definition.is_parallel

    def test_strict_tool_is_held(self) -> None:
        definition = definition_of(
            tools=[tool("a"), tool("b", strict=True)], tool_choice={"type": "auto", "disable_parallel_tool_use": True}
        )
        assert [each.schema for each in definition.tools] == [None, SCHEMA]
        assert (definition.is_forced, definition.is_parallel) == (False, False)

    def test_none_sends_no_tools(self) -> None:
        request = ask(tools=[tool()], tool_choice={"type": "none"}).request
        assert (request.prompts[0].tools, request.constraint) == ("", None)
        assert request.text_format == TextFormat(None, thinks=True)


DOCUMENT = (
    'messages[0].content[1].type: expected "text" or "image" or "tool_result", got "document"; the server reads texts '
    "and images: put the text into a text block"
)
INNER_DOCUMENT = 'messages[0].content[1].content[0].type: expected "text" or "image", got "document"'
SEARCH = 'tools[0].type: expected "custom", got "web_search_20250305"; the server itself runs no tools'


def chosen(kind: str, *tools: Any, **fields: str) -> dict[str, Any]:
    return {"tools": list(tools), "tool_choice": {"type": kind, **fields}}


def block(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, fields]}]}


class TestRefusal:
    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"max_tokens": "absent"}, "max_tokens: expected an integer from 1 to 2147483647, got nothing"),
            ({"max_tokens": 0}, "max_tokens: expected an integer from 1"),
            ({"messages": []}, "messages: expected "),
            ({"messages": [{"role": "user", "content": []}]}, "messages[0].content: expected "),
            ({"messages": [{"role": [], "content": []}]}, "messages[0].role: expected "),
            ({"messages": [{"role": "tool", "content": "a"}]}, 'messages[0].role: expected "user" or '),
            ({"messages": [*USER, {"role": "assistant", "content": [CALL]}]}, "messages[1].content: expected a text"),
            ({"messages": BEGUN, "output_config": {"format": FORM}}, "output_config.format: expected none"),
            ({"messages": [{}] * 10_001}, "messages: expected at most 10000 messages, got 10001"),
            ({"messages": ["a"]}, "messages[0]: expected an object"),
            (block(type="document", source={}), DOCUMENT),
            (block(type="server_tool_use", id="a"), "the server itself runs no tools"),
            (block(type="web_search_tool_result"), "the server itself runs no tools"),
            (block(type="redacted_thinking", data="a"), "no model reads hidden thinking"),
            (block(**CALL), 'got "tool_use"'),
            (block(text="a"), "content[1].type: expected "),
            (block(type="text", text=1), "messages[0].content[1].text: expected a string, got 1"),
            (block(type="text", text="a", citations=[{}]), "messages[0].content[1].citations: expected "),
            (block(type="text", txt="a"), "messages[0].content[1].text: expected a string, got nothing"),
            (block(type="tool_result", tool_use_id="c", content=[{"type": "document"}]), INNER_DOCUMENT),
            ({"system": [{"type": "image"}]}, 'system[0].type: expected "text", got "image"'),
            ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, SEARCH),
            ({"tools": [tool(input_examples=[{}])]}, "tools[0].input_examples: expected "),
            ({"tools": [{"name": "a"}]}, "tools[0].input_schema: expected an object, got nothing"),
            ({"tools": [tool("a b")]}, 'got "a b"'),
            ({"tools": [tool("a"), tool("a")]}, "tools[1].name: expected different names"),
            (chosen("any", tool(input_schema={"type": "array"})), 'tools[0].input_schema: expected a schema'),
            ({"tools": [tool()] * 129}, "tools: expected at most 128 tools, got 129"),
            ({"tool_choice": {"type": "any"}}, "tool_choice: expected tools to choose from"),
            (chosen("tool", tool(), name="other"), 'tool_choice: expected the name of one of the tools, got "other"'),
            ({"tool_choice": "auto"}, "tool_choice: expected "),
            ({"stop_sequences": ["a" * 1000] * 3}, "stop_sequences: expected at most 2048 characters"),
            ({"thinking": {"type": "between_tools"}}, "thinking.type: expected "),
            ({"container": "c"}, "container: expected null"),
            ({"mcp_servers": [{}]}, "mcp_servers: expected []"),
            ({"max_token": 1}, 'max_token: unknown field; did you mean "max_tokens"'),
            ({"model": "no-template"}, "messages: expected a model with a chat template"),
            ({"model": "embed"}, "model: expected a model whose task is generate"),
            ({"model": "llama", "tools": [tool()]}, "tools: expected a model whose chat template shows"),
        ],
    )  # fmt: skip
    def test_invalid_request_names_field(self, fields: dict[str, Any], words: str) -> None:
        body = refusal(**fields)
        assert (body["type"], body["request_id"]) == ("error", "abc-1")
        assert body["error"]["type"] == "invalid_request_error"
        assert words in body["error"]["message"]

    def test_input_beyond_json_is_refused(self) -> None:
        deep: Any = 1
        for _ in range(300):
            deep = [deep]
        messages = [*USER, {"role": "assistant", "content": [{**CALL, "input": {"a": deep}}]}, *USER]
        assert "input of c1" in refusal(messages=messages)["error"]["message"]

    def test_schema_error_of_model_is_renamed(self) -> None:
        assert MESSAGES_CODEC.rename("tools[3]") == "tools[3].input_schema"
        assert MESSAGES_CODEC.rename("tools") == "tools"
        assert MESSAGES_CODEC.rename("constraint") == "output_config.format.schema"

    def test_count_accepts_no_max_tokens(self) -> None:
        assert "max_tokens" not in COUNT_TOKENS_CODEC.fields
        assert decode(COUNT_TOKENS_CODEC, messages=USER).body.model is None
