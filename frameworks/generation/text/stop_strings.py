"""Find the first of several stop strings in a text that arrives in pieces."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple


class StopMatch(NamedTuple):
    """State of a search after some more text.

    `state`: to continue from. `end`: characters of the new text up to the end of a stop string, or None. `length`: of
    that string, which may start before the new text.
    """

    state: int
    end: int | None = None
    length: int = 0


class StopStrings:
    """Search for several strings at once in one pass over the text. Made once for all choices of a request.

    The match is the string that ends first as the text grows, however the text is cut into tokens; of several that end
    together the longest. Method: Aho and Corasick, "Efficient string matching" (1975).
    """

    def __init__(self, strings: Iterable[str]) -> None:
        """Empty strings are ignored: they would end every text at once."""
        self._next: list[dict[str, int]] = [{}]
        self._length = [0]
        for string in strings:
            self._add(string)
        # State of the longest other suffix that starts a string, to continue from where no string continues.
        self._fallback = [0] * len(self._next)
        depth = [0] * len(self._next)
        self._held = [0] * len(self._next)
        queue = deque([0])
        while queue:
            state = queue.popleft()
            for character, child in self._next[state].items():
                depth[child] = depth[state] + 1
                if state:
                    self._fallback[child] = self._advance(self._fallback[state], character)
                queue.append(child)
            fallback = self._fallback[state]
            self._length[state] = self._length[state] or self._length[fallback]
            self._held[state] = depth[state] if self._next[state] else self._held[fallback]

    def __bool__(self) -> bool:
        return len(self._next) > 1

    def search(self, state: int, text: str) -> StopMatch:
        """Search some more text, from `state`; 0 at the start of a text."""
        advance, length = self._advance, self._length
        for position, character in enumerate(text, start=1):
            state = advance(state, character)
            if length[state]:
                return StopMatch(state, position, length[state])
        return StopMatch(state)

    def skip(self, state: int, text: str) -> StopMatch:
        """Advance as `search`, but ignore every stop string that ends within `text`."""
        for character in text:
            state = self._advance(state, character)
        return StopMatch(state)

    def held(self, state: int) -> int:
        """Return how many of the last characters may be the start of a stop string."""
        return self._held[state]

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            children = self._next[state]
            if character not in children:
                children[character] = len(self._next)
                self._next.append({})
                self._length.append(0)
            state = children[character]
        self._length[state] = len(string)

    def _advance(self, state: int, character: str) -> int:
        while True:
            following = self._next[state].get(character)
            if following is not None:
                return following
            if not state:
                return 0
            state = self._fallback[state]
