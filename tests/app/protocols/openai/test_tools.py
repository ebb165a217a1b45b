"""Tools of chat requests: what reaches the model, what is refused, and how responses show calls."""

import json
from typing import Any

import orjson
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from app.protocols.openai.chat import CHAT_CODEC
from app.protocols.openai.codec import OpenAiRequest
from frameworks.core.errors import InvalidInput
from frameworks.generation.tools.definition import ToolsDefinition
from frameworks.generation.tools.formats import TextFormat
from frameworks.generation.types import Choice, Constraint, GenerateAnswer, MessageCall, TextDelta, TokenText, Usage
from tests.app.protocols.openai.decoding import CONTEXT, assert_refused, check_is, decode, encode, events

MESSAGES = [{"role": "user", "content": "How warm?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}


def tool(name: str = "weather", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS, **function}}


def chat(**fields: object) -> OpenAiRequest:
    return decode(CHAT_CODEC, **{"model": "caller", "messages": MESSAGES, "tools": [tool()], **fields})


def refused(field: str, *words: str, **fields: object) -> None:
    assert_refused(CHAT_CODEC, field, *words, **{"model": "caller", "messages": MESSAGES, "tools": [tool()], **fields})


def definition_of(request: OpenAiRequest) -> ToolsDefinition:
    constraint = request.request.constraint
    assert constraint.kind == "tools"
    return ToolsDefinition.from_json(constraint.definition)


class TestRequest:
    def test_auto_is_default_without_constraint(self) -> None:
        request = chat().request
        assert request.constraint is None
        assert request.text_format == TextFormat("hermes", thinks=True)
        assert json.loads(request.prompts[0].tools) == [tool()]
        assert chat(tool_choice="auto").request == request

    def test_template_gets_parameters_and_no_strict(self) -> None:
        request = chat(tools=[{"type": "function", "function": {"name": "now", "strict": False}}]).request
        function = {"name": "now", "parameters": {"type": "object", "properties": {}}}
        assert json.loads(request.prompts[0].tools) == [{"type": "function", "function": function}]

    def test_none_sends_no_tools(self) -> None:
        neutral: list[dict[str, Any]] = [
            {"tool_choice": "none"},
            {"tools": []},
            {"tools": None},
            {"tools": [], "tool_choice": "auto"},
        ]
        for fields in neutral:
            request = chat(**fields).request
            assert (request.prompts[0].tools, request.constraint) == ("", None)
            assert request.text_format == TextFormat(None, thinks=True)

    def test_required_forces_any_tool(self) -> None:
        definition = definition_of(chat(tools=[tool("a"), tool("b")], tool_choice="required"))
        assert (definition.is_forced, definition.is_parallel, definition.thinks) == (True, True, True)
        assert [(each.index, each.name, each.schema) for each in definition.tools] == [
            (0, "a", PARAMETERS),
            (1, "b", PARAMETERS),
        ]

    @pytest.mark.parametrize("kind", [{"type": "function"}, {}])
    def test_named_function_is_only_one(self, kind: dict[str, object]) -> None:
        choice = {**kind, "function": {"name": "b"}}
        definition = definition_of(chat(tools=[tool("a"), tool("b")], tool_choice=choice))
        assert [(each.index, each.name) for each in definition.tools] == [(1, "b")]
        assert not definition.is_parallel

    def test_strict_tool_is_held(self) -> None:
        definition = definition_of(chat(tools=[tool("a"), tool("b", strict=True)], parallel_tool_calls=False))
        assert (definition.is_forced, definition.is_parallel, definition.content) == (False, False, None)
        assert [each.schema for each in definition.tools] == [None, PARAMETERS]

    def test_response_format_replaces_free_text(self) -> None:
        schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}
        assert definition_of(chat(response_format=schema)).content == {"type": "null"}
        assert definition_of(chat(response_format={"type": "json_object"})).content == {"type": "object"}
        of_tgi = {"type": "json_object", "value": {"type": "null"}}
        assert definition_of(chat(response_format=of_tgi)).content == {"type": "null"}
        assert definition_of(chat(response_format=schema, tool_choice="required")).content is None
        refused("tools", "response_format", choice=["a"])

    def test_format_without_tools_follows_thinking(self) -> None:
        request = chat(tools=[], response_format={"type": "json_object"}).request
        assert request.constraint == Constraint("json_object", thinks=True)
        assert request.text_format == TextFormat(None, thinks=True)

    def test_calls_and_results_reach_template(self) -> None:
        call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
        messages = [
            *MESSAGES,
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm."},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "12"}]},
        ]
        _, called, result = chat(messages=messages).request.prompts[0].messages
        assert called.tool_calls == (MessageCall("c1", "weather", '{"city": "Bern"}'),)
        assert (called.content, called.reasoning) == ("", "Hm.")
        assert (result.content, result.tool_call_id, result.name) == ("12", "c1", "weather")

    def test_reasoning_effort_reaches_template(self) -> None:
        assert chat(reasoning_effort="low").request.prompts[0].reasoning_effort == "low"
        assert chat().request.prompts[0].reasoning_effort is None


class TestRefusal:
    @pytest.mark.parametrize(
        ("tools", "field", "word"),
        [
            ([tool("a b")], "tools[0].function.name", 'got "a b"'),
            ([tool("a"), tool("a")], "tools[1].function.name", '"a" twice'),
            ([tool(parameters=[])], "tools[0].function.parameters", "expected an object"),
            ([{"type": "web_search"}], "tools[0].type", '"function"'),
            ([tool()] * 129, "tools", "at most 128 tools, got 129"),
            ([tool(description="x" * 70_000)], "tools[0]", "at most 65536 bytes"),
            ([tool(f"f{i}", description="x" * 60_000) for i in range(5)], "tools", "at most 262144 bytes in all"),
        ],
    )
    def test_invalid_tools_are_refused(self, tools: object, field: str, word: str) -> None:
        refused(field, "expected ", word, tools=tools)

    def test_deep_schema_is_refused(self) -> None:
        schema: dict[str, Any] = {}
        for _ in range(40):
            schema = {"items": schema}
        refused("tools[1]", "at most 32 objects and lists", tools=[tool("a"), tool("b", parameters=schema)])

    def test_choice_without_its_tool_is_refused(self) -> None:
        refused("tool_choice", "got none", tools=[], tool_choice="required")
        refused("tool_choice", '"other"', tool_choice={"type": "function", "function": {"name": "other"}})
        refused("tool_choice", '"some"', tool_choice="some")

    def test_forced_schema_must_be_object(self) -> None:
        array = [tool(), tool("b", parameters={"type": "array"})]
        refused("tools[1].function.parameters", 'got "array"', tools=array, tool_choice="required")

    def test_schema_error_of_model_is_renamed(self) -> None:
        assert CHAT_CODEC.rename("tools[3]") == "tools[3].function.parameters"
        assert CHAT_CODEC.rename("tools") == "tools"
        with pytest.raises(InvalidInput):
            chat(model="llama")


# Beginnings of texts, with the content, the reasoning and the names of the calls that they hold.
CUT_TEXTS = [
    ("<tool_call>\n", "", None, []),
    ('I look. <tool_call>\n{"name"', "I look.", None, []),
    ('<tool_call>\n{"name": "weather", "argu', None, None, ["weather"]),
    ("<think>\nHm.\n</thi", "", "Hm.", []),
    ("<thi", "", None, []),
]
CALL = '<think>\nHm.\n</think>\n\nI look. <tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'


class TestResponse:
    def test_call_is_shown_beside_content(self) -> None:
        given = GenerateAnswer([Choice(CALL, "stop"), Choice("No.", "stop")], Usage(5, 9))
        body = encode(CHAT_CODEC, chat(n=2), given)
        first, second = body["choices"]
        (call,) = first["message"].pop("tool_calls")
        assert call.pop("id").startswith("call_")
        assert call == {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
        expected = {"role": "assistant", "content": "I look.", "refusal": None, "reasoning_content": "Hm."}
        assert first == {"index": 0, "message": expected, "logprobs": None, "finish_reason": "tool_calls"}
        assert second["finish_reason"] == "stop"
        assert "tool_calls" not in second["message"]
        ChatCompletion.model_validate(body, strict=True)

    def test_call_cut_off_has_reason_length(self) -> None:
        body = encode(CHAT_CODEC, chat(), GenerateAnswer([Choice(CALL[:-20], "length")], Usage(5, 9)))
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"city"')

    @pytest.mark.parametrize(("text", "content", "reasoning", "names"), CUT_TEXTS)
    def test_cut_text_shows_no_markup(
        self, text: str, content: str | None, reasoning: str | None, names: list[str]
    ) -> None:
        body = encode(CHAT_CODEC, chat(), GenerateAnswer([Choice(text, "length")], Usage(5, 9)))
        (choice,) = body["choices"]
        message = choice["message"]
        assert (message["content"], message["reasoning_content"]) == (content, reasoning)
        assert [call["function"]["name"] for call in message.get("tool_calls", ())] == names
        writer = CHAT_CODEC.stream_writer(chat(stream=True), CONTEXT)
        pieces = [TextDelta(0, character) for character in text] + [TextDelta(0, "", "length")]
        chunks = events([payload for piece in pieces for payload in writer.piece(piece)])
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == (content or "")
        assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"] == "length"

    def test_single_call_is_first_of_several(self) -> None:
        given = GenerateAnswer([Choice(CALL + CALL[CALL.index("<tool") :], "stop")], Usage(5, 9))
        assert len(encode(CHAT_CODEC, chat(), given)["choices"][0]["message"]["tool_calls"]) == 2
        single = encode(CHAT_CODEC, chat(parallel_tool_calls=False), given)
        assert len(single["choices"][0]["message"]["tool_calls"]) == 1

    def test_long_text_is_parsed_off_loop(self) -> None:
        long = GenerateAnswer([Choice("x" * 20_000, "stop")], Usage(1, 1))
        assert CHAT_CODEC.is_long_to_write(chat(), long)
        assert not CHAT_CODEC.is_long_to_write(decode(CHAT_CODEC, model="llama", messages=MESSAGES), long)

    def test_stream_sends_deltas_in_order(self) -> None:
        writer = CHAT_CODEC.stream_writer(chat(stream=True), CONTEXT)
        pieces = [TextDelta(0, character) for character in CALL] + [TextDelta(0, "", "stop")]
        chunks = events([payload for piece in pieces for payload in writer.piece(piece)])
        deltas = [check_delta(chunk) for chunk in chunks]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
        assert "".join(delta.get("content", "") for delta in deltas) == "I look."
        first, *others = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert (first["index"], first["type"], first["function"]) == (
            0,
            "function",
            {"name": "weather", "arguments": ""},
        )
        assert all(call.keys() == {"index", "function"} for call in others)
        assert "".join(call["function"]["arguments"] for call in others) == '{"city": "Bern"}'
        assert len(others) > 5
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"

    def test_held_piece_keeps_its_logprobs(self) -> None:
        writer = CHAT_CODEC.stream_writer(chat(stream=True, logprobs=True), CONTEXT)
        token = TokenText(7, "<tool", -0.5)
        (chunk,) = events(writer.piece(TextDelta(0, "<tool", None, (token,))))
        assert chunk["choices"][0]["delta"] == {"content": ""}
        assert len(chunk["choices"][0]["logprobs"]["content"]) == 1


def check_delta(chunk: Any) -> dict[str, Any]:
    """Return the delta of a chunk, which OpenAI's client can parse."""
    delta: dict[str, Any] = chunk["choices"][0]["delta"]
    plain = orjson.loads(orjson.dumps(chunk))
    plain["choices"][0]["delta"].pop("reasoning_content", None)
    check_is(ChatCompletionChunk, plain)
    return delta
