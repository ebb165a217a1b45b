"""Words that a text must not have: the tokens that would complete one."""

import copy
from collections import deque
from collections.abc import Iterable

from frameworks.core.errors import InvalidInput
from frameworks.generation.text.tokenizer import GenerationTokenizer

TokenIds = tuple[int, ...]


def bad_sequences(words: Iterable[str], tokenizer: GenerationTokenizer) -> tuple[TokenIds, ...]:
    """Return the tokens of each word, as the tokenizer splits it at the beginning of a text and after a space.

    Raises InvalidInput for the field `bad_words` if a word is no valid Unicode.
    """
    try:
        found = dict.fromkeys(
            tuple(tokenizer.ids_of(text, False)) for word in words for text in (word, f" {word.lstrip()}")
        )
    except InvalidInput as error:
        raise InvalidInput("bad_words", error.reason) from error
    found.pop((), None)
    return tuple(found)


class BadWords:
    """The tokens that are not allowed next, of one text. A sequence counts from the first token of the text, not of its
    prompt. Each token costs one look-up for each length of the sequences.
    """

    def __init__(self, sequences: Iterable[TokenIds]) -> None:
        """`sequences`: of at least one token each."""
        last: dict[TokenIds, set[int]] = {}
        for *before, end in sequences:
            last.setdefault(tuple(before), set()).add(end)
        self._last = {before: frozenset(ends) for before, ends in last.items()}
        self._lengths = sorted({len(before) for before in last} - {0})
        self._tail: deque[int] = deque(maxlen=max(self._lengths, default=0))
        self.last_ids: frozenset[int] = frozenset().union(*self._last.values())
        """The tokens that may ever be banned."""
        self.banned = self._last.get((), frozenset())
        """The tokens that would complete a word now."""

    def copy(self) -> "BadWords":
        """Return an independent one in the same state."""
        other = copy.copy(self)
        other._tail = self._tail.copy()
        return other

    def accept(self, token_id: int) -> frozenset[int]:
        """Record the next token of the text. Returns the tokens that are banned or allowed since."""
        self._tail.append(token_id)
        tail = tuple(self._tail)
        banned = self._last.get((), frozenset())
        for length in self._lengths:
            if length > len(tail):
                break
            banned |= self._last.get(tail[-length:], frozenset())
        changed, self.banned = banned ^ self.banned, banned
        return changed
