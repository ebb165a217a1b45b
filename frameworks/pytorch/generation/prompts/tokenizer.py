"""The tokenizer of a Hugging Face folder, for generating models: text and conversations to token ids, and back."""

import os

# Nothing is downloaded, whatever the folder's files name; transformers reads this when it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
# As in frameworks/text/tokenizer.py.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.core.text_lengths import TextLengths, TextLimit
from frameworks.generation.prompt_scores import DEFAULT_OPTIONS, PromptOptions
from frameworks.generation.text.detokenizing import detokenizer_of
from frameworks.generation.text.infilling import find_infill_tokens
from frameworks.generation.text.tokenizer import TokenStream
from frameworks.generation.types import Conversation, Prompt
from frameworks.pytorch.generation.prompts.chat_prompts import ChatPrompts
from frameworks.pytorch.generation.prompts.chat_template import ChatTemplate
from frameworks.text.truncation import count_special_tokens

transformers.logging.set_verbosity_error()

_SENTENCEPIECE_SPACE = "▁"
# A character that is never part of a longer token.
_ANCHOR = "☺"


class HuggingFaceTokenizer:
    """A GenerationTokenizer: what transformers' AutoTokenizer loads from the folder, without its Python wrapper.

    Thread-safe; the library encodes without the GIL, so other threads run meanwhile.
    """

    def __init__(self, folder: Path, vocabulary_size: int) -> None:
        """`vocabulary_size`: number of tokens that the model knows; the files may name fewer or more.

        Raises InvalidModel if tokenizer.json is absent or broken, if transformers cannot read the folder or would have
        to run its code, and if the chat template is invalid.
        """
        self.pretrained = _from_pretrained(folder)
        """transformers' own tokenizer, for libraries that need it. It must not be called: it is for one thread at a
        time.
        """
        self._tokenizer: Tokenizer = self.pretrained.backend_tokenizer
        # The file may contain the padding and truncation of its training.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.vocabulary_size = vocabulary_size
        self._may_exceed = max(self._tokenizer.get_vocab().values(), default=0) >= vocabulary_size
        try:
            _, self._num_suffix_tokens = count_special_tokens(self._tokenizer)
        except Exception as error:  # the library raises bare Exception
            raise InvalidModel(f"{folder}: its tokenizer encodes nothing: {error}") from error
        self._lengths = TextLengths(self._tokenizer)
        self._detokenizer = detokenizer_of(self._tokenizer)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.infill_tokens = find_infill_tokens(self._tokenizer.token_to_id, vocabulary_size)
        """The tokens of prompts with a suffix; None: the model cannot fill in the middle of a text."""
        self._chat_prompts = _chat_prompts(self.pretrained, folder, "default")
        self._tool_prompts = self._chat_prompts
        if isinstance(self.pretrained.chat_template, dict):
            # Some folders have a template of its own for tools.
            self._tool_prompts = _chat_prompts(self.pretrained, folder, "tool_use") or self._chat_prompts

    @property
    def backend(self) -> Tokenizer:
        """The tokenizer in Rust."""
        return self._tokenizer

    @property
    def special_ids(self) -> frozenset[int]:
        """As GenerationTokenizer.special_ids."""
        return self._special_ids

    @property
    def has_chat_template(self) -> bool:
        return self._chat_prompts is not None

    @property
    def tool_template(self) -> ChatTemplate | None:
        """The chat template of conversations with tools."""
        return None if self._tool_prompts is None else self._tool_prompts.template

    def special_tokens(self, names: Iterable[str]) -> Mapping[int, str]:
        """As GenerationTokenizer.special_tokens."""
        special = {token.content: i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        return {special[name]: name for name in names if name in special}

    def limit(self, num_tokens: int) -> TextLimit:
        """As GenerationTokenizer.limit."""
        return self._lengths.limit(num_tokens)

    def encode(
        self, prompt: Prompt, limit: TextLimit | None = None, options: PromptOptions = DEFAULT_OPTIONS
    ) -> tuple[int, ...]:
        """As GenerationTokenizer.encode. Special tokens after a text are left out, because the text continues."""
        if isinstance(prompt, str):
            if limit is not None:
                self.check_length(prompt, limit, "prompt")
            if options.suffix is not None:
                return self._infilled(prompt, options.suffix, options.add_special_tokens, limit)
            if not options.add_special_tokens:
                return tuple(self._ids_of(prompt, False, "prompt"))
            ids = self._ids_of(prompt, True, "prompt")
            return tuple(ids[: len(ids) - self._num_suffix_tokens])
        if isinstance(prompt, Conversation):
            assert not prompt.has_images, "ImagePrompts encodes images"
            text = self.render(prompt)
            if limit is not None:
                self.check_length(text, limit, "messages")
            return tuple(self._ids_of(text, False, "messages"))
        self._check(prompt, "prompt")
        return prompt

    def render(self, conversation: Conversation) -> str:
        """Return the prompt of a conversation. Raises InvalidInput as `encode`."""
        prompts = self._tool_prompts if conversation.tools else self._chat_prompts
        if prompts is None:
            raise InvalidInput(
                "messages",
                "expected a chat template (chat_template.jinja) in the model's folder, got none; send a prompt",
            )
        return prompts.render(conversation)

    def ids_of(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return all tokens of the text, with or without the special tokens before and after it.

        Raises InvalidInput as `encode`.
        """
        return self._ids_of(text, add_special_tokens, "prompt")

    def ids_with_images(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the tokens of a prompt whose placeholders are expanded. The vocabulary of some models has no image
        tokens, so the ids may exceed it. Raises InvalidInput for the field `messages`.
        """
        return self._encoded(text, add_special_tokens, "messages")

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Return tokens as the vocabulary spells them, "Ġthe" or "▁the"; an empty string for an id without a token."""
        return [self._tokenizer.id_to_token(token_id) or "" for token_id in token_ids]

    def decode(self, token_ids: Sequence[int]) -> str:
        """As GenerationTokenizer.decode, for the field `tokens`. `stream` gives the same text for the same ids."""
        self._check(token_ids, "tokens")
        return self._detokenizer.decode(token_ids)

    def text_of(self, token_id: int) -> str:
        """As GenerationTokenizer.text_of: within a text, so with the space before it; a special token's name."""
        return self._detokenizer.text_of(token_id)

    def bytes_of(self, token_id: int) -> bytes:
        """As GenerationTokenizer.bytes_of."""
        return self._detokenizer.bytes_of(token_id)

    def stream(self, prompt_ids: Sequence[int]) -> TokenStream:
        """As GenerationTokenizer.stream."""
        return self._detokenizer.stream(prompt_ids)

    def _infilled(self, text: str, suffix: str, add_special_tokens: bool, limit: TextLimit | None) -> tuple[int, ...]:
        """Return the tokens of a prompt whose middle is filled in, between `text` and `suffix`."""
        assert self.infill_tokens is not None, "the caller has checked can_infill"
        if limit is not None:
            self.check_length(suffix, limit, "suffix")
        before, between, after = self.infill_tokens
        first = self._tokenizer.encode("", add_special_tokens=add_special_tokens).ids
        return (
            *first[: max(0, len(first) - self._num_suffix_tokens)],
            before,
            *self._ids_of(text, False, "prompt"),
            between,
            *self._continued_ids(suffix),
            after,
        )

    def _continued_ids(self, text: str) -> list[int]:
        """Return the tokens of a text within another one: without the space that SentencePiece adds at its begin."""
        anchor, both = (self._ids_of(each, False, "suffix") for each in (_ANCHOR, _ANCHOR + text))
        starts = both[: len(anchor)] == anchor
        has_space = (self._tokenizer.id_to_token(anchor[0]) or "").startswith(_SENTENCEPIECE_SPACE) if anchor else False
        return both[len(anchor) :] if starts and has_space else self._ids_of(text, False, "suffix")

    def check_length(self, text: str, limit: TextLimit, field: str) -> None:
        """Raise InvalidInput for a text of this field that surely exceeds the limit."""
        if self._lengths.has_more(text, limit):
            raise limit.refusal(field, text)

    def _ids_of(self, text: str, add_special_tokens: bool, field: str) -> list[int]:
        ids = self._encoded(text, add_special_tokens, field)
        if self._may_exceed:
            self._check(ids, field)
        return ids

    def _encoded(self, text: str, add_special_tokens: bool, field: str) -> list[int]:
        try:
            # A batch of one text: only then the library releases the GIL.
            [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except TypeError as error:
            raise InvalidInput(field, "not valid Unicode: it holds half of a surrogate pair") from error
        except Exception as error:  # the library raises bare Exception
            raise InvalidInput(field, f"the model's tokenizer has no tokens for it: {error}") from error
        ids: list[int] = encoding.ids
        return ids

    def _check(self, token_ids: Sequence[int], field: str) -> None:
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self.vocabulary_size:
            wrong = next(i for i in token_ids if not 0 <= i < self.vocabulary_size)
            name = self._tokenizer.id_to_token(wrong) if 0 <= wrong < 2**32 else None
            raise InvalidInput(
                field,
                f"expected tokens from 0 to {self.vocabulary_size - 1}, got {wrong}{f' ({name})' if name else ''}",
            )


def read_chat_template(folder: Path, variables: Mapping[str, object]) -> ChatTemplate | None:
    """Return the template of the folder's conversations, with these variables; None without one.

    Raises InvalidModel as HuggingFaceTokenizer.
    """
    return _chat_template(_from_pretrained(folder), folder, "default", variables)


def _from_pretrained(folder: Path) -> Any:
    """Return transformers' tokenizer of the folder, implemented in Rust."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise InvalidModel(
            f"{file}: absent; a generating model needs it beside its weights "
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
        # transformers raises many types on broken folders; all of them mean that the folder cannot be served.
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


def _chat_prompts(pretrained: Any, folder: Path, name: str) -> ChatPrompts | None:
    template = _chat_template(pretrained, folder, name)
    return None if template is None else ChatPrompts(template)


def _chat_template(
    pretrained: Any, folder: Path, name: str, more: Mapping[str, object] | None = None
) -> ChatTemplate | None:
    """Return the folder's template; the one of this name if there are several. `more`: variables of the template."""
    source = pretrained.chat_template
    if isinstance(source, dict):
        source = source.get(name)
    if source is None:
        return None
    variables: dict[str, object] = {**pretrained.special_tokens_map, **(more or {})}
    try:
        return ChatTemplate(str(source), variables)
    except InvalidModel as error:
        raise InvalidModel(
            f"{folder}: {error.message}; it is chat_template.jinja or a key of tokenizer_config.json"
        ) from error
