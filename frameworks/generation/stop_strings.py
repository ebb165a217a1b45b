"""Where a text that comes bit by bit is to end: at the first of several strings."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple


class Found(NamedTuple):
    """How a search stands behind some more text.

    `place`: to go on from. `end`: the number of the new text's characters up to the end of a stop string, None where
    none ended; `length`: of that string, which may have begun before the new text.
    """

    place: int
    end: int | None = None
    length: int = 0


class StopStrings:
    """Several strings, looked for all at once in one pass over the text. Made once for all choices of a request.

    The first is the one that ends first as the text grows, character by character, however the text is cut into
    tokens; of several that end together the longest. Method: Aho and Corasick, "Efficient string matching" (1975).
    """

    def __init__(self, strings: Iterable[str]) -> None:
        """Empty ones are passed over: they would end every text before it begins."""
        self._next: list[dict[str, int]] = [{}]
        self._length = [0]
        for string in strings:
            self._add(string)
        # The place of the longest other suffix that some string begins with, to go on from where no string goes on.
        self._shorter = [0] * len(self._next)
        depth = [0] * len(self._next)
        self._held = [0] * len(self._next)
        line = deque([0])
        while line:
            place = line.popleft()
            for character, child in self._next[place].items():
                depth[child] = depth[place] + 1
                if place:
                    self._shorter[child] = self._after(self._shorter[place], character)
                line.append(child)
            shorter = self._shorter[place]
            self._length[place] = self._length[place] or self._length[shorter]
            self._held[place] = depth[place] if self._next[place] else self._held[shorter]

    def __bool__(self) -> bool:
        return len(self._next) > 1

    def search(self, place: int, text: str) -> Found:
        """Goes on from `place`, 0 at the beginning of a text, through some more of it."""
        after, length = self._after, self._length
        for position, character in enumerate(text, start=1):
            place = after(place, character)
            if length[place]:
                return Found(place, position, length[place])
        return Found(place)

    def skip(self, place: int, text: str) -> Found:
        """As `search`, where no stop string counts that ends within `text`."""
        for character in text:
            place = self._after(place, character)
        return Found(place)

    def held(self, place: int) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        return self._held[place]

    def _add(self, string: str) -> None:
        place = 0
        for character in string:
            children = self._next[place]
            if character not in children:
                children[character] = len(self._next)
                self._next.append({})
                self._length.append(0)
            place = children[character]
        self._length[place] = len(string)

    def _after(self, place: int, character: str) -> int:
        while True:
            following = self._next[place].get(character)
            if following is not None:
                return following
            if not place:
                return 0
            place = self._shorter[place]
