"""Find the line of each key of a TOML file: tomli parses values, not positions."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import tomli

from app.config.issues import Location

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SAME_LINE_BLANK = re.compile(r"[ \t]*")
_KEY_PART = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_VALUE = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*"{3,5}|\'\'\'(?:[^']|'(?!\'\'))*'{3,5}|'''
    r""""(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^,\]}#\n]+""",
    re.DOTALL,
)


def key_lines(text: str) -> dict[Location, int]:
    """Return the line (from 1) of every table, key and list item of `text`, which tomli must have accepted.

    A table has the line of its header, else of its first key. If the scan fails, the lines found so far are returned.
    """
    scanner = _Scanner(text)
    with suppress(_ScanError, RecursionError):
        scanner.document()
    return scanner.lines


class _ScanError(Exception):
    """The text is not a valid TOML document."""


class _Scanner:
    """Scans a document from start to end and records the line of each table, key and item."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Location, int] = {}
        self._text = text
        self._position = 0
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self._num_items: dict[Location, int] = {}  # of each [[array of tables]], so far

    def document(self) -> None:
        table: Location = ()
        while self._skip(_BLANK) < len(self._text):
            if self._takes("["):
                table = self._header()
            else:
                self._key_and_value(table)

    def _header(self) -> Location:
        is_array, start = self._takes("["), self._position
        *parents, name = self._key()
        location: Location = ()
        for parent in parents:
            location = (*location, parent)
            self._note(location, start)
            if location in self._num_items:
                location = (*location, self._num_items[location] - 1)
        location = (*location, name)
        if is_array:
            self._note(location, start)
            index = self._num_items.get(location, 0)
            self._num_items[location] = index + 1
            location = (*location, index)
        self._expect("]" * (1 + is_array))
        self.lines[location] = self._line(start)  # the table's own header, even after one of a sub-table
        return location

    def _key_and_value(self, table: Location) -> None:
        start, location = self._position, table
        for part in self._key():
            location = (*location, part)
            self._note(location, start)
        self._expect("=")
        self._skip(_SAME_LINE_BLANK)
        self._value(location)

    def _value(self, location: Location) -> None:
        if self._takes("["):
            for index in self._items("]"):
                self._note((*location, index), self._position)
                self._value((*location, index))
        elif self._takes("{"):
            for _ in self._items("}"):
                self._key_and_value(location)
        else:
            self._match(_VALUE)

    def _items(self, closing: str) -> Iterator[int]:
        """Yield the index of each item of a list or inline table, positioned before it; skip the closing bracket."""
        self._skip(_BLANK)
        for index in count():
            if self._takes(closing):
                return
            yield index
            self._skip(_BLANK)
            self._takes(",")
            self._skip(_BLANK)

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._skip(_SAME_LINE_BLANK)
            part = self._match(_KEY_PART)
            parts.append(next(iter(tomli.loads(f"{part} = 0"))) if part[0] in "\"'" else part)
            self._skip(_SAME_LINE_BLANK)
            if not self._takes("."):
                return parts

    def _note(self, location: Location, position: int) -> None:
        self.lines.setdefault(location, self._line(position))

    def _line(self, position: int) -> int:
        return bisect_right(self._line_ends, position - 1) + 1

    def _takes(self, expected: str) -> bool:
        if not self._text.startswith(expected, self._position):
            return False
        self._position += len(expected)
        return True

    def _expect(self, expected: str) -> None:
        if not self._takes(expected):
            raise _ScanError

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self._text, self._position)
        self._position = match.end() if match else self._position
        return self._position

    def _match(self, pattern: re.Pattern[str]) -> str:
        start = self._position
        match = pattern.match(self._text, start)
        if match is None:
            raise _ScanError
        self._position = match.end()
        return match[0]
