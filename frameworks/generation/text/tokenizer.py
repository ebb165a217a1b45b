"""The contract of a generating model's tokenizer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from frameworks.core.text_lengths import TextLimit
from frameworks.generation.prompt_scores import DEFAULT_OPTIONS, PromptOptions
from frameworks.generation.types import Prompt

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Stands for bytes that are no whole character."""


class TokenStream(Protocol):
    """Text of tokens as they arrive. Used by one thread."""

    def push(self, token_id: int) -> str:
        """Return the whole characters that the token completes, or an empty string."""
        ...

    def flush(self) -> str:
        """Return the rest of the text, an incomplete character as U+FFFD."""
        ...


class TokenTexts(Protocol):
    """The texts of single tokens."""

    def text_of(self, token_id: int) -> str:
        """Return one token's own text; incomplete characters as U+FFFD."""
        ...

    def bytes_of(self, token_id: int) -> bytes:
        """Return one token's own bytes, which may be a part of a character; none of a special token."""
        ...


class GenerationTokenizer(TokenTexts, Protocol):
    """Thread-safe. Calls block, so they do not belong on an event loop."""

    def limit(self, num_tokens: int) -> TextLimit:
        """Return the limit of a prompt in characters: a longer one surely has more than `num_tokens` tokens."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """The tokens that have no text."""
        ...

    def encode(
        self, prompt: Prompt, limit: TextLimit | None = None, options: PromptOptions = DEFAULT_OPTIONS
    ) -> tuple[int, ...]:
        """Return token ids, with the special tokens that precede a text; a conversation through the chat template.

        With a suffix the text is followed by it, in the format of the model, which must know one.

        Raises InvalidInput for the field `prompt` or `messages`: more tokens than the limit as far as a part shows
        them, invalid Unicode, an unknown id, a model without a chat template, messages that the template refuses.
        """
        ...

    def ids_of(self, text: str, add_special_tokens: bool) -> Sequence[int]:
        """Return all tokens of a text, with or without the special tokens before and after it.

        Raises InvalidInput as `encode`; the length is the caller's to check.
        """
        ...

    def token_strings(self, token_ids: Sequence[int]) -> Sequence[str]:
        """Return tokens as the vocabulary spells them. Raises InvalidInput for the field `tokens` at an unknown id."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids without special tokens. Raises InvalidInput as `token_strings`."""
        ...

    def special_tokens(self, names: Iterable[str]) -> Mapping[int, str]:
        """Return the id and the name of each of these tokens that is special, so that it has no text."""
        ...

    def stream(self, prompt_ids: tuple[int, ...]) -> TokenStream:
        """Return a stream for the text after this prompt."""
        ...


def partial_bytes(tokens: Iterable[tuple[int, str]], texts: TokenTexts) -> tuple[tuple[int, bytes], ...]:
    """Return the bytes of each token whose text is not whole characters. `tokens`: ids and texts."""
    partial = {token_id for token_id, text in tokens if REPLACEMENT in text}
    return tuple((token_id, texts.bytes_of(token_id)) for token_id in sorted(partial))
