"""Words and repetitions that a text must not have: the tokens that would complete one."""

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


class RepeatedNgrams:
    """The tokens that would repeat an n-gram of a text, as in transformers' NoRepeatNGramLogitsProcessor."""

    def __init__(self, size: int, prompt_ids: Iterable[int]) -> None:
        """`size`: tokens of an n-gram; 0: none is banned. `prompt_ids`: the first tokens of the text."""
        self._size = size
        self._tail: TokenIds = ()
        self._next: dict[TokenIds, frozenset[int]] = {}
        self.banned: frozenset[int] = frozenset()
        """The tokens that would complete an n-gram for the second time now."""
        if size:
            for token_id in prompt_ids:
                self.accept(token_id)

    @property
    def has_effect(self) -> bool:
        """Whether a token may ever be banned."""
        return self._size > 0

    def copy(self) -> "RepeatedNgrams":
        """Return an independent one in the same state."""
        other = copy.copy(self)
        other._next = self._next.copy()
        return other

    def accept(self, token_id: int) -> frozenset[int]:
        """Record the next token of the text. Returns the tokens that are banned or allowed since."""
        if not self._size:
            return frozenset()
        if len(self._tail) == self._size - 1:
            self._next[self._tail] = self._next.get(self._tail, frozenset()) | {token_id}
        self._tail = (*self._tail, token_id)[-(self._size - 1) :] if self._size > 1 else ()
        banned = self._next.get(self._tail, frozenset()) if len(self._tail) == self._size - 1 else frozenset()
        changed, self.banned = banned ^ self.banned, banned
        return changed


def ngrams_of(token_ids: TokenIds, size: int) -> tuple[TokenIds, ...]:
    """Return the different n-grams of so many tokens, in order; none for a size of 0."""
    return tuple(dict.fromkeys(token_ids[i : i + size] for i in range(len(token_ids) + 1 - size))) if size else ()
