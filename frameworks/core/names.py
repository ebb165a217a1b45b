"""Define names of models: their form, their place in the path of a URL, and which of them a caller may have meant."""

import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, WithJsonSchema

MAX_NAME_CHARACTERS = 128
MAX_ALIASES = 64
"""Aliases of one model."""

WORDS_BEHIND_NAMES = (
    "adapters", "config", "files", "generate", "generate_stream", "infer", "load", "ready", "rollback", "stats",
    "trace", "unload", "versions",
)  # fmt: skip
"""Parts that follow the name of a model in the paths of routes. No name has one as its second part: a path has one
meaning.
"""
_WORDS = "|".join(WORDS_BEHIND_NAMES)
_PART = "[A-Za-z0-9][A-Za-z0-9._-]*"

NAME_IN_PATH = rf"(?:{_PART}/(?!(?:{_WORDS})(?:/|\Z))[A-Za-z0-9][A-Za-z0-9._:-]*|[^/]+)"
"""A name in a decoded path, as a regular expression: two parts of names if the second is no word of a route, or any
one part. An adapter may follow, as `org/name:adapter`.
"""

_NAME = re.compile(rf"{_PART}(?:/(?!(?:{_WORDS})\Z){_PART})?", re.ASCII)
_EXPECTED = (
    "expected a name or org/name of 1 to 128 letters, digits, dots, dashes and underscores, a letter or digit first in "
    "each part"
)


def is_model_name(text: str) -> bool:
    """Whether a text can be the name of a model."""
    return len(text) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(text) is not None


def checked_name(name: str) -> str:
    """Return the name of a model. Raises ValueError for a text that can be none."""
    if is_model_name(name):
        return name
    word = name.rpartition("/")[2]
    if word in WORDS_BEHIND_NAMES and "/" in name:
        raise ValueError(f"expected org/name without a word of a path in place of the name; replace {word}")
    raise ValueError(_EXPECTED)


ModelName = Annotated[
    str,
    AfterValidator(checked_name),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": MAX_NAME_CHARACTERS,
            "pattern": rf"^{_PART}(/(?!({_WORDS})$){_PART})?$",
        }
    ),
]


def checked_aliases(aliases: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    """Return the aliases of a model. Raises ValueError for too many, and for one that occurs twice."""
    if len(aliases) > MAX_ALIASES:
        raise ValueError(f"expected at most {MAX_ALIASES} aliases")
    names = [info.data.get("name"), *aliases]
    again = next((name for name in names if names.count(name) > 1), None)
    if again is not None:
        raise ValueError(f'expected aliases that differ from each other and from the name; remove one "{again}"')
    return aliases


Aliases = Annotated[tuple[ModelName, ...], Field(strict=False), AfterValidator(checked_aliases)]
"""Of a class with the field `name` before it."""


def last_part(name: str) -> str:
    """Return a name without its `org/`."""
    return name.rpartition("/")[2]


def meant_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that differ from `name` only by case or by `org/`."""
    if len(name) > MAX_NAME_CHARACTERS:
        return []
    last = last_part(name).casefold()
    return [each for each in known if last_part(each).casefold() == last]
