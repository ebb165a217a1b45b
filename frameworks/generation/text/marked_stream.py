"""Text of tokens with the marks of a format, some of which are special tokens without a text."""

from collections.abc import Mapping, Sequence

from frameworks.generation.text.tokenizer import GenerationTokenizer, TokenStream
from frameworks.generation.tools.formats import END_OF_THINKING, THINK, TextFormat

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


class ReasoningCount:
    """Count the tokens of a text up to `</think>`, if it begins with `<think>`."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._tail = ""
        self._has_begun = False
        self._is_over = False

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the reasoning, its marks included."""
        return self._num_tokens if self._has_begun else 0

    def push(self, text: str) -> None:
        """Add the text of one token."""
        if self._is_over:
            return
        self._num_tokens += 1
        self._tail += text
        if not self._has_begun:
            self._tail = self._tail.lstrip()
            self._has_begun = self._tail.startswith(THINK)
            self._is_over = not (self._has_begun or THINK.startswith(self._tail))
        if self._has_begun:
            self._is_over = END_OF_THINKING in self._tail
            self._tail = self._tail[1 - len(END_OF_THINKING) :]
