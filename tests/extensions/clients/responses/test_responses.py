"""/v1/responses: what reaches the model, what is refused, and responses parsed by OpenAI's own client."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from openai.types.responses import Response

from app.protocols.openai.codec import OpenAiRequest
from app.protocols.shared.errors import to_http
from extensions.clients.responses.codec import RESPONSES_CODEC as CODEC
from extensions.clients.responses.items import InputText, MessageItem
from frameworks.core.errors import InvalidInput, UnknownField
from frameworks.generation.tools.definition import ToolsDefinition
from frameworks.generation.types import (
    Choice,
    Constraint,
    Conversation,
    GenerateAnswer,
    Message,
    MessageCall,
    Sampling,
    Stopping,
    TokenText,
    Usage,
)
from tests.app.protocols.openai.decoding import CONTEXT, assert_refused, check_is, decode, decode_error, encode

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
USER = {"role": "user", "content": "How warm?"}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "12"}
CALLED = MessageCall("c1", "weather", '{"city": "Bern"}')
CALL_TEXT = '<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'


def ask(model: str = "caller", **fields: Any) -> OpenAiRequest:
    return decode(CODEC, **{"model": model, "input": "Hi", **fields})


def refused(field: str, *words: str, model: str = "caller", **fields: Any) -> None:
    assert_refused(CODEC, field, *words, **{"model": model, "input": "Hi", **fields})


def conversation(request: OpenAiRequest) -> Conversation:
    (prompt,) = request.request.prompts
    assert isinstance(prompt, Conversation)
    return prompt


def messages(items: Any, **fields: Any) -> tuple[Message, ...]:
    return conversation(ask(input=items, **fields)).messages


def respond(request: OpenAiRequest, text: str, reason: Any = "stop", tokens: Any = (), usage: Any = None) -> Any:
    """Return the response, which OpenAI's client can parse."""
    answer = GenerateAnswer([Choice(text, reason, list(tokens))], usage or Usage(9, 4, 2, 1))
    content = encode(CODEC, request, answer)
    known = {name: value for name, value in content.items() if name != "store"}
    check_is(Response, known)
    return content


class TestDecode:
    def test_text_is_message_of_user(self) -> None:
        request = ask("llama")
        assert conversation(request) == Conversation((Message("user", "Hi"),))
        assert request.request.sampling == Sampling(temperature=0.7, top_k=40)
        assert (request.request.stopping, request.request.constraint) == (Stopping(), None)
        assert (request.stream, request.priority, request.timeout_ms) == (False, 5, None)

    def test_instructions_are_first_message(self) -> None:
        items = [{"role": "developer", "content": "b"}, USER]
        assert messages(items, instructions="a") == (
            Message("system", "a"), Message("system", "b"), Message("user", "How warm?"),
        )  # fmt: skip

    def test_parts_are_joined(self) -> None:
        parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
        assert messages([{"type": "message", "role": "user", "content": parts}]) == (Message("user", "ab"),)
        answer = [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}]
        refusal = [{"type": "refusal", "refusal": "No."}]
        assert messages([{"role": "assistant", "content": each} for each in (answer, refusal)]) == (
            Message("assistant", "c"), Message("assistant", "No."),
        )  # fmt: skip

    def test_long_content_is_one_text(self) -> None:
        parts = [{"type": "input_text", "text": str(number)} for number in range(500)]
        body = ask(input=[{"role": "user", "content": parts}]).body
        assert body.input[0] == MessageItem(role="user", content="".join(map(str, range(500))))
        short = ask(input=[{"role": "user", "content": parts[:1]}]).body
        assert short.input[0].content == [InputText(type="input_text", text="0")]

    def test_items_of_one_turn_are_one_message(self) -> None:
        reasoning = {
            "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None, "status": "completed",
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        }  # fmt: skip
        text = {"type": "message", "id": "msg_1", "role": "assistant", "content": "I look.", "status": "completed"}
        other = {**CALL, "call_id": "c2", "id": "fc_2", "status": "completed"}
        assert messages([USER, reasoning, text, CALL, other, RESULT, {**RESULT, "call_id": "c2"}, text]) == (
            Message("user", "How warm?"),
            Message("assistant", "I look.", (CALLED, replace(CALLED, id="c2")), reasoning="Hm."),
            Message("tool", "12", tool_call_id="c1", name="weather"),
            Message("tool", "12", tool_call_id="c2", name="weather"),
            Message("assistant", "I look."),
        )

    def test_text_after_call_is_another_message(self) -> None:
        text = {"role": "assistant", "content": "Wait."}
        reasoning = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
        assert messages([CALL, text, reasoning]) == (
            Message("assistant", "", (CALLED,)), Message("assistant", "Wait."),
            Message("assistant", "", reasoning="Hm."),
        )  # fmt: skip

    def test_output_may_have_parts(self) -> None:
        result = {**RESULT, "output": [{"type": "input_text", "text": "1"}, {"type": "input_text", "text": "2"}]}
        assert messages([CALL, result])[1] == Message("tool", "12", tool_call_id="c1", name="weather")

    def test_options_reach_sampling(self) -> None:
        request = ask(temperature=0, top_p=0.5, max_output_tokens=7, seed=3, stream=True)
        assert request.request.sampling == Sampling(temperature=0, top_p=0.5, seed=3)
        assert request.request.stopping == Stopping(max_tokens=7)
        assert request.stream

    def test_ignore_eos_reaches_stopping(self) -> None:
        request = ask(max_output_tokens=7, ignore_eos=True, stop=None)
        assert request.request.stopping == Stopping(max_tokens=7, ignore_eos=True)

    def test_logprobs_are_included_on_request(self) -> None:
        include = ["message.output_text.logprobs"]
        assert ask(include=include).request.sampling.top_logprobs == 0
        assert ask(include=include, top_logprobs=3).request.sampling.top_logprobs == 3
        assert ask(include=[], top_logprobs=0).request.sampling.top_logprobs is None
        refused("top_logprobs", "message.output_text.logprobs", top_logprobs=3)

    def test_format_constrains_text(self) -> None:
        form: dict[str, Any] = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
        definition = orjson.dumps(SCHEMA).decode()
        assert ask("llama", text={"format": form}).request.constraint == Constraint("json_schema", definition)
        assert ask("llama", text={"format": {"type": "json_object"}}).request.constraint == Constraint("json_object")
        for text in (None, {}, {"format": None}, {"format": {"type": "text"}, "verbosity": "medium"}):
            assert ask("llama", text=text).request.constraint is None

    def test_effort_reaches_template(self) -> None:
        assert conversation(ask(reasoning={"effort": "low", "summary": "auto"})).reasoning_effort == "low"
        assert conversation(ask("llama", reasoning={"effort": "none"})).reasoning_effort is None
        unread = ask("llama", reasoning={"effort": "low"})
        assert (conversation(unread).reasoning_effort, unread.ignored) == (None, ("reasoning.effort",))


class TestTools:
    def test_template_gets_tools(self) -> None:
        shown = orjson.loads(conversation(ask(tools=[TOOL])).tools)
        assert shown == [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
        assert conversation(ask(tools=[TOOL], tool_choice="none")).tools == ""

    @pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
    def test_forced_call_is_constrained(self, choice: Any) -> None:
        constraint = ask(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False).request.constraint
        assert constraint is not None
        definition = ToolsDefinition.from_json(constraint.definition)
        assert (definition.is_forced, definition.is_parallel) == (True, False)
        assert [tool.name for tool in definition.tools] == ["weather"]

    def test_tools_are_refused_by_name(self) -> None:
        refused("tools[1].type", '"web_search"', "function of the client", tools=[TOOL, {"type": "web_search"}])
        refused("tools[0].type", '"custom"', tools=[{"type": "custom", "name": "a"}])
        refused("tools[0].defer_loading", "expected false", tools=[{**TOOL, "defer_loading": True}])
        refused(
            "tool_choice.type", "only those tools", tools=[TOOL], tool_choice={"type": "allowed_tools", "tools": []}
        )
        refused("tool_choice.type", '"function"', tools=[TOOL], tool_choice={"type": "web_search_preview"})
        refused("tool_choice", "send tools", tool_choice="required")
        refused("tools", "set tool_format", model="llama", tools=[TOOL])

    def test_errors_name_fields_of_route(self) -> None:
        twice = decode_error(CODEC, model="caller", input="Hi", tools=[TOOL, TOOL])
        body = orjson.loads(CODEC.error_body(to_http(twice), "id"))
        assert body["error"]["param"] == "tools[1].name"
        for field, name in (
            ("tools[3]", "tools[3].parameters"), ("messages", "input"), ("max_tokens", "max_output_tokens"),
            ("constraint", "text.format.schema"), ("temperature", "temperature"),
        ):  # fmt: skip
            body = orjson.loads(CODEC.error_body(to_http(InvalidInput(field, "expected a, got b")), "id"))
            assert body["error"]["param"] == name
            assert body["error"]["message"] == f"{name}: expected a, got b"


class TestRefusals:
    @pytest.mark.parametrize(
        ("field", "value", "word"),
        [
            ("store", True, "no response is stored"),
            ("previous_response_id", "resp_1", "send the items of earlier turns"),
            ("conversation", "conv_1", "send the items of earlier turns"),
            ("background", True, "stream"),
            ("prompt", {"id": "p"}, "instructions"),
            ("max_tool_calls", 3, "limit the calls"),
            ("messages", [USER], "send input"),
            ("max_tokens", 5, "max_output_tokens"),
            ("response_format", {"type": "text"}, "text"),
            ("reasoning_effort", "low", "reasoning"),
            ("stop", ["a"], "/v1/chat/completions"),
        ],
    )
    def test_field_is_refused_with_remedy(self, field: str, value: Any, word: str) -> None:
        refused(field, "expected ", word, **{field: value})

    @pytest.mark.parametrize(
        ("field", "item"),
        [
            ("input[1].type", {"type": "item_reference", "id": "msg_1"}),
            ("input[1].type", {"type": "web_search_call", "id": "ws_1"}),
            ("input[1].type", {"content": "a"}),
            ("input[1].role", {"role": "tool", "content": "a"}),
            ("input[1].content", {"role": "user"}),
            ("input[1].content", {"role": "user", "content": None}),
            ("input[1].content[0].image_url", {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}),
            ("input[1].content[0].type", {"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}),
            ("input[1].output[0].type", {**RESULT, "output": [{"type": "input_file", "file_id": "x"}]}),
            ("input[1].call_id", {"type": "function_call", "name": "a", "arguments": "{}"}),
            ("input[1].namespace", {**CALL, "namespace": "a"}),
            ("input[1].encrypted_content", {"type": "reasoning", "summary": [], "encrypted_content": "x"}),
            ("input[1]", "Hi"),
            ("input", None),
        ],
    )
    def test_item_is_refused_by_name(self, field: str, item: Any) -> None:
        refused(field, "expected ", input=[USER, item] if item is not None else [])

    def test_only_texts_and_images_are_read(self) -> None:
        file = {"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}
        refused("input[0].content[0].type", '"input_file"', "the server reads text and images", input=[file])

    def test_unknown_fields_are_refused(self) -> None:
        assert isinstance(decode_error(CODEC, model="caller", input="Hi", temprature=1), UnknownField)
        assert isinstance(decode_error(CODEC, model="caller", input=[{**USER, "name": "a"}]), UnknownField)
        assert isinstance(decode_error(CODEC, model="caller", input="Hi", text={"formt": {}}), UnknownField)

    def test_other_values_are_refused(self) -> None:
        refused("include[0]", "message.output_text.logprobs", include=["file_search_call.results"])
        refused("stream_options", '"stream": true', stream_options={"include_obfuscation": False})
        refused("input", "10000 items", input=[USER] * 10_001)
        refused("input", '"no-template"', model="no-template")
        refused("model", "task is embed", model="embed")

    def test_harmless_fields_are_accepted(self) -> None:
        fields: dict[str, Any] = {
            "store": False, "background": False, "truncation": "disabled", "service_tier": "auto", "prompt": None,
            "include": ["reasoning.encrypted_content"], "previous_response_id": None, "max_tool_calls": None,
            "user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"}, "tools": [],
        }  # fmt: skip
        assert ask(**fields).request == ask().request

    def test_fields_without_effect_are_named(self) -> None:
        asked = ask(service_tier="flex", prompt_cache_options={"mode": "explicit"})
        assert asked.request == ask().request
        assert set(asked.ignored) == {"service_tier", "prompt_cache_options"}

    def test_options_without_effect_are_named(self) -> None:
        asked = ask(reasoning={"summary": "detailed"}, text={"verbosity": "low"}, truncation="auto")
        assert set(asked.ignored) == {"reasoning.summary", "text.verbosity", "truncation"}
        assert asked.request == ask().request

    def test_obfuscation_is_named_as_ignored(self) -> None:
        asked = ask(stream=True, stream_options={"include_obfuscation": True})
        assert CODEC.headers_of(asked) == [(b"x-roundhouse-ignored", b"stream_options.include_obfuscation")]


class TestWhole:
    def test_text_is_message(self) -> None:
        content = respond(ask("llama", temperature=0, max_output_tokens=9), "Hello.")
        (item,) = content["output"]
        assert item.pop("id").startswith("msg_")
        part = {"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}
        assert item == {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
        assert (content["id"], content["object"], content["status"]) == ("resp_abc-1", "response", "completed")
        assert (content["created_at"], content["completed_at"]) == (CONTEXT.created_s, CONTEXT.created_s + 0)
        assert (content["error"], content["incomplete_details"], content["store"]) == (None, None, False)
        assert (content["temperature"], content["max_output_tokens"], content["model"]) == (0, 9, "llama")
        assert content["usage"] == {
            "input_tokens": 9, "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
            "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 13,
        }  # fmt: skip

    def test_request_is_repeated(self) -> None:
        form = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
        chosen = {"type": "function", "name": "weather"}
        content = respond(
            ask(
                tools=[TOOL], tool_choice=chosen, instructions="Be short.", metadata={"a": "b"}, user="u",
                text={"format": form}, reasoning={"effort": "low"}, parallel_tool_calls=False,
            ),
            CALL_TEXT,
        )  # fmt: skip
        assert content["tools"] == [{**TOOL, "description": None, "strict": False}]
        assert content["text"] == {"format": {**form, "description": None}}
        assert (content["tool_choice"], content["parallel_tool_calls"]) == (chosen, False)
        assert content["reasoning"] == {"effort": "low", "summary": None}
        assert (content["instructions"], content["metadata"], content["user"]) == ("Be short.", {"a": "b"}, "u")

    def test_cut_text_is_incomplete(self) -> None:
        content = respond(ask("llama"), "Hel", "length")
        assert (content["status"], content["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert content["output"][0]["status"] == "incomplete"
        assert content["completed_at"] is None

    def test_parts_are_items(self) -> None:
        content = respond(ask(tools=[TOOL]), f"<think>Hm.</think>I look.{CALL_TEXT}{CALL_TEXT}")
        reasoning, message, first, second = content["output"]
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert (reasoning["summary"], reasoning["status"]) == ([], "completed")
        assert message["content"][0]["text"] == "I look."
        for call in (first, second):
            assert (call["name"], call["arguments"], call["status"]) == ("weather", '{"city": "Bern"}', "completed")
            assert call["call_id"].startswith("call_")
        assert len({item["id"] for item in content["output"]}) == 4

    def test_cut_call_is_incomplete(self) -> None:
        (call,) = respond(ask(tools=[TOOL]), CALL_TEXT[:-20], "length")["output"]
        assert (call["type"], call["status"]) == ("function_call", "incomplete")

    @pytest.mark.parametrize(
        ("text", "reason", "kinds"),
        [
            ("", "stop", ["message"]),
            ("", "length", ["message"]),
            ("<think>Hm.</think>", "stop", ["reasoning", "message"]),
            ("<think>Hm", "length", ["reasoning"]),
            (CALL_TEXT, "stop", ["function_call"]),
        ],
    )
    def test_response_without_content(self, text: str, reason: str, kinds: list[str]) -> None:
        assert [item["type"] for item in respond(ask(tools=[TOOL]), text, reason)["output"]] == kinds

    def test_logprobs_are_of_content(self) -> None:
        request = ask(include=["message.output_text.logprobs"], top_logprobs=1, tools=[TOOL])
        texts = ["<think>", "Hm", "</think>", "\n", "I", " look.", CALL_TEXT]
        tokens = [TokenText(number, text, -0.5, ((7, "x", -1.0),)) for number, text in enumerate(texts)]
        _, message, _ = respond(request, "".join(texts), "stop", tokens)["output"]
        top = [{"token": "x", "logprob": -1.0, "bytes": [120]}]
        assert message["content"][0]["logprobs"] == [
            {"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": top}
            for text in ("I", " look.")
        ]

    def test_bytes_of_part_of_character(self) -> None:
        request = ask("llama", include=["message.output_text.logprobs"])
        tokens = [TokenText(i, "\ufffd", -0.5, parts=((i, bytes([byte])),)) for i, byte in enumerate("é".encode())]
        (message,) = respond(request, "é", "stop", tokens)["output"]
        assert [each["bytes"] for each in message["content"][0]["logprobs"]] == [[0xC3], [0xA9]]

    def test_long_texts_are_parsed_elsewhere(self) -> None:
        long = GenerateAnswer([Choice("x" * 20_000, "stop")], Usage(1, 1))
        assert CODEC.is_long_to_write(ask(tools=[TOOL]), long)
        assert not CODEC.is_long_to_write(ask("llama"), long)
