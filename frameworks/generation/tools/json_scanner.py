"""Read JSON that arrives in pieces: find the end of a value, and the members of the object of a tool call.

Each character is read once, however the text is cut.
"""

import json
import re
from collections.abc import Callable, Collection

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING_PART = re.compile(r'[^"\\]*')
_BETWEEN_BRACKETS = re.compile(r'[^"{}\[\]]*')
_SCALAR_PART = re.compile(r"[^,}\]\s]*")


def skip_space(text: str, position: int) -> int:
    """Return the position of the next character that is no white space."""
    return match_end(_SPACE, text, position)


class ValueScanner:
    """Find the end of one JSON value. `kind` after its first character: `"`, `{`, `[` or, for a scalar, its own."""

    def __init__(self) -> None:
        self.kind = ""
        self.is_over = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, position: int) -> int:
        """Return the position up to which `text` belongs to the value. The value has no leading white space."""
        size = len(text)
        if position < size and not self.kind:
            self.kind = text[position]
        if self.kind and self.kind not in '"{[':
            end = match_end(_SCALAR_PART, text, position)
            self.is_over = end < size
            return end
        while position < size and not self.is_over:
            if self._escaped:
                self._escaped = False
                position += 1
            elif self._in_string:
                position = self._feed_string(text, position)
            else:
                position = self._feed_structure(text, position)
        return position

    def _feed_string(self, text: str, position: int) -> int:
        position = match_end(_STRING_PART, text, position)
        if position == len(text):
            return position
        if text[position] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self.is_over = not self._depth
        return position + 1

    def _feed_structure(self, text: str, position: int) -> int:
        position = match_end(_BETWEEN_BRACKETS, text, position)
        if position == len(text):
            return position
        match text[position]:
            case '"':
                self._in_string = True
            case "{" | "[":
                self._depth += 1
            case _:
                self._depth -= 1
                self.is_over = self._depth <= 0
        return position + 1


class CallScanner:
    """Read the object of a call: `{"name": …, "arguments": …}`, with `parameters` as another name of the arguments.

    `on_name` gets the name as soon as it is known, and returns whether it is one. `on_arguments` gets the text of the
    arguments, never before the name.
    """

    _NAMES: Collection[str] = ("name", "function")
    _ARGUMENTS: Collection[str] = ("arguments", "parameters")
    _OTHERS: Collection[str] = ("type", "id")

    def __init__(self, on_name: Callable[[str], bool], on_arguments: Callable[[str], None]) -> None:
        self.is_over = False
        self.has_failed = False
        """The text is no call. The part that was read belongs to the content, unless the name was known."""
        self.has_name = False
        self._on_name = on_name
        self._on_arguments = on_arguments
        self._expected = "{"
        self._value = ValueScanner()
        self._key = ""
        self._collected: list[str] = []
        self._held: list[str] = []
        self._has_arguments = False
        self._has_known_members = True

    def may_be_call(self, names: Collection[str]) -> bool:
        """Return whether the text so far has only members of a call. `names`: of the functions; empty: any."""
        part = "".join(self._collected)
        expected: Collection[str] = ()
        if self._expected == "key":
            expected = (*self._NAMES, *self._ARGUMENTS, *self._OTHERS)
        elif self._expected == "value" and self._key in self._NAMES:
            expected = names
        is_known = not expected or any(json.dumps(each).startswith(part) for each in expected)
        return self._has_known_members and is_known

    def feed(self, text: str, position: int) -> int:
        """Return the position up to which `text` belongs to the call."""
        while not (self.is_over or self.has_failed):
            if not (self._expected in ("key", "value") and self._value.kind):
                position = skip_space(text, position)
            if position == len(text):
                break
            if self._expected in ("key", "value"):
                position = self._feed_value(text, position)
            else:
                position = self._feed_mark(text, position)
        return position

    def _feed_mark(self, text: str, position: int) -> int:
        character = text[position]
        if self._expected == "}" and character == ",":
            self._expected = "key"
        elif character != self._expected:
            self.has_failed = True
            return position
        elif character == "}":
            self._end()
        else:
            self._expected = "key" if character == "{" else "value"
        self._value = ValueScanner()
        return position + 1

    def _feed_value(self, text: str, position: int) -> int:
        if self._expected == "key" and not self._value.kind and text[position] != '"':
            if text[position] == "}":
                self._end()
                return position + 1
            self.has_failed = True
            return position
        start = position
        position = self._value.feed(text, position)
        part = text[start:position]
        if self._expected == "value" and self._key in self._ARGUMENTS and self._value.kind in "{[":
            self._has_arguments = True
            self._give(part)
        else:
            self._collected.append(part)
        if self._value.is_over:
            self._complete("".join(self._collected))
            self._collected.clear()
        return position

    def _complete(self, value: str) -> None:
        if self._expected == "key":
            self._key = _decoded(value) or ""
            self._has_known_members &= self._key in (*self._NAMES, *self._ARGUMENTS, *self._OTHERS)
            self._expected = ":"
            return
        self._expected = "}"
        if self._key in self._NAMES and not self.has_name:
            name = _decoded(value)
            self.has_name = name is not None and self._on_name(name)
            self.has_failed = not self.has_name
            if self.has_name and self._held:
                self._on_arguments("".join(self._held))
                self._held.clear()
        elif self._key in self._ARGUMENTS and not self._has_arguments:
            # Some models write the arguments as a string that contains JSON.
            self._has_arguments = value != "null"
            if self._has_arguments:
                self._give(_decoded(value) or value)
        elif self._key == "type":
            self._has_known_members &= value == '"function"'

    def _give(self, arguments: str) -> None:
        if self.has_name:
            self._on_arguments(arguments)
        else:
            self._held.append(arguments)

    def _end(self) -> None:
        if not self.has_name:
            self.has_failed = True
            return
        self.is_over = True
        if not self._has_arguments:
            self._on_arguments("{}")


def match_end(pattern: "re.Pattern[str]", text: str, position: int) -> int:
    """Return the end of a pattern's match at the position. The pattern matches the empty string."""
    match = pattern.match(text, position)
    assert match is not None
    return match.end()


def _decoded(value: str) -> str | None:
    """Return the string that a JSON string encodes; None for any other value."""
    if not value.startswith('"'):
        return None
    try:
        return str(json.loads(value, strict=False))
    except ValueError:
        return None
