"""A Hugging Face folder's tokenizer, for generating models: text and conversations to token ids, and back."""

import os

# Nothing is ever fetched, whatever the folder's files say; transformers reads this when it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer

from frameworks.errors import InvalidInput, InvalidModel
from frameworks.generation.detokenizing import detokenizer_of
from frameworks.generation.tokenizer import TokenStream
from frameworks.generation.types import Conversation, Prompt
from frameworks.pytorch.generation.chat_template import ChatTemplate

transformers.logging.set_verbosity_error()


class HuggingFaceTokenizer:
    """A GenerationTokenizer: what transformers' AutoTokenizer makes of the folder, without its Python around it.

    May be used by several threads at once; while it encodes they run, for the library works without the GIL.
    """

    def __init__(self, folder: Path, vocabulary_size: int) -> None:
        """`vocabulary_size`: how many tokens the model knows; the files may name fewer, or more.

        Raises InvalidModel where tokenizer.json is absent or broken, where transformers cannot read the folder or
        would have to run code of its own, and where its chat template is none.
        """
        self.pretrained = _from_pretrained(folder)
        """transformers' own, for libraries that want it. It is not to be called: that is for one thread at a time."""
        self._tokenizer: Tokenizer = self.pretrained.backend_tokenizer
        # The file may carry the padding and truncation of its training.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._vocabulary_size = vocabulary_size
        self._may_exceed = max(self._tokenizer.get_vocab().values(), default=0) >= vocabulary_size
        try:
            self._num_behind = _num_special_tokens_behind(self._tokenizer)
        except Exception as error:  # the library raises bare Exception
            raise InvalidModel(f"{folder}: its tokenizer encodes nothing: {error}") from error
        self._detokenizer = detokenizer_of(self._tokenizer)
        self._chat_template = _chat_template(self.pretrained, folder)

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """As GenerationTokenizer.encode. What the files put behind a text is left out: it is to be gone on with."""
        if isinstance(prompt, str):
            ids = self._ids_of(prompt, True, "prompt")
            return tuple(ids[: len(ids) - self._num_behind])
        if isinstance(prompt, Conversation):
            if self._chat_template is None:
                raise InvalidInput(
                    "messages", "the model has no chat template (chat_template.jinja in its folder); send a prompt"
                )
            return tuple(self._ids_of(self._chat_template.render(prompt.messages), False, "messages"))
        self._check(prompt, "prompt")
        return prompt

    def ids_of(self, text: str, add_special_tokens: bool) -> list[int]:
        """All of the text's tokens, with those before and behind it that the files say, or without them.

        Raises InvalidInput as `encode`.
        """
        return self._ids_of(text, add_special_tokens, "prompt")

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Tokens as the vocabulary has them, "Ġthe" or "▁the"; an empty string for an id without a token.

        Raises InvalidInput as `decode`.
        """
        self._check(token_ids, "tokens")
        return [self._tokenizer.id_to_token(token_id) or "" for token_id in token_ids]

    def decode(self, token_ids: Sequence[int]) -> str:
        """As GenerationTokenizer.decode, with the field `tokens`. The text is what `stream` gives of the same ids."""
        self._check(token_ids, "tokens")
        return self._detokenizer.decode(token_ids)

    def text_of(self, token_id: int) -> str:
        """As GenerationTokenizer.text_of: within a text, so with the space before it; of a special token its name."""
        return self._detokenizer.text_of(token_id)

    def stream(self, prompt_ids: Sequence[int]) -> TokenStream:
        """As GenerationTokenizer.stream."""
        return self._detokenizer.stream(prompt_ids)

    def _ids_of(self, text: str, add_special_tokens: bool, field: str) -> list[int]:
        try:
            # Of a batch, though it is one text: only then the library gives the GIL away.
            [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except TypeError as error:
            raise InvalidInput(field, "not valid Unicode: it holds half of a surrogate pair") from error
        except Exception as error:  # the library raises bare Exception
            raise InvalidInput(field, f"the model's tokenizer has no tokens for it: {error}") from error
        ids: list[int] = encoding.ids
        if self._may_exceed:
            self._check(ids, field)
        return ids

    def _check(self, token_ids: Sequence[int], field: str) -> None:
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self._vocabulary_size:
            wrong = next(i for i in token_ids if not 0 <= i < self._vocabulary_size)
            name = self._tokenizer.id_to_token(wrong) if 0 <= wrong < 2**32 else None
            raise InvalidInput(
                field, f"token {wrong}{f' ({name})' if name else ''}: the model has 0 to {self._vocabulary_size - 1}"
            )


def _from_pretrained(folder: Path) -> Any:
    """transformers' tokenizer of the folder, made in Rust."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise InvalidModel(
            f"{file}: not there; a generating model needs it beside its weights "
            "(transformers writes it with AutoTokenizer.from_pretrained(…).save_pretrained(folder))"
        )
    try:
        num_tokens = Tokenizer.from_file(str(file)).get_vocab_size()
    except Exception as error:  # the library raises bare Exception
        raise InvalidModel(f"{file}: not a tokenizer: {error}") from error
    try:
        pretrained = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        # transformers raises many kinds on folders that lie; all of them mean that the folder cannot be served.
        reason = str(error).strip().partition("\n")[0][:300]
        raise InvalidModel(
            f"{folder}: transformers cannot read its tokenizer: {type(error).__name__}: {reason}"
        ) from error
    backend = getattr(pretrained, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer) or backend.get_vocab_size() < num_tokens:
        raise InvalidModel(
            f"{folder}: transformers makes a {type(pretrained).__name__} of it, which has not the tokens of "
            "tokenizer.json; is tokenizer_class in tokenizer_config.json right?"
        )
    return pretrained


def _num_special_tokens_behind(tokenizer: Tokenizer) -> int:
    """How many the files put behind a text. Tried on one that has a token, so that those before it are told apart."""
    tokens = tokenizer.get_added_tokens_decoder().values()
    for text in (*(token.content for token in tokens), "a"):
        mask = tokenizer.encode(text).special_tokens_mask
        if 0 in mask:
            return mask[::-1].index(0)
    return 0


def _chat_template(pretrained: Any, folder: Path) -> ChatTemplate | None:
    """The folder's template; the one named default, where there are several."""
    source = pretrained.chat_template
    if isinstance(source, dict):
        source = source.get("default")
    if source is None:
        return None
    variables: dict[str, str] = pretrained.special_tokens_map
    try:
        return ChatTemplate(str(source), variables)
    except InvalidModel as error:
        raise InvalidModel(
            f"{folder}: {error.message}; it is chat_template.jinja or a key of tokenizer_config.json"
        ) from error
