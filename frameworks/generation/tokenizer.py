"""What a generating model's tokenizer does, whatever library reads its files."""

from collections.abc import Sequence
from typing import Protocol

from frameworks.generation.types import Prompt


class TokenStream(Protocol):
    """Text out of tokens as they come. Used by one thread."""

    def push(self, token_id: int) -> str:
        """The whole characters that the token completes; empty while it only begins one."""
        ...

    def flush(self) -> str:
        """What is left at the end, an unfinished character as U+FFFD."""
        ...


class GenerationTokenizer(Protocol):
    """May be used by several threads at once. It blocks while it works."""

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids, with the special tokens that the model's files put before a text; a conversation through the
        model's chat template.

        Raises InvalidInput, with the field `prompt` or `messages`: not Unicode, an id that the vocabulary does not
        have, a model without a chat template, messages that the template refuses.
        """
        ...

    def ids_of(self, text: str, add_special_tokens: bool) -> Sequence[int]:
        """All of a text's tokens, with those before and behind it that the model's files say, or without them.

        Raises InvalidInput as `encode`.
        """
        ...

    def token_strings(self, token_ids: Sequence[int]) -> Sequence[str]:
        """Tokens as the vocabulary has them. Raises InvalidInput, with the field `tokens`, for an id that is none."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out. Raises InvalidInput as `token_strings`."""
        ...

    def text_of(self, token_id: int) -> str:
        """One token's own text; bytes that are no whole character as U+FFFD."""
        ...

    def stream(self, prompt_ids: tuple[int, ...]) -> TokenStream:
        """For the text behind this prompt."""
        ...
