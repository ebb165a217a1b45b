"""/v1/tokenize and /v1/detokenize: bodies decoded and responses encoded."""

import json

import pytest

from app.protocols.openai.responses import DetokenizeResponse, TokenizeResponse
from app.protocols.openai.tokens import DETOKENIZE_CODEC, TOKENIZE_CODEC
from frameworks.generation.types import Conversation, Message
from frameworks.text.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from tests.app.protocols.openai.decoding import assert_refused, decode, encode

MESSAGES = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "now"}}


class TestTokenize:
    def test_prompt_is_read(self) -> None:
        for model in ("llama", "embed", "cross-encoder"):
            assert decode(TOKENIZE_CODEC, model=model, prompt="Hello").request == TokenizeRequest("Hello")
        decoded = decode(TOKENIZE_CODEC, model="llama", prompt="", add_special_tokens=False, return_token_strs=True)
        assert decoded.request == TokenizeRequest("", False, True)

    def test_messages_are_read(self) -> None:
        decoded = decode(TOKENIZE_CODEC, model="llama", messages=MESSAGES, add_special_tokens=False)
        assert decoded.request.prompt == Conversation((Message("user", "Hello"),))

    @pytest.mark.parametrize("strict", [False, True])
    def test_tools_are_passed_to_template(self, strict: bool) -> None:
        function = {"name": "now", "strict": strict}
        decoded = decode(TOKENIZE_CODEC, model="caller", messages=MESSAGES, tools=[{**TOOL, "function": function}])
        shown = {"name": "now", "parameters": {"type": "object", "properties": {}}}
        assert json.loads(decoded.request.prompt.tools) == [{"type": "function", "function": shown}]
        assert decode(TOKENIZE_CODEC, model="llama", prompt="a", tools=[]).request == TokenizeRequest("a")

    @pytest.mark.parametrize(
        ("fields", "where"),
        [
            ({}, "prompt"),
            ({"prompt": "a", "tools": [TOOL], "model": "caller"}, "tools"),
            ({"messages": MESSAGES, "tools": [TOOL]}, "tools"),
            ({"messages": MESSAGES, "tools": [TOOL] * 2, "model": "caller"}, "tools[1].function.name"),
            ({"messages": MESSAGES, "tools": [TOOL] * 129, "model": "caller"}, "tools"),
            ({"prompt": ["a"]}, "prompt"),
            ({"prompt": "a", "messages": MESSAGES}, "messages"),
            ({"messages": MESSAGES, "model": "no-template"}, "messages"),
            ({"messages": MESSAGES, "model": "embed"}, "messages"),
            ({"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
            ({"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
            ({"messages": MESSAGES, "continue_final_message": True}, "messages"),
            ({"prompt": "a", "model": "tensors"}, "model"),
        ],
    )
    def test_invalid_body_is_refused(self, fields: dict[str, object], where: str) -> None:
        assert_refused(TOKENIZE_CODEC, where, **{"model": "llama", **fields})

    def test_ending_of_conversation_ignored_in_prompt(self) -> None:
        decoded = decode(TOKENIZE_CODEC, model="llama", prompt="a", continue_final_message=True)
        assert decoded.ignored == ("continue_final_message",)

    @pytest.mark.parametrize("texts", [None, ("He", "llo")])
    def test_response_has_tokens_and_limit(self, texts: tuple[str, ...] | None) -> None:
        decoded = decode(TOKENIZE_CODEC, model="llama", prompt="Hello")
        body = encode(TOKENIZE_CODEC, decoded, TokenizeAnswer((5, 7), texts, 64))
        token_strs = None if texts is None else list(texts)
        assert body == {"count": 2, "max_model_len": 64, "tokens": [5, 7], "token_strs": token_strs}
        TokenizeResponse.model_validate(body, strict=True)


class TestDetokenize:
    @pytest.mark.parametrize("tokens", [[], [5, 7]])
    def test_tokens_are_read(self, tokens: list[int]) -> None:
        assert decode(DETOKENIZE_CODEC, model="llama", tokens=tokens).request == DetokenizeRequest(tuple(tokens))

    @pytest.mark.parametrize(
        ("tokens", "where"),
        [(None, "tokens"), ("5", "tokens"), ([5, "7"], "tokens[1]"), ([100], "tokens[0]"), ([-1], "tokens[0]")],
    )
    def test_invalid_tokens_are_refused(self, tokens: object, where: str) -> None:
        assert_refused(DETOKENIZE_CODEC, where, model="llama", tokens=tokens)

    def test_response_has_text(self) -> None:
        decoded = decode(DETOKENIZE_CODEC, model="embed", tokens=[5])
        body = encode(DETOKENIZE_CODEC, decoded, DetokenizeAnswer("Hello"))
        assert DetokenizeResponse.model_validate(body, strict=True).prompt == "Hello"
