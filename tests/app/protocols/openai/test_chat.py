"""/v1/chat/completions: bodies decoded, and responses parsed by OpenAI's own client."""

import json
import math

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from app.protocols.openai.chat import CHAT_CODEC
from app.protocols.openai.codec import OpenAiRequest
from app.protocols.openai.tokens import TOKENIZE_CODEC
from app.protocols.shared.codec import EncodedResponse
from app.protocols.shared.errors import ErrorReply
from frameworks.core.errors import UnknownField
from frameworks.generation.types import (
    Choice,
    Constraint,
    Conversation,
    GenerateAnswer,
    GenerateRequest,
    Message,
    Sampling,
    Stopping,
    TextDelta,
    TokenText,
    Usage,
)
from tests.app.protocols.openai.decoding import CONTEXT, assert_refused, check_is, decode, decode_error, encode, events

MESSAGES = [{"role": "user", "content": "Hello"}]
CONVERSATION = Conversation((Message("user", "Hello"),))
TOKENS = (
    TokenText(7, "é", -0.5, ((7, "é", -0.5), (8, "\ufffd", -1.5)), parts=((8, b"\xf0\x9f"),)),
    TokenText(9, "\ufffd", -3.0, parts=((9, b"\x98"),)),
)
LOGPROBS = {
    "content": [
        {
            "token": "é", "logprob": -0.5, "bytes": [195, 169],
            "top_logprobs": [
                {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
                {"token": "\ufffd", "logprob": -1.5, "bytes": [240, 159]},
            ],
        },
        {"token": "\ufffd", "logprob": -3.0, "bytes": [152], "top_logprobs": []},
    ],
    "refusal": None,
}  # fmt: skip


def chat(**fields: object) -> OpenAiRequest:
    return decode(CHAT_CODEC, **{"model": "llama", "messages": MESSAGES, **fields})


def refused(field: str, *words: str, **fields: object) -> None:
    assert_refused(CHAT_CODEC, field, *words, **{"model": "llama", "messages": MESSAGES, **fields})


class TestRequest:
    def test_request_without_options_has_defaults(self) -> None:
        assert chat().request == GenerateRequest((CONVERSATION,), Sampling(temperature=0.7, top_k=40), Stopping(None))

    def test_chat_options_reach_request(self) -> None:
        request = chat(
            max_completion_tokens=9, logprobs=True, top_logprobs=20, n=3, seed=1,
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}},
        )  # fmt: skip
        assert request.request == GenerateRequest(
            (CONVERSATION,),
            Sampling(temperature=0.7, top_k=40, seed=1, top_logprobs=20),
            Stopping(9),
            Constraint("json_schema", '{"type":"null"}'),
            3,
        )

    def test_max_tokens_by_either_name(self) -> None:
        for name in ("max_tokens", "max_completion_tokens"):
            assert chat(**{name: 7}).request.stopping.max_tokens == 7
            refused(name, "expected an integer from 1", **{name: 0})
        assert chat(max_tokens=7, max_completion_tokens=7).request.stopping.max_tokens == 7
        refused("max_tokens", "max_completion_tokens", max_tokens=7, max_completion_tokens=8)

    def test_logprobs(self) -> None:
        assert chat(logprobs=True).request.sampling.top_logprobs == 0
        assert chat(logprobs=False).request.sampling.top_logprobs is None
        refused("top_logprobs", '"logprobs": true', top_logprobs=3)
        refused("top_logprobs", "from 0 to 20", logprobs=True, top_logprobs=21)
        refused("logprobs", "a boolean", logprobs=3)

    def test_model_without_chat_template_is_refused(self) -> None:
        refused("messages", '"no-template"', "/v1/completions", model="no-template")

    @pytest.mark.parametrize(
        "neutral",
        [
            {"tools": [], "tool_choice": "none", "parallel_tool_calls": False},
            {"functions": [], "function_call": "auto"},
            {"modalities": ["text"], "audio": None, "prediction": None},
            {"store": False, "metadata": {"run": "1"}, "user": "me", "safety_identifier": "s", "prompt_cache_key": "k"},
            {"service_tier": "auto", "reasoning_effort": "none", "verbosity": "medium"},
            {"add_generation_prompt": True, "echo": False, "top_logprobs": None, "response_format": {"type": "text"}},
        ],
    )
    def test_neutral_value_of_refused_field_is_accepted(self, neutral: dict[str, object]) -> None:
        assert chat(**neutral).request == chat().request

    @pytest.mark.parametrize(
        ("field", "value", "word"),
        [
            ("tools", [{"type": "function", "function": {"name": "f"}}], "set tool_format"),
            ("tool_choice", "required", "expected tools to choose from, got none"),
            ("functions", [{"name": "f"}], "send tools"),
            ("audio", {"voice": "ash", "format": "wav"}, "only text"),
            ("modalities", ["text", "audio"], "only text"),
            ("web_search_options", {}, "message"),
            ("echo", True, "expected false, got true; "),
            ("echo", 0, "expected false, got 0; "),
            ("moderation", {"model": "m"}, "expected null, got an object; "),
            ("chat_template", "{{ messages }}", "/v1/completions"),
        ],
    )
    def test_refused_field_is_named_with_remedy(self, field: str, value: object, word: str) -> None:
        refused(field, "expected ", word, **{field: value})

    def test_fields_without_effect_are_named(self) -> None:
        fields = {
            "store": True, "service_tier": "flex", "prediction": {"type": "content", "content": "x"},
            "prompt_cache_retention": "24h", "stream_interval": 4, "guided_decoding_backend": "outlines",
        }  # fmt: skip
        request = chat(**fields, reasoning_effort="low")
        assert request.request == chat().request
        assert set(request.ignored) == {*fields, "reasoning_effort"}

    def test_variables_reach_template(self) -> None:
        request = chat(model="caller", chat_template_kwargs={"enable_thinking": False, "color": 1, "tools": None})
        assert json.loads(request.request.prompts[0].variables) == {"enable_thinking": False}
        assert request.ignored == ("chat_template_kwargs.color",)

    def test_unread_fields_are_named_in_header(self) -> None:
        request = chat(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False, "a b\r\nx: y": 1})
        assert request.request == chat().request
        named = [(b"x-roundhouse-ignored", b"reasoning_effort, chat_template_kwargs.enable_thinking")]
        encoded = CHAT_CODEC.encode(request, GenerateAnswer([Choice("Hi", "stop")], Usage(1, 1)), CONTEXT)
        assert isinstance(encoded, EncodedResponse)
        assert (encoded.content_type, encoded.headers) == (b"application/json", named)
        assert CHAT_CODEC.headers_of(request) == named
        assert CHAT_CODEC.headers_of(chat(model="caller", reasoning_effort="low")) == []
        (hidden,) = CHAT_CODEC.headers_of(chat(chat_template_kwargs={"é": 1}))
        assert hidden == (b"x-roundhouse-ignored", b"others")

    @pytest.mark.parametrize(
        ("fields", "ending"),
        [
            ({}, "response"),
            ({"add_generation_prompt": True, "continue_final_message": None}, "response"),
            ({"add_generation_prompt": False}, "messages"),
            ({"continue_final_message": True}, "last_message"),
            ({"continue_final_message": True, "add_generation_prompt": False}, "last_message"),
        ],
    )
    def test_fields_say_where_prompt_ends(self, fields: dict[str, object], ending: str) -> None:
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        assert chat(messages=turns, **fields).request.prompts[0].ending == ending
        assert decode(TOKENIZE_CODEC, model="llama", messages=turns, **fields).request.prompt.ending == ending

    @pytest.mark.parametrize(
        ("last", "fields", "field", "words"),
        [
            ({"role": "assistant", "content": "b"}, {"add_generation_prompt": True}, "add_generation_prompt", "false"),
            ({"role": "user", "content": "b"}, {}, "messages", 'got one of the role "user"'),
            ({"role": "assistant", "content": ""}, {}, "messages", "got one without text"),
        ],
    )
    def test_message_that_cannot_continue_is_refused(
        self, last: object, fields: dict[str, object], field: str, words: str
    ) -> None:
        refused(field, words, messages=[last], continue_final_message=True, **fields)

    @pytest.mark.parametrize(
        ("variables", "field", "words"),
        [
            ({"messages": []}, ".messages", "send the field messages"),
            ({"add_generation_prompt": False}, ".add_generation_prompt", "as a field of the body"),
            ({"date_string": "x" * 20_000}, "", "at most 16384 bytes, got 20018"),
            ({f"v{number}": 1 for number in range(33)}, "", "at most 32"),
            ("no", "", "expected an object"),
        ],
    )
    def test_variables_out_of_bounds_are_refused(self, variables: object, field: str, words: str) -> None:
        refused(f"chat_template_kwargs{field}", words, model="caller", chat_template_kwargs=variables)

    def test_deep_variable_is_refused(self) -> None:
        deep = json.loads("[" * 300 + "]" * 300)
        body = {"model": "caller", "messages": MESSAGES, "chat_template_kwargs": {"date_string": deep}}
        error = decode_error(CHAT_CODEC, json.dumps(body).encode())
        assert error.message.startswith("chat_template_kwargs: expected valid JSON, got an error: ")

    def test_unknown_field_names_nearest_known(self) -> None:
        error = decode_error(CHAT_CODEC, model="llama", messages=MESSAGES, temprature=1)
        assert isinstance(error, UnknownField)
        assert 'did you mean "temperature"?' in error.message


class TestMessages:
    def test_roles_and_text_parts_are_read(self) -> None:
        messages = [
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
            {"role": "assistant", "content": "Yes?", "refusal": None, "tool_calls": [], "annotations": []},
        ]
        assert chat(messages=messages).request.prompts == (
            Conversation((Message("system", "Be short."), Message("user", "Hello"), Message("assistant", "Yes?"))),
        )

    def test_response_message_is_accepted_as_request_message(self) -> None:
        body = encode(CHAT_CODEC, chat(), GenerateAnswer([Choice("Yes?", "stop")], Usage(1, 1)))
        message = check_is(ChatCompletion, body).choices[0].message.model_dump()
        assert chat(messages=[*MESSAGES, message]).request.prompts[0].messages[1] == Message("assistant", "Yes?")

    @pytest.mark.parametrize(
        ("message", "field", "word"),
        [
            ("Hello", "messages[1]", 'got "Hello"'),
            ({"role": "user"}, "messages[1].content", "string"),
            ({"role": "assistant", "content": None}, "messages[1].content", "null"),
            ({"role": "user", "content": "x", "name": 1}, "messages[1].name", "string"),
            ({"role": "function", "content": "x"}, "messages[1].role", "tool_calls"),
            ({"role": "tool", "content": "x", "tool_call_id": 1}, "messages[1].tool_call_id", "string"),
            ({"role": "assistant", "tool_calls": []}, "messages[1].content", "string"),
            ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[1].tool_calls[0].id", "nothing"),
            ({"role": 1, "content": "x"}, "messages[1].role", "string"),
            (
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
                "messages[1].content[0].image_url.url",
                "expected base64",
            ),
            ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[1].content[0].type", '"image_url"'),
            ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text", "nothing"),
            ({"role": "user", "content": ["x"]}, "messages[1].content[0]", "text"),
        ],
    )
    def test_invalid_message_is_refused(self, message: object, field: str, word: str) -> None:
        refused(field, word, messages=[MESSAGES[0], message])

    @pytest.mark.parametrize("messages", [None, [], "Hello", {"role": "user", "content": "x"}])
    def test_invalid_messages_are_refused(self, messages: object) -> None:
        refused("messages", "expected a list of 1 to 10000 objects", messages=messages)

    def test_unknown_message_field_is_refused(self) -> None:
        error = decode_error(CHAT_CODEC, model="llama", messages=[{"role": "user", "content": "x", "weight": 1}])
        assert isinstance(error, UnknownField)
        assert error.field == "messages[0].weight"


class TestResponse:
    def test_response_has_each_choice(self) -> None:
        given = GenerateAnswer([Choice("Hi", "length"), Choice("Ho", "stop")], Usage(5, 3, 4, 2, 1, 7))
        body = encode(CHAT_CODEC, chat(n=2), given)
        assert {name: body[name] for name in ("id", "object", "created", "model")} == {
            "id": "chatcmpl-abc-1", "object": "chat.completion", "created": 1_700_000_000, "model": "llama"
        }  # fmt: skip
        assert body["choices"][1] == {
            "index": 1,
            "message": {"role": "assistant", "content": "Ho", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
        completion = check_is(ChatCompletion, body)
        assert completion.usage is not None
        assert completion.usage.prompt_tokens_details is not None
        assert completion.usage.prompt_tokens_details.cached_tokens == 4
        assert completion.usage.completion_tokens_details is not None
        assert completion.usage.completion_tokens_details.reasoning_tokens == 2
        assert completion.usage.completion_tokens_details.accepted_prediction_tokens == 1
        assert completion.usage.completion_tokens_details.rejected_prediction_tokens == 7

    def test_logprobs(self) -> None:
        given = GenerateAnswer([Choice("é\ufffd", "stop", [*TOKENS])], Usage(5, 2))
        body = encode(CHAT_CODEC, chat(logprobs=True, top_logprobs=2), given)
        assert body["choices"][0]["logprobs"] == LOGPROBS
        check_is(ChatCompletion, body)

    def test_infinite_logprob_is_written_as_number(self) -> None:
        token = TokenText(7, "a", -0.5, ((7, "a", -0.5), (8, "b", -math.inf)))
        given = GenerateAnswer([Choice("a", "stop", [token])], Usage(5, 1))
        body = encode(CHAT_CODEC, chat(logprobs=True, top_logprobs=2), given)
        (told,) = body["choices"][0]["logprobs"]["content"]
        assert [each["logprob"] for each in told["top_logprobs"]] == [-0.5, -9999.0]
        check_is(ChatCompletion, body)


class TestStream:
    def test_stream_sends_role_pieces_and_finish_reason(self) -> None:
        writer = CHAT_CODEC.stream_writer(chat(stream=True, n=2), CONTEXT)
        payloads = [
            *writer.begin(Usage(5, 0)),
            *writer.piece(TextDelta(1, "Hi")),
            *writer.piece(TextDelta(0, "Ho", "stop")),
            *writer.piece(TextDelta(1, "", "length")),
            *writer.end(Usage(5, 3), 1.0),
        ]
        *chunks, done = events(payloads)
        assert done == b"[DONE]"
        assert all("usage" not in chunk for chunk in chunks)
        said = [
            (choice.index, choice.delta.role, choice.delta.content, choice.finish_reason)
            for chunk in chunks
            for choice in check_is(ChatCompletionChunk, chunk).choices
        ]
        assert said == [
            (0, "assistant", "", None),
            (1, "assistant", "", None),
            (1, None, "Hi", None),
            (0, None, "Ho", None),
            (0, None, None, "stop"),
            (1, None, None, "length"),
        ]

    def test_stream_usage_is_last_without_choices(self) -> None:
        request = chat(stream=True, stream_options={"include_usage": True})
        writer = CHAT_CODEC.stream_writer(request, CONTEXT)
        payloads = [*writer.begin(Usage(5, 0)), *writer.piece(TextDelta(0, "a", "stop"))]
        payloads += writer.end(Usage(5, 3, 0, 2, 1, 7), 1.0)
        *chunks, last, done = events(payloads)
        assert [chunk["usage"] for chunk in chunks] == [None, None, None]
        usage = check_is(ChatCompletionChunk, last)
        assert usage.choices == []
        assert usage.usage is not None
        assert usage.usage.total_tokens == 8
        assert usage.usage.completion_tokens_details is not None
        assert usage.usage.completion_tokens_details.reasoning_tokens == 2
        assert usage.usage.completion_tokens_details.accepted_prediction_tokens == 1
        assert usage.usage.completion_tokens_details.rejected_prediction_tokens == 7
        assert done == b"[DONE]"

    def test_stop_string_is_part_on_request(self) -> None:
        request = chat(stop="END", include_stop_str_in_output=True)
        whole = GenerateAnswer([Choice("a ", "stop", stop_string="END")], Usage(5, 3))
        assert encode(CHAT_CODEC, request, whole)["choices"][0]["message"]["content"] == "a END"
        chunks = events(CHAT_CODEC.stream_writer(request, CONTEXT).piece(TextDelta(0, "", "stop", stop_string="END")))
        assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"content": "END"}, {}]

    def test_stream_sends_logprobs_with_their_piece(self) -> None:
        writer = CHAT_CODEC.stream_writer(chat(stream=True, logprobs=True), CONTEXT)
        chunks = events(
            [*writer.piece(TextDelta(0, "é\ufffd", "stop", TOKENS)), *writer.piece(TextDelta(0, "", None, TOKENS))]
        )
        assert [chunk["choices"][0]["logprobs"] for chunk in chunks] == [LOGPROBS, None, LOGPROBS]
        for chunk in chunks:
            check_is(ChatCompletionChunk, chunk)

    def test_stream_error_has_openai_body(self) -> None:
        writer = CHAT_CODEC.stream_writer(chat(stream=True), CONTEXT)
        (error,) = events(writer.error(ErrorReply(503, "draining", "going down")))
        assert error["error"]["code"] == "draining"
