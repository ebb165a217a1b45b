"""/v1/tokenize and /v1/detokenize: what is asked of a tokenizer, and how it is told."""

import pytest

from app.protocols.openai.schemas import DetokenizeResponse, TokenizeResponse
from app.protocols.openai.tokens import DETOKENIZE_FORMAT, TOKENIZE_FORMAT
from frameworks.generation.types import Conversation, Message
from frameworks.text.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from tests.app.protocols.openai.requests import answer, ask, assert_refused

MESSAGES = [{"role": "user", "content": "Hello"}]


class TestTokenize:
    def test_a_prompt(self) -> None:
        for model in ("llama", "embed", "cross-encoder"):
            assert ask(TOKENIZE_FORMAT, model=model, prompt="Hello").request == TokenizeRequest("Hello")
        question = ask(TOKENIZE_FORMAT, model="llama", prompt="", add_special_tokens=False, return_token_strs=True)
        assert question.request == TokenizeRequest("", False, True)

    def test_messages(self) -> None:
        question = ask(TOKENIZE_FORMAT, model="llama", messages=MESSAGES, add_special_tokens=False)
        assert question.request.prompt == Conversation((Message("user", "Hello"),))

    @pytest.mark.parametrize(
        ("fields", "where"),
        [
            ({}, "prompt"),
            ({"prompt": ["a"]}, "prompt"),
            ({"prompt": "a", "messages": MESSAGES}, "messages"),
            ({"messages": MESSAGES, "model": "untalkative"}, "messages"),
            ({"messages": MESSAGES, "model": "embed"}, "messages"),
            ({"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
            ({"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
            ({"prompt": "a", "continue_final_message": True}, "continue_final_message"),
            ({"prompt": "a", "model": "tensors"}, "model"),
        ],
    )
    def test_what_cannot_be_read(self, fields: dict[str, object], where: str) -> None:
        assert_refused(TOKENIZE_FORMAT, where, **{"model": "llama", **fields})

    @pytest.mark.parametrize("texts", [None, ("He", "llo")])
    def test_answer(self, texts: tuple[str, ...] | None) -> None:
        question = ask(TOKENIZE_FORMAT, model="llama", prompt="Hello")
        body = answer(TOKENIZE_FORMAT, question, TokenizeAnswer((5, 7), texts, 64))
        token_strs = None if texts is None else list(texts)
        assert body == {"count": 2, "max_model_len": 64, "tokens": [5, 7], "token_strs": token_strs}
        TokenizeResponse.model_validate(body, strict=True)


class TestDetokenize:
    @pytest.mark.parametrize("tokens", [[], [5, 7]])
    def test_tokens(self, tokens: list[int]) -> None:
        assert ask(DETOKENIZE_FORMAT, model="llama", tokens=tokens).request == DetokenizeRequest(tuple(tokens))

    @pytest.mark.parametrize(
        ("tokens", "where"),
        [(None, "tokens"), ("5", "tokens"), ([5, "7"], "tokens[1]"), ([100], "tokens[0]"), ([-1], "tokens[0]")],
    )
    def test_what_are_no_tokens(self, tokens: object, where: str) -> None:
        assert_refused(DETOKENIZE_FORMAT, where, model="llama", tokens=tokens)

    def test_answer(self) -> None:
        question = ask(DETOKENIZE_FORMAT, model="embed", tokens=[5])
        body = answer(DETOKENIZE_FORMAT, question, DetokenizeAnswer("Hello"))
        assert DetokenizeResponse.model_validate(body, strict=True).prompt == "Hello"
