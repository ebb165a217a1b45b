"""The tokenizers of models with an encoder: a whole text with its special tokens, in one of several languages."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.core.text_lengths import TextLimit, most_characters
from frameworks.generation.prompt_scores import DEFAULT_OPTIONS, PromptOptions
from frameworks.generation.text.tokenizer import REPLACEMENT, TokenStream
from frameworks.generation.types import Prompt
from frameworks.pytorch.generation.prompts.languages import Languages
from frameworks.pytorch.generation.prompts.tokenizer import HuggingFaceTokenizer


class SourceTokenizer(HuggingFaceTokenizer):
    """A GenerationTokenizer with a tokenizer.json."""

    def __init__(self, folder: Path, vocabulary_size: int) -> None:
        """As HuggingFaceTokenizer."""
        super().__init__(folder, vocabulary_size)
        self.languages = Languages(self.pretrained)

    def encode(
        self, prompt: Prompt, limit: TextLimit | None = None, options: PromptOptions = DEFAULT_OPTIONS
    ) -> tuple[int, ...]:
        """As GenerationTokenizer.encode; the special tokens after a text are part of it."""
        if not isinstance(prompt, str):
            return super().encode(prompt, limit, options)
        if limit is not None:
            self.check_length(prompt, limit, "prompt")
        marks = self.languages.marks(options.source_language)
        if not options.add_special_tokens or marks is None:
            return tuple(self.ids_of(prompt, options.add_special_tokens))
        return (*marks.prefix, *self.ids_of(prompt, False), *marks.suffix)


class PythonTokenizer:
    """A GenerationTokenizer of transformers that is no Rust tokenizer, such as Marian's. Thread-safe."""

    backend = None
    has_chat_template = False
    tool_template = None
    infill_tokens = None

    def __init__(self, folder: Path, vocabulary_size: int) -> None:
        """As HuggingFaceTokenizer. Raises InvalidModel."""
        try:
            pretrained: Any = transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
            self.languages = Languages(pretrained)
            pretrained("a")
        except Exception as error:
            # transformers raises many types on broken folders; all of them mean that the folder cannot be served.
            reason = str(error).strip().partition("\n")[0][:300]
            raise InvalidModel(
                f"{folder}: transformers cannot read its tokenizer: {type(error).__name__}: {reason}; a generating "
                "model needs tokenizer.json, or the files of its own tokenizer, beside its weights"
            ) from error
        self.pretrained = pretrained
        self.vocabulary_size = vocabulary_size
        # It changes while it encodes.
        self._lock = threading.Lock()
        self._special_ids = frozenset(pretrained.all_special_ids)

    @property
    def special_ids(self) -> frozenset[int]:
        """As GenerationTokenizer.special_ids."""
        return self._special_ids

    def special_tokens(self, names: Iterable[str]) -> Mapping[int, str]:
        """As GenerationTokenizer.special_tokens."""
        special = {self.pretrained.convert_ids_to_tokens(each): each for each in self._special_ids}
        return {special[name]: name for name in names if name in special}

    def limit(self, num_tokens: int) -> TextLimit:
        """As GenerationTokenizer.limit: a token may stand for any number of characters that it does not know."""
        return TextLimit(num_tokens, most_characters(num_tokens))

    def encode(
        self, prompt: Prompt, limit: TextLimit | None = None, options: PromptOptions = DEFAULT_OPTIONS
    ) -> tuple[int, ...]:
        """As GenerationTokenizer.encode; the special tokens after a text are part of it."""
        if isinstance(prompt, str):
            if limit is not None and limit.exceeds(prompt):
                raise limit.refusal("prompt", prompt)
            text = self.languages.named(prompt, options.target_language)
            marks = self.languages.marks(options.source_language)
            if not options.add_special_tokens or marks is None:
                return tuple(self.ids_of(text, options.add_special_tokens))
            return (*marks.prefix, *self.ids_of(text, False), *marks.suffix)
        if not isinstance(prompt, tuple):
            raise InvalidInput("messages", "expected a model with a chat template; send a prompt")
        self._check(prompt, "prompt")
        return prompt

    def ids_of(self, text: str, add_special_tokens: bool) -> list[int]:
        """As GenerationTokenizer.ids_of."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput("prompt", "not valid Unicode: it holds half of a surrogate pair") from error
        with self._lock:
            ids: list[int] = self.pretrained(text, add_special_tokens=add_special_tokens)["input_ids"]
        self._check(ids, "prompt")
        return ids

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """As GenerationTokenizer.token_strings."""
        self._check(token_ids, "tokens")
        return [str(self.pretrained.convert_ids_to_tokens(each)) for each in token_ids]

    def decode(self, token_ids: Sequence[int]) -> str:
        """As GenerationTokenizer.decode."""
        self._check(token_ids, "tokens")
        return self.text_of_all(token_ids)

    def text_of(self, token_id: int) -> str:
        """As GenerationTokenizer.text_of."""
        return str(self.pretrained.convert_ids_to_tokens(token_id)).replace("\N{LOWER ONE EIGHTH BLOCK}", " ")

    def bytes_of(self, token_id: int) -> bytes:
        """As GenerationTokenizer.bytes_of."""
        return b"" if token_id in self._special_ids else self.text_of(token_id).encode()

    def stream(self, prompt_ids: Sequence[int]) -> TokenStream:
        """As GenerationTokenizer.stream, of a text that continues none."""
        return _WholeStream(self)

    def text_of_all(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without the special ones."""
        with self._lock:
            text: str = self.pretrained.decode(list(token_ids), skip_special_tokens=True)
        return text

    def _check(self, token_ids: Sequence[int], field: str) -> None:
        wrong = [each for each in token_ids if not 0 <= each < self.vocabulary_size]
        if wrong:
            raise InvalidInput(field, f"expected tokens from 0 to {self.vocabulary_size - 1}, got {wrong[0]}")


class _WholeStream:
    """A TokenStream that decodes all tokens for each piece: the tokenizer joins pieces by rules of its own."""

    def __init__(self, tokenizer: PythonTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._text = ""

    def push(self, token_id: int) -> str:
        """As TokenStream.push."""
        self._ids.append(token_id)
        text = self._tokenizer.text_of_all(self._ids)
        # An incomplete character, and what the next token changes, is sent with it.
        return "" if text.endswith(REPLACEMENT) else self._added(text)

    def flush(self) -> str:
        """As TokenStream.flush."""
        return self._added(self._tokenizer.text_of_all(self._ids))

    def _added(self, text: str) -> str:
        if not text.startswith(self._text):
            return ""
        added, self._text = text[len(self._text) :], text
        return added


def source_tokenizer(folder: Path, vocabulary_size: int) -> "SourceTokenizer | PythonTokenizer":
    """Return the tokenizer of a model with an encoder. Raises InvalidModel."""
    if (folder / "tokenizer.json").is_file():
        return SourceTokenizer(folder, vocabulary_size)
    return PythonTokenizer(folder, vocabulary_size)
