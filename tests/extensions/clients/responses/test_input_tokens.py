"""/v1/responses/input_tokens: the prompt of /v1/responses is counted."""

from typing import Any

import pytest
from openai.types.responses import InputTokenCountResponse

from extensions.clients.responses.codec import INPUT_TOKENS_CODEC as CODEC
from extensions.clients.responses.codec import RESPONSES_CODEC
from frameworks.core.errors import UnknownField
from frameworks.generation.types import Conversation, Message
from frameworks.text.tokens import TokenizeAnswer, TokenizeRequest
from tests.app.protocols.openai.decoding import assert_refused, check_is, decode, decode_error, encode

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
PLAIN: dict[str, Any] = {"model": "caller", "input": "Hi"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"input": [{"role": "user", "content": "Hi"}], "instructions": "Be brief."},
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "weather"}, "parallel_tool_calls": False},
        {"tools": [TOOL], "text": {"format": {"type": "text"}, "verbosity": "medium"}},
        {"reasoning": {"effort": "none", "summary": "auto"}, "truncation": "disabled"},
    ],
)
def test_prompt_is_that_of_response(fields: dict[str, Any]) -> None:
    response = decode(RESPONSES_CODEC, **PLAIN | fields)
    assert decode(CODEC, **PLAIN | fields).request == TokenizeRequest(response.request.prompts[0])


def test_instructions_alone_are_counted() -> None:
    for given in ({}, {"input": None}):
        request = decode(CODEC, model="caller", instructions="Be brief.", **given).request
        assert request == TokenizeRequest(Conversation((Message("system", "Be brief."),)))
    assert_refused(CODEC, "input", "send input, instructions or both", model="caller")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("previous_response_id", "resp_1", "no response is stored"),
        ("conversation", "conv_1", "no response is stored"),
        ("personality", "friendly", "instructions"),
        ("messages", [{"role": "user", "content": "a"}], "send input"),
    ],
)
def test_other_conversations_are_refused(field: str, value: Any, words: str) -> None:
    assert_refused(CODEC, field, words, **PLAIN, **{field: value})
    assert decode(CODEC, **PLAIN, **{field: None}).request == decode(CODEC, **PLAIN).request


def test_errors_name_fields_of_route() -> None:
    assert_refused(CODEC, "tools[0].type", 'expected "function"', **PLAIN, tools=[{"type": "web_search"}])
    assert decode(CODEC, model="llama", input="Hi", reasoning={"effort": "low"}).ignored == ("reasoning.effort",)
    assert isinstance(decode_error(CODEC, **PLAIN, max_output_tokens=5), UnknownField)


def test_response_has_number_of_tokens() -> None:
    body = encode(CODEC, decode(CODEC, **PLAIN), TokenizeAnswer([5, 6, 7], None, 100))
    assert check_is(InputTokenCountResponse, body).input_tokens == 3
    assert body == {"object": "response.input_tokens", "input_tokens": 3}
