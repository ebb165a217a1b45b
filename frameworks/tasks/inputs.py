"""Check the inputs of a task for every protocol: their fields, types, and bounds."""

from collections.abc import Mapping, Sequence
from typing import Any

from frameworks.core.errors import MAX_SHOWN_CHARACTERS, InvalidInput, UnknownField
from frameworks.tasks.types import TaskRequest, TaskSpec

MAX_INPUTS = 1000
"""Inputs of one request."""
MAX_TEXT_CHARACTERS = 200_000
"""Of a text or a context: its preparation takes less than a second."""
MAX_QUESTION_CHARACTERS = 10_000
MAX_CELLS = 10_000
"""Cells of a table, and words of a document."""
MAX_LONGEST_TEXTS = 8
"""As many characters as so many of the longest texts may a request have, where a task bounds its texts."""
MAX_ROWS = 20_000
"""Inputs times candidate labels of one request."""

_SHORT_TEXTS = frozenset({"question", "query"})


def build_request(
    spec: TaskSpec, inputs: Sequence[Mapping[str, Any]], parameters: dict[str, Any], fields: Sequence[str]
) -> TaskRequest:
    """Return a request of checked inputs. `fields`: the name of each input in error messages.

    Raises InvalidInput, UnknownField.
    """
    most = spec.max_inputs or MAX_INPUTS
    if not 1 <= len(inputs) <= most:
        raise InvalidInput(
            fields[0] if fields else (*spec.inputs, "text")[0], f"expected 1 to {most} inputs, got {len(inputs)}"
        )
    labels = len(parameters.get("candidate_labels") or (None,))
    if len(inputs) * labels > MAX_ROWS:
        raise InvalidInput(
            "parameters.candidate_labels",
            f"expected at most {MAX_ROWS} inputs times labels, got {len(inputs)} times {labels}; split the request",
        )
    _check_all(spec, inputs, fields)
    checked = [_checked(spec, given, field, parameters) for given, field in zip(inputs, fields, strict=True)]
    return TaskRequest(checked, parameters, spec.is_random(parameters))


def _checked(spec: TaskSpec, given: Mapping[str, Any], field: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    known = (*spec.inputs, *spec.members)
    for name, value in given.items():
        own_field = field if spec.inputs[:1] == (name,) and len(given) == 1 else f"{field}.{name}"
        if name == "text" and name not in known:
            raise InvalidInput(field, f"expected an object with {' and '.join(spec.required)}, got a text; send one")
        if name not in known:
            raise UnknownField.among(name[:MAX_SHOWN_CHARACTERS], known, within=f"{field}.")
        if name in ("image", "audio", "video"):
            # An object of texts may have a member of this name.
            if not all(isinstance(file, bytes) for file in (value if isinstance(value, list) and value else [value])):
                raise InvalidInput(own_field, f"expected a file, got {_kind_of(value)}; send it as {name} beside texts")
            continue
        if name == "table":
            _check_table(value, own_field)
        elif name == "word_boxes":
            _check_word_boxes(value, own_field)
        elif name == "text" and parameters.get("is_split_into_words") is True:
            _check_words(value, own_field)
        else:
            usual = MAX_QUESTION_CHARACTERS if name in _SHORT_TEXTS else MAX_TEXT_CHARACTERS
            _check_text(value, own_field, spec.max_characters or usual)
    missing = [name for name in spec.required if name not in given]
    if missing:
        raise InvalidInput(f"{field}.{missing[0]}", f"expected {' and '.join(spec.required)}, got none; send it")
    return dict(given)


def _check_all(spec: TaskSpec, inputs: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> None:
    """Bound the texts of all inputs, of a task with long answers. Raises InvalidInput."""
    if spec.max_characters is None:
        return
    most = MAX_LONGEST_TEXTS * spec.max_characters
    characters = sum(len(text) for each in inputs if isinstance(text := each.get("text"), str))
    if characters > most:
        raise InvalidInput(
            fields[0].partition("[")[0],
            f"expected at most {most} characters in all, got {characters}; split the request",
        )


def _check_text(value: Any, field: str, most_characters: int) -> None:
    if not isinstance(value, str):
        raise InvalidInput(field, f"expected a string, got {_kind_of(value)}")
    if len(value) > most_characters:
        raise InvalidInput(field, f"expected at most {most_characters} characters, got {len(value)}; split the text")


def _check_words(value: Any, field: str) -> None:
    if not isinstance(value, list) or not value or len(value) > MAX_CELLS:
        raise InvalidInput(field, f"expected a list of 1 to {MAX_CELLS} words, got {_kind_of(value)}")
    for number, word in enumerate(value):
        _check_text(word, f"{field}[{number}]", MAX_QUESTION_CHARACTERS)


def _check_table(value: Any, field: str) -> None:
    """Check a table: column → its cells, as many in each column."""
    if not isinstance(value, dict) or not value:
        raise InvalidInput(field, f"expected an object of column and list of cells, got {_kind_of(value)}")
    lengths = {len(cells) if isinstance(cells, list) else -1 for cells in value.values()}
    if len(lengths) != 1 or -1 in lengths or 0 in lengths:
        raise InvalidInput(field, "expected a list of as many cells for each column, got lists of other lengths")
    if len(value) * lengths.pop() > MAX_CELLS:
        raise InvalidInput(field, f"expected at most {MAX_CELLS} cells, got more; split the table")
    for column, cells in value.items():
        for number, cell in enumerate(cells):
            _check_text(cell, f"{field}.{column[:MAX_SHOWN_CHARACTERS]}[{number}]", MAX_QUESTION_CHARACTERS)


def _check_word_boxes(value: Any, field: str) -> None:
    """Check words with their boxes: [word, [left, top, right, bottom]], each from 0 to 1000."""
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CELLS:
        raise InvalidInput(field, f"expected a list of 1 to {MAX_CELLS} words with boxes, got {_kind_of(value)}")
    for number, pair in enumerate(value):
        match pair:
            case [str() as word, [_, _, _, _] as box] if all(type(side) is int and 0 <= side <= 1000 for side in box):
                _check_text(word, f"{field}[{number}][0]", MAX_QUESTION_CHARACTERS)
            case _:
                raise InvalidInput(
                    f"{field}[{number}]", "expected a word and the four sides of its box, integers from 0 to 1000"
                )


def _kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return f"a list of {len(value)}"
    return "an object"
