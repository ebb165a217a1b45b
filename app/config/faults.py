"""What is wrong with a configuration, in plain words: where it stands, what came, and what would be right."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Location = tuple[str | int, ...]
"""Where a value stands in the nested tables: ("models", "onnx_models", 0, "name")."""

FaultKind = Literal[
    "unreadable",  # the file is missing, a folder, not UTF-8, too large
    "syntax",  # not TOML
    "unknown_key",
    "unknown_variable",  # a ROUNDHOUSE_... environment variable that sets nothing
    "missing",
    "invalid",
    "duplicate",  # one name for two models, one setting by two variables
    "not_found",  # a path with nothing there (roundhouse check only)
]

_LONGEST_VALUE_SHOWN = 60
_WANTED = {
    "int_type": "wants a whole number",
    "float_type": "wants a number",
    "finite_number": "wants a number",
    "bool_type": "wants true or false",
    "string_type": "wants text in quotes",
    "string_unicode": "wants valid Unicode text",
    "string_pattern_mismatch": "wants 1 to 128 letters, digits, dots, dashes and underscores, a letter or digit first",
    "string_too_short": "wants at least {min_length} character",
    "tuple_type": "wants a list in [ ]",
    "model_type": "wants a table of keys and values",
    "greater_than_equal": "wants at least {ge}",
    "greater_than": "wants more than {gt}",
    "less_than_equal": "wants at most {le}",
    "value_error": "{error}",
}
"""What each kind of pydantic's errors that our settings can raise says in plain words."""
_SCALAR = re.compile(r"true|false|[+-]?[0-9]+(\.[0-9]+)?", re.ASCII)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. `origin` is the file, the environment variable, or what else the value came from."""

    origin: str
    line: int | None
    key: str
    message: str
    kind: FaultKind

    def __str__(self) -> str:
        place = self.origin if self.line is None else f"{self.origin}:{self.line}"
        return _printable(": ".join(part for part in (place, self.key, self.message) if part))


class ConfigError(Exception):
    """A configuration that cannot be used; `faults` has everything that is wrong with it, str() one line for each."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


def dotted(location: Location) -> str:
    """Writes a location as people do: `models.onnx_models[0].name`."""
    text = ""
    for step in location:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if _BARE_KEY.fullmatch(step) else shown(step))
    return text


def shown(value: object) -> str:
    """A value as the message shows it: text and numbers short and on one line, the rest by its kind."""
    match value:
        case bool():
            text = "true" if value else "false"
        case int():
            text = str(value) if abs(value) < 10**_LONGEST_VALUE_SHOWN else "a very large number"
        case str():
            cut = value if len(value) <= _LONGEST_VALUE_SHOWN else value[:_LONGEST_VALUE_SHOWN] + "…"
            text = _printable(json.dumps(cut, ensure_ascii=False))
        case list() | tuple():
            text = "a list" if value else "an empty list"
        case Mapping():
            text = "a table"
        case None:
            text = "nothing (null)"
        case _:
            text = str(value)[:_LONGEST_VALUE_SHOWN]  # a float, a date, a time
    return text


def _printable(text: str) -> str:
    """Escapes what could break the line, steer a terminal or not be encoded."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was most likely meant to be, if one is near."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None


def describe_fault(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors (neither a missing nor an unknown key) as: what is wanted, what came, the remedy."""
    error_type, came, context, remedy = error["type"], error["input"], error.get("ctx") or {}, ""
    if error_type == "literal_error":
        names = re.findall("'([^']*)'", context["expected"])
        wanted = "wants one of " + ", ".join(map(shown, names))
        near = nearest(came, names) if isinstance(came, str) else None
        remedy = f'; did you mean "{near}"?' if near else ""
    else:
        wanted = _WANTED.get(error_type, "wants another kind of value").format_map(_in_short(context))
    if isinstance(came, str) and error_type in ("int_type", "float_type", "bool_type") and _SCALAR.fullmatch(came):
        remedy = "; take the quotes away"
    return f"{wanted}, but {shown(came)} came{remedy}"


def _in_short(limits: Mapping[str, Any]) -> dict[str, Any]:
    return {name: f"{limit:g}" if isinstance(limit, float) else limit for name, limit in limits.items()}
