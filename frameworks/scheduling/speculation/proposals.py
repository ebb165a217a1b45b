"""Propose the next tokens of texts, from their own tokens. Pure."""

from array import array
from collections.abc import Sequence as Rows
from typing import NamedTuple, Protocol

from frameworks.scheduling.steps.sequence import Sequence

# Continuations of longer matches are accepted more often; a single token has too many different ones.
_MATCHED_TOKENS = (3, 2)
_BYTES = 4


class Wish(NamedTuple):
    """A sequence for which up to `most` tokens are proposed, at least 1."""

    sequence: Sequence
    most: int


class Proposer(Protocol):
    """Propose the next tokens of sequences. Used by one thread."""

    def propose(self, wishes: Rows[Wish]) -> list[tuple[int, ...]]:
        """Return the tokens that may follow each sequence; empty where nothing is known."""
        ...

    def forget(self, sequence_id: int) -> None:
        """Drop what is kept for a sequence that has ended. Does nothing for an unknown one."""
        ...


class PromptLookup:
    """A Proposer: what followed the last tokens where they occurred before, in the prompt or in the text.

    Prompt lookup decoding, after A. Saxena, 2023: answers that quote their prompt repeat long pieces of it.
    """

    def __init__(self) -> None:
        self._texts: dict[int, _SearchedText] = {}

    def propose(self, wishes: Rows[Wish]) -> list[tuple[int, ...]]:
        """As Proposer.propose."""
        return [self._text_of(wish.sequence).continuation(wish) for wish in wishes]

    def forget(self, sequence_id: int) -> None:
        """As Proposer.forget."""
        self._texts.pop(sequence_id, None)

    def _text_of(self, sequence: Sequence) -> "_SearchedText":
        text = self._texts.get(sequence.sequence_id)
        if text is None:
            text = self._texts[sequence.sequence_id] = _SearchedText()
        return text


class _SearchedText:
    """The tokens of one sequence as bytes: the search for bytes takes a nanosecond for each token."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def continuation(self, wish: Wish) -> tuple[int, ...]:
        """Return the tokens after the latest earlier occurrence of the last tokens.

        An occurrence that reaches into the last tokens repeats itself.
        """
        token_ids = wish.sequence.token_ids
        known = self._bytes
        known += array("I", token_ids[len(known) // _BYTES :]).tobytes()
        for count in _MATCHED_TOKENS:
            end = self._find_end(count)
            if end:
                follows = token_ids[end : end + wish.most]
                while len(follows) < wish.most:
                    follows += follows[: wish.most - len(follows)]
                return tuple(follows)
        return ()

    def _find_end(self, count: int) -> int:
        """Return the number of tokens up to the end of the latest earlier occurrence; 0 if there is none."""
        known, length = self._bytes, count * _BYTES
        if len(known) <= length:
            return 0
        last = bytes(known[-length:])
        found = known.rfind(last, 0, len(known) - _BYTES)
        # Bytes in the middle of two tokens may look like a token.
        while found > 0 and found % _BYTES:
            found = known.rfind(last, 0, found + length - 1)
        return found // _BYTES + count if found >= 0 else 0
