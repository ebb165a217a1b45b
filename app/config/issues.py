"""Issues of a configuration: place, key and message, in the grammar `key: expected X, got Y; do Z`."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from frameworks.core.errors import similar_names

Location = tuple[str | int, ...]
"""Path of a value in the nested tables: ("models", "onnx_models", 0, "name")."""

IssueKind = Literal[
    "unreadable",  # the file is missing, a folder, not UTF-8, too large
    "syntax",  # not TOML
    "unknown_key",
    "unknown_variable",  # a ROUNDHOUSE_... environment variable without a setting
    "missing",
    "invalid",
    "duplicate",  # one name for two models, one setting by two variables
    "not_found",  # a path without a file (`roundhouse check` only)
    "deprecated",  # an old name of a key: a warning, not an error
    "unprotected",  # a server without keys beyond loopback, a keys file that other users can read: a warning
]
_WARNINGS = ("deprecated", "unprotected")

_MAX_VALUE_CHARACTERS = 60
_EXPECTED = {
    "int_type": "expected an integer",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
    "bool_type": "expected true or false",
    "string_type": "expected a string",
    "string_unicode": "expected valid Unicode text",
    "string_pattern_mismatch": "expected 1 to 128 letters, digits, dots, dashes and underscores, "
    "a letter or digit first",
    "string_too_short": "expected at least {min_length} character",
    "tuple_type": "expected a list",
    "model_type": "expected a table",
    "greater_than_equal": "expected at least {ge}",
    "greater_than": "expected more than {gt}",
    "less_than_equal": "expected at most {le}",
    "value_error": "{error}",
}
"""Error type of pydantic → our words, for every error that the settings can raise."""
_SCALAR = re.compile(r"true|false|[+-]?[0-9]+(\.[0-9]+)?", re.ASCII)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class ConfigIssue:
    """One error or warning. `origin`: the file, the environment variable, `command line` or `body`."""

    origin: str
    line: int | None
    key: str
    message: str
    kind: IssueKind

    @property
    def place(self) -> str:
        """Origin and line: `config.toml:12`."""
        return self.origin if self.line is None else f"{self.origin}:{self.line}"

    @property
    def is_error(self) -> bool:
        return self.kind not in _WARNINGS

    def __str__(self) -> str:
        return _printable(": ".join(part for part in (self.place, self.key, self.message) if part))


class ConfigError(Exception):
    """A configuration that cannot be used. `issues`: all its errors; str() has one line for each."""

    def __init__(self, issues: Iterable[ConfigIssue]) -> None:
        self.issues = tuple(issues)
        super().__init__("\n".join(map(str, self.issues)))


def format_location(location: Location) -> str:
    """Format a location as `models.onnx_models[0].name`."""
    text = ""
    for step in location:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if _BARE_KEY.fullmatch(step) else format_value(step))
    return text


def format_value(value: object) -> str:
    """Format a value for a message: text and numbers short and on one line, all else by its kind."""
    match value:
        case bool():
            text = "true" if value else "false"
        case int():
            text = str(value) if abs(value) < 10**_MAX_VALUE_CHARACTERS else "a very large number"
        case str():
            cut = value if len(value) <= _MAX_VALUE_CHARACTERS else value[:_MAX_VALUE_CHARACTERS] + "…"
            text = _printable(json.dumps(cut, ensure_ascii=False))
        case list() | tuple():
            text = "a list" if value else "an empty list"
        case Mapping():
            text = "a table"
        case None:
            text = "null"
        case _:
            text = str(value)[:_MAX_VALUE_CHARACTERS]  # a float, a date, a time
    return text


def _printable(text: str) -> str:
    """Escape the characters that could break the line, control a terminal or fail to encode."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`; None without a similar one."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = similar_names(name.lower(), by_lower, 1)
    return by_lower[near[0]] if near else None


def describe_error(error: Mapping[str, Any]) -> str:
    """Translate one error of pydantic into `expected X, got Y; do Z`. Missing and unknown keys are not handled here.

    The message of a ValueError may end with its own remedy: `expected X; do Z`. It may also say what was given.
    """
    error_type, value, context = error["type"], error["input"], error.get("ctx") or {}
    if error_type == "literal_error":
        names = re.findall("'([^']*)'", context["expected"])
        expected = "expected one of " + ", ".join(map(format_value, names))
        near = nearest(value, names) if isinstance(value, str) else None
        remedy = f'did you mean "{near}"?' if near else ""
    else:
        text = _EXPECTED.get(error_type, "expected another kind of value").format_map(_short_numbers(context))
        expected, _, remedy = text.partition("; ")
    if isinstance(value, str) and error_type in ("int_type", "float_type", "bool_type") and _SCALAR.fullmatch(value):
        remedy = "remove the quotes"
    says_given = error_type == "value_error" and ", got " in expected
    given = "" if says_given else f", got {format_value(value)}"
    return f"{expected}{given}" + (f"; {remedy}" if remedy else "")


def _short_numbers(limits: Mapping[str, Any]) -> dict[str, Any]:
    return {name: f"{limit:g}" if isinstance(limit, float) else limit for name, limit in limits.items()}
