"""Read calls in the syntax of Python, `[name(key=value), …]`, that arrive in pieces, and write their arguments as JSON.

Values are literals of Python or of JSON. Each character is read once, however the text is cut.
"""

import json
import re
from collections.abc import Callable, Collection

from frameworks.generation.tools.json_scanner import match_end

_WORD_PART = re.compile(r"[\w.+-]*")
_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_INTEGER = re.compile(r"-?[0-9][0-9_]{0,400}")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_MAX_CODE_POINT = 0x10FFFF


class PythonicScanner:
    """`on_name`, `on_arguments`: as of CallScanner, for each call. Starts behind the first `[`."""

    def __init__(self, on_name: Callable[[str], bool], on_arguments: Callable[[str], None]) -> None:
        self.is_over = False
        self.has_failed = False
        self.has_name = False
        """Whether a call has begun."""
        self._on_name = on_name
        self._on_arguments = on_arguments
        self._open: list[str] = []
        """Brackets of the call and its values; `=` above the value of an argument."""
        self._token: list[str] = []
        self._is_word_over = False
        self._quote = ""
        self._escaped = False
        self._needs_comma = False
        self._is_key = False

    def may_be_call(self, names: Collection[str]) -> bool:
        """As of CallScanner, before the first call has begun."""
        word = "".join(self._token)
        return not word or (any(name.startswith(word) for name in names) if names else bool(_NAME.fullmatch(word)))

    def feed(self, text: str, position: int) -> int:
        """Return the position up to which `text` belongs to the calls."""
        while position < len(text) and not (self.is_over or self.has_failed):
            if self._quote:
                position = self._feed_string(text, position)
                continue
            end = match_end(_WORD_PART, text, position)
            if end > position:
                self.has_failed = self._is_word_over
                self._token.append(text[position:end])
                position = end
                continue
            end = match_end(_SPACE, text, position)
            if end > position:
                self._is_word_over = bool(self._token)
                position = end
                continue
            if self._token and not self._complete_word(text[position]):
                self.has_failed = True
                return position
            self._feed_mark(text[position])
            position += not self.has_failed
        return position

    def _complete_word(self, following: str) -> bool:
        """Take the word before a mark; return whether it has a meaning there."""
        word = "".join(self._token)
        self._is_word_over = False
        if not self._open:
            if following != "(" or not _NAME.fullmatch(word) or not self._on_name(word):
                return False
            self.has_name = True
        elif self._open == ["("]:
            if following != "=" or not _NAME.fullmatch(word):
                return False
            self._write(f'"{word}": ', is_item=True)
        else:
            literal = _literal(word)
            if literal is None:
                return False
            self._write(f'"{literal}"' if self._is_key else literal, is_item=True)
        self._token.clear()
        return True

    def _feed_mark(self, mark: str) -> None:
        opened = self._open
        in_value = len(opened) > 1
        match mark:
            case "(" if not opened:
                self._open_bracket("(", "{")
            case "=" if opened == ["("]:
                opened.append("=")
                self._needs_comma = False
            case "'" | '"' if in_value:
                self._quote = mark
            case "[" | "{" | "(" if in_value:
                self._open_bracket(mark, "{" if mark == "{" else "[")
            case ":" if in_value and opened[-1] == "{" and self._is_key:
                self._write(": ")
                self._is_key = self._needs_comma = False
            case ",":
                if opened and opened[-1] == "=":
                    opened.pop()
                self._is_key = bool(opened) and opened[-1] == "{"
            case "]" if not opened:
                self.is_over = True
            case ")" | "]" | "}":
                self._close(mark)
            case _:
                self.has_failed = True

    def _open_bracket(self, mark: str, written: str) -> None:
        self._write(written, is_item=True)
        self._open.append(mark)
        self._needs_comma = False
        self._is_key = mark == "{"

    def _close(self, mark: str) -> None:
        if mark == ")" and self._open[-1:] == ["="]:
            self._open.pop()
        if not self._open or _CLOSING.get(self._open[-1]) != mark:
            self.has_failed = True
            return
        bracket = self._open.pop()
        is_call = not self._open
        self._write("}" if is_call or bracket == "{" else "]")
        self._needs_comma, self._is_key = not is_call, False

    def _feed_string(self, text: str, position: int) -> int:
        start = position
        while position < len(text):
            character = text[position]
            position += 1
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == self._quote:
                self._token.append(text[start : position - 1])
                self._quote = ""
                self._write(json.dumps(_unescaped("".join(self._token)), ensure_ascii=False), is_item=True)
                self._token.clear()
                return position
        self._token.append(text[start:position])
        return position

    def _write(self, text: str, is_item: bool = False) -> None:
        if is_item and self._needs_comma:
            text = ", " + text
        if is_item:
            self._needs_comma = True
        self._on_arguments(text)


def _literal(word: str) -> str | None:
    """Return a number or a constant as JSON; None for any other word."""
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    try:
        if _INTEGER.fullmatch(word):
            return str(int(word))
        number = float(word)
    except ValueError:
        return None
    return json.dumps(number) if number - number == 0 else None


def _unescaped(text: str) -> str:
    if "\\" in text:
        text = _ESCAPE.sub(_character, text)
        # JSON writes characters beyond U+FFFF as two surrogates.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _character(escape: "re.Match[str]") -> str:
    number = escape[1] or escape[2] or escape[3]
    if number is None:
        return _ESCAPED.get(escape[4], escape[4])
    code = int(number, 16)
    return chr(code) if code <= _MAX_CODE_POINT else "\N{REPLACEMENT CHARACTER}"
