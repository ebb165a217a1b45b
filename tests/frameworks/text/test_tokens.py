"""What a model's tokenizer is asked in the place of the model: the same of encoders and of those that generate text."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from frameworks.errors import InvalidInput
from frameworks.generation.types import Conversation, GenerationSpec, Message
from frameworks.text.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest, ask_tokenizer
from frameworks.types import ModelSpec, TextSpec
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch
from tests.support.models.torch_folders import MAX_TOKENS, save_embedder
from tests.support.step_models import ByteTokenizer

WRITER = cast(
    Any,
    SimpleNamespace(
        tokenizer=ByteTokenizer(),
        spec=ModelSpec("pytorch", "generate", (), (), "cpu", "float32", 0, generation=GenerationSpec(64, 256)),
    ),
)


class TestGenerating:
    @pytest.mark.parametrize("adds", [True, False])
    def test_a_prompt(self, adds: bool) -> None:
        answer = ask_tokenizer(WRITER, TokenizeRequest("Hé", adds, with_strings=True))
        assert isinstance(answer, TokenizeAnswer)
        assert (list(answer.token_ids), answer.strings, answer.max_tokens) == ([72, 195, 169], ["48", "c3", "a9"], 64)

    def test_a_conversation(self) -> None:
        answer = ask_tokenizer(WRITER, TokenizeRequest(Conversation((Message("user", "a"),))))
        assert isinstance(answer, TokenizeAnswer)
        assert (bytes(answer.token_ids), answer.strings) == (b"user: a\n", None)

    def test_and_back(self) -> None:
        assert ask_tokenizer(WRITER, DetokenizeRequest((72, 195, 169))) == DetokenizeAnswer("Hé")


class TestEncoder:
    def test_there_and_back(self, made_once: FolderMaker) -> None:
        model = load_torch(made_once(save_embedder))
        answer = ask_tokenizer(model, TokenizeRequest("the cat", with_strings=True))
        assert isinstance(answer, TokenizeAnswer)
        assert (answer.strings, answer.max_tokens) == (["[CLS]", "the", "cat", "[SEP]"], MAX_TOKENS)
        bare = ask_tokenizer(model, TokenizeRequest("the cat", add_special_tokens=False))
        assert bare == TokenizeAnswer(answer.token_ids[1:-1], None, MAX_TOKENS)
        assert ask_tokenizer(model, DetokenizeRequest(tuple(answer.token_ids))) == DetokenizeAnswer("the cat")

    def test_an_id_that_is_none(self, made_once: FolderMaker) -> None:
        with pytest.raises(InvalidInput, match=r"^tokens: token 9999"):
            ask_tokenizer(load_torch(made_once(save_embedder)), DetokenizeRequest((1, 9999)))


@pytest.mark.parametrize("text", [None, TextSpec(7)])
def test_how_many_tokens_a_model_reads(text: TextSpec | None) -> None:
    spec = ModelSpec("onnx", "tensor", (), (), "cpu", "float32", 0, text)
    assert spec.max_tokens == (text and 7)
    assert WRITER.spec.max_tokens == 64
