"""Text of tokens with the marks of a format, some of which are special tokens without a text."""

from collections.abc import Mapping, Sequence

from frameworks.generation.tokenizer import GenerationTokenizer, TokenStream
from frameworks.generation.tools.formats import THINK, TextFormat

_MAX_TAIL_TOKENS = 16


def ends_with_opening(tokenizer: GenerationTokenizer, prompt_ids: Sequence[int], text_format: TextFormat) -> bool:
    """Return whether a prompt ends with `<think>`, so that the text continues the thinking."""
    if not text_format.thinks:
        return False
    tail = "".join(map(tokenizer.text_of, prompt_ids[-_MAX_TAIL_TOKENS:]))
    return tail.rstrip().endswith(THINK)


class MarkedStream:
    """A TokenStream: the text of another one, and the names of special tokens."""

    def __init__(self, stream: TokenStream, shown: Mapping[int, str], beginning: str = "") -> None:
        """`shown`: the names of special tokens. `beginning`: precedes the text."""
        self._stream = stream
        self._shown = shown
        self._beginning = beginning

    def push(self, token_id: int) -> str:
        """As TokenStream.push."""
        name = self._shown.get(token_id)
        text = self._stream.push(token_id) if name is None else self._stream.flush() + name
        return self._with_beginning(text)

    def flush(self) -> str:
        """As TokenStream.flush."""
        return self._with_beginning(self._stream.flush())

    def _with_beginning(self, text: str) -> str:
        if self._beginning:
            text, self._beginning = self._beginning + text, ""
        return text
