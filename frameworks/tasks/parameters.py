"""Check the parameters of a request: names, types and bounds, before any work starts."""

import math
import string
from collections.abc import Callable
from typing import Any

from frameworks.core.errors import InvalidInput, UnknownField
from frameworks.tasks.types import TaskParameter, TaskSpec

MAX_CHARACTERS = 10_000
"""Of a string, and of each one in a list, unless the parameter says less."""
MAX_CHARACTERS_IN_ALL = 100_000
"""Of all strings of a list, or of an object: each label is tokenized with the input."""
MAX_DEPTH = 4
"""Lists or objects in each other."""
MAX_VALUES = 1000
"""Elements of a list, or values of an object, unless the parameter says otherwise. An inner list is a value too."""
MAX_ATTEMPTS = 10
"""Numbers of a parameter that is a number or a list of them."""

_SHOWN_CHARACTERS = 40


def check_parameters(spec: TaskSpec, given: object, field: str = "parameters") -> dict[str, Any]:
    """Return the parameters that a caller gave, without those that are null.

    `given`: a JSON value; None for no parameters. Raises UnknownField, InvalidInput.
    """
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise InvalidInput(field, f"expected an object, got {_found(given)}; send parameters by their names")
    known = {parameter.name: parameter for parameter in spec.parameters}
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise _unknown(str(name), known, spec, field)
        if value is not None:
            checked[name] = _CHECKS[known[name].type](known[name], value, f"{field}.{name}")
    for parameter in spec.parameters:
        if parameter.required and parameter.name not in checked:
            expected = _expected(parameter)
            raise InvalidInput(f"{field}.{parameter.name}", f"expected {expected}, got nothing; the task needs it")
    return checked


def _unknown(name: str, known: dict[str, TaskParameter], spec: TaskSpec, field: str) -> UnknownField:
    if known:
        return UnknownField.among(name, known, f"{field}.")
    shown = name[:_SHOWN_CHARACTERS]
    return UnknownField(f"{field}.{shown}", f"unknown field; {spec.name} has no parameters, leave it out")


def _boolean(parameter: TaskParameter, value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise _invalid(parameter, value, path)
    return value


def _integer(parameter: TaskParameter, value: object, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not _within(parameter, value):
        raise _invalid(parameter, value, path)
    return value


def _number(parameter: TaskParameter, value: object, path: str) -> float:
    if not _is_finite(value) or not _within(parameter, value):
        raise _invalid(parameter, value, path)
    return float(value)  # type: ignore[arg-type]  # a finite number


def _string(parameter: TaskParameter, value: object, path: str) -> str:
    if not isinstance(value, str) or (parameter.choices and value not in parameter.choices):
        raise _invalid(parameter, value, path)
    least, most = parameter.minimum or 0, _most_characters(parameter)
    if not least <= len(value) <= most:
        raise _invalid(parameter, value, path)
    return _unicode(value, path)


def _template(parameter: TaskParameter, value: object, path: str) -> str:
    """Return a string with one `{}`. A width or an attribute would be read by `str.format`."""
    text = _string(parameter, value, path)
    try:
        fields = [part[1:] for part in string.Formatter().parse(text) if part[1] is not None]
    except ValueError:
        fields = []
    if fields != [("", "", None)]:
        raise _invalid(parameter, value, path)
    return text


def _strings(parameter: TaskParameter, value: object, path: str) -> list[str]:
    if not isinstance(value, list | tuple) or not _holds(parameter, len(value)):
        raise _invalid(parameter, value, path)
    characters = 0
    for index, text in enumerate(value):
        if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
            expected = f"a string of up to {MAX_CHARACTERS} characters"
            raise InvalidInput(f"{path}[{index}]", f"expected {expected}, got {_found(text)}; change it")
        characters += len(_unicode(text, f"{path}[{index}]"))
    _check_all(characters, path)
    return list(value)


def _numbers(parameter: TaskParameter, value: object, path: str) -> list[Any]:
    if not isinstance(value, list | tuple) or not _holds(
        parameter, _count(value, path, _is_finite, _most_values(parameter))
    ):
        raise _invalid(parameter, value, path)
    return list(value)


def _boolean_or_string(parameter: TaskParameter, value: object, path: str) -> bool | str:
    return value if isinstance(value, bool) else _string(parameter, value, path)


def _number_or_numbers(parameter: TaskParameter, value: object, path: str) -> list[float]:
    values = value if isinstance(value, list | tuple) else [value]
    if not 1 <= len(values) <= MAX_ATTEMPTS:
        raise _invalid(parameter, value, path)
    return [_number(parameter, each, path) for each in values]


def _object(parameter: TaskParameter, value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not _holds(parameter, _count(value, path, _is_plain, _most_values(parameter))):
        raise _invalid(parameter, value, path)
    return value


_CHECKS: dict[str, Callable[[TaskParameter, object, str], Any]] = {
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "string": _string,
    "template": _template,
    "strings": _strings,
    "numbers": _numbers,
    "object": _object,
    "boolean_or_string": _boolean_or_string,
    "number_or_numbers": _number_or_numbers,
}


def _count(value: object, path: str, allowed: Callable[[object], bool], most: int) -> int:
    """Return the number of values at any depth, or `most` + 1 where there are more.

    Raises InvalidInput for a value that is not `allowed`, and for lists or objects that are too deep.
    """
    counted, open_values = 0, [(value, 0)]
    while open_values and counted <= most:
        inner, depth = open_values.pop()
        counted += depth > 0
        if not isinstance(inner, list | tuple | dict):
            if not allowed(inner):
                raise InvalidInput(path, f"expected finite numbers, texts or booleans, got {_found(inner)}; change it")
            continue
        if depth >= MAX_DEPTH:
            raise InvalidInput(path, f"expected up to {MAX_DEPTH} lists or objects in each other, got more; flatten it")
        if len(inner) > most:
            return most + 1
        if isinstance(inner, dict):
            _check_all(sum(len(str(name)) for name in inner), path)
        open_values.extend((each, depth + 1) for each in (inner.values() if isinstance(inner, dict) else inner))
    return counted


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer above every float
        return False


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_CHARACTERS
    return value is None or isinstance(value, bool) or _is_finite(value)


def _within(parameter: TaskParameter, value: Any) -> bool:
    least = -math.inf if parameter.minimum is None else parameter.minimum
    most = math.inf if parameter.maximum is None else parameter.maximum
    return bool(least <= value <= most)


def _holds(parameter: TaskParameter, elements: int) -> bool:
    return (parameter.minimum or 0) <= elements <= _most_values(parameter)


def _most_values(parameter: TaskParameter) -> int:
    return MAX_VALUES if parameter.maximum is None else int(parameter.maximum)


def _most_characters(parameter: TaskParameter) -> int:
    return MAX_CHARACTERS if parameter.maximum is None else int(parameter.maximum)


def _check_all(characters: int, path: str) -> None:
    if characters > MAX_CHARACTERS_IN_ALL:
        raise InvalidInput(
            path, f"expected up to {MAX_CHARACTERS_IN_ALL} characters in all, got {characters}; shorten the texts"
        )


def _unicode(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(path, "not valid Unicode: it holds half of a surrogate pair") from error
    return text


def _invalid(parameter: TaskParameter, value: object, path: str) -> InvalidInput:
    remedy = "change it" if parameter.required else "change it, or leave it out"
    return InvalidInput(path, f"expected {_expected(parameter)}, got {_found(value)}; {remedy}")


def _expected(parameter: TaskParameter) -> str:
    least = int(parameter.minimum or 0)
    match parameter.type:
        case "boolean":
            return "true or false"
        case "integer" | "number":
            kind = "an integer" if parameter.type == "integer" else "a number"
            bounds = (("from", parameter.minimum), ("to", parameter.maximum))
            return " ".join([kind, *(f"{word} {bound:.15g}" for word, bound in bounds if bound is not None)])
        case "boolean_or_string":
            return "true, false, or one of " + ", ".join(f'"{choice}"' for choice in parameter.choices)
        case "number_or_numbers":
            return (
                f"a number, or up to {MAX_ATTEMPTS} of them, each from {parameter.minimum:g} to {parameter.maximum:g}"
            )
        case "string" if parameter.choices:
            return "one of " + ", ".join(f'"{choice}"' for choice in parameter.choices)
        case "string":
            return f"a string of {least} to {_most_characters(parameter)} characters"
        case "template":
            return f"a string of up to {_most_characters(parameter)} characters with one {{}} for the label"
        case "strings" | "numbers":
            return f"a list of {least} to {_most_values(parameter)} {parameter.type}"
        case "object":
            return f"an object of {least} to {_most_values(parameter)} values"


def _found(value: object) -> str:
    """Return a short value itself, and of a long one its kind and length, for an error message."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number of many digits" if isinstance(value, int) and value.bit_length() > 128 else str(value)
        case str() if len(value) <= _SHOWN_CHARACTERS:
            return f'"{value}"'
        case str():
            return f"a string of {len(value)} characters"
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return "an object"
    return "another value"
