"""Test token requests against the tokenizers of encoders and of generating models."""

from typing import cast

import pytest

from frameworks.core.errors import InvalidInput
from frameworks.generation.text.tokenizer import GenerationTokenizer
from frameworks.generation.types import Conversation, GenerationSpec, Message
from frameworks.text.tokenizer import TextTokenizer
from frameworks.text.tokens import (
    DetokenizeAnswer,
    DetokenizeRequest,
    SpansAnswer,
    SpansRequest,
    TokenizeAnswer,
    TokenizeRequest,
    answer_token_request,
)
from frameworks.types import ModelSpec, TextSpec
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch
from tests.support.models.torch_folders import MAX_TOKENS, save_embedder
from tests.support.step_models import ByteTokenizer

BYTES = cast(GenerationTokenizer, ByteTokenizer())


class TestGenerationTokenizer:
    @pytest.mark.parametrize("adds", [True, False])
    def test_prompt_is_tokenized_with_strings(self, adds: bool) -> None:
        answer = answer_token_request(BYTES, 64, TokenizeRequest("Hé", adds, with_strings=True))
        assert isinstance(answer, TokenizeAnswer)
        assert (list(answer.token_ids), answer.strings, answer.max_tokens) == ([72, 195, 169], ["48", "c3", "a9"], 64)

    def test_conversation_is_tokenized_by_chat_template(self) -> None:
        answer = answer_token_request(BYTES, 64, TokenizeRequest(Conversation((Message("user", "a"),))))
        assert isinstance(answer, TokenizeAnswer)
        assert (bytes(answer.token_ids), answer.strings) == (b"user: a\n", None)

    def test_token_ids_are_detokenized(self) -> None:
        assert answer_token_request(BYTES, 64, DetokenizeRequest((72, 195, 169))) == DetokenizeAnswer("Hé")


class TestTextTokenizer:
    @pytest.fixture
    def tokenizer(self, made_once: FolderMaker) -> TextTokenizer:
        tokenizer = load_torch(made_once(save_embedder)).tokenizer
        assert isinstance(tokenizer, TextTokenizer)
        return tokenizer

    def test_text_survives_tokenize_and_detokenize(self, tokenizer: TextTokenizer) -> None:
        answer = answer_token_request(tokenizer, MAX_TOKENS, TokenizeRequest("the cat", with_strings=True))
        assert isinstance(answer, TokenizeAnswer)
        assert (answer.strings, answer.max_tokens) == (["[CLS]", "the", "cat", "[SEP]"], MAX_TOKENS)
        bare = answer_token_request(tokenizer, MAX_TOKENS, TokenizeRequest("the cat", add_special_tokens=False))
        assert bare == TokenizeAnswer(answer.token_ids[1:-1], None, MAX_TOKENS)
        request = DetokenizeRequest(tuple(answer.token_ids))
        assert answer_token_request(tokenizer, MAX_TOKENS, request) == DetokenizeAnswer("the cat")

    @pytest.mark.parametrize("text", ["the cat", "", "The  cats\nsat, né? 9"])
    def test_spans_show_tokens_in_text(self, tokenizer: TextTokenizer, text: str) -> None:
        answer = answer_token_request(tokenizer, MAX_TOKENS, SpansRequest(("mat", text)))
        assert isinstance(answer, SpansAnswer)
        whole = answer_token_request(tokenizer, MAX_TOKENS, TokenizeRequest(text, with_strings=True))
        assert isinstance(whole, TokenizeAnswer)
        assert (answer.token_ids[1], answer.strings[1]) == (whole.token_ids, whole.strings)
        assert answer.spans[1][0] is answer.spans[1][-1] is None
        spans = [span for span in answer.spans[1] if span is not None]
        assert len(spans) == len(whole.token_ids) - 2
        assert "".join(text[start:stop] for start, stop in spans) == "".join(text.split())
        bare = answer_token_request(tokenizer, MAX_TOKENS, SpansRequest((text,), add_special_tokens=False))
        assert isinstance(bare, SpansAnswer)
        assert bare.spans == [spans]

    def test_span_errors_name_the_text(self, tokenizer: TextTokenizer) -> None:
        with pytest.raises(InvalidInput, match=r"^text\[1\]: not valid Unicode"):
            answer_token_request(tokenizer, MAX_TOKENS, SpansRequest(("a", "\ud800")))
        with pytest.raises(InvalidInput, match=r"^text\[0\]: "):
            answer_token_request(tokenizer, MAX_TOKENS, SpansRequest(("a" * 10_000_000,)))

    def test_spans_need_a_text_model(self) -> None:
        with pytest.raises(InvalidInput, match=r"^text: expected a model that embeds or classifies"):
            answer_token_request(BYTES, 64, SpansRequest(("a",)))

    def test_unknown_token_id_is_refused(self, tokenizer: TextTokenizer) -> None:
        with pytest.raises(InvalidInput, match=r"^tokens: token 9999"):
            answer_token_request(tokenizer, MAX_TOKENS, DetokenizeRequest((1, 9999)))


def test_model_without_tokenizer_refuses_token_requests() -> None:
    with pytest.raises(InvalidInput, match=r"^prompt: "):
        answer_token_request(None, None, TokenizeRequest("a"))


@pytest.mark.parametrize("text", [None, TextSpec(7)])
def test_max_tokens_come_from_text_spec(text: TextSpec | None) -> None:
    spec = ModelSpec("onnx", "tensor", (), (), "cpu", "float32", 0, text)
    assert spec.max_tokens == (text and 7)


def test_max_tokens_come_from_generation_spec() -> None:
    spec = ModelSpec("pytorch", "generate", (), (), "cpu", "float32", 0, generation=GenerationSpec(64, 256))
    assert spec.max_tokens == 64
