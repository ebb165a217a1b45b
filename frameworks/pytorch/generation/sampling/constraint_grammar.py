"""Translate constraints into grammars of llguidance: a JSON schema, or its dialect of Lark."""

import json
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher

from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Constraint

FIELD = "constraint"

# One space, or a new line with its indentation, as people write it and models have read it. If more is allowed, some
# models write nothing else until they are stopped.
WHITESPACE = r" |\n[ \t]{0,20}"
_ANY_OBJECT = '{"type": "object"}'
_NO_OPTIONS = "%llguidance {}"
_MAX_DEFINITION_BYTES = 64 << 10
_MAX_ERROR_CHARACTERS = 500
# Keywords of a schema whose value has a schema for each name, and those whose value is data.
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA = frozenset({"const", "enum", "default", "example", "examples"})


def grammar_of_constraint(constraint: Constraint) -> str:
    """Translate a constraint into llguidance's own language. Raises InvalidInput."""
    try:
        length = len(constraint.definition.encode())
        if length > _MAX_DEFINITION_BYTES:
            raise InvalidInput(FIELD, f"expected at most {_MAX_DEFINITION_BYTES} bytes, got {length}")
        match constraint.kind:
            case "json_object":
                return LLMatcher.grammar_from_json_schema(_ANY_OBJECT, overrides={"whitespace_pattern": WHITESPACE})
            case "json_schema":
                return LLMatcher.grammar_from_json_schema(
                    _without_annotations(constraint.definition), overrides={"whitespace_pattern": WHITESPACE}
                )
            case "regex":
                return LLMatcher.grammar_from_regex(constraint.definition)
            case "choice":
                return LLMatcher.grammar_from_regex(_alternatives(constraint.definition))
            case "tools":
                raise AssertionError("tools have a grammar of their own")
    except UnicodeEncodeError as error:
        raise InvalidInput(FIELD, "not valid Unicode: it holds half of a surrogate pair") from error
    except ValueError as error:
        raise InvalidInput(FIELD, f"this {constraint.kind} cannot be read: {error_text(error)}") from error


def drop_unknown_formats(schema: Any) -> None:
    """Remove each `format` that the library does not know: in JSON Schema it is an annotation. Changes `schema`."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        if not isinstance(each, dict):
            continue
        if isinstance(form := each.get("format"), str) and not _knows_format(form):
            del each["format"]
        for keyword, value in each.items():
            if keyword in _NAMED_SCHEMAS and isinstance(value, dict):
                waiting += value.values()
            elif keyword not in _DATA:
                waiting.append(value)


@lru_cache(maxsize=256)
def _knows_format(name: str) -> bool:
    """Return whether the library has a grammar for a format. It has no list of them."""
    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "format": name}))
        return not LLMatcher.validate_grammar(grammar)
    except ValueError:
        return False


def _without_annotations(definition: str) -> str:
    """Return a schema without formats that the library does not know; a text that is no JSON, unchanged."""
    if '"format"' not in definition:
        return definition
    try:
        schema = json.loads(definition)
    except (ValueError, RecursionError):
        return definition
    drop_unknown_formats(schema)
    return json.dumps(schema)


def _alternatives(definition: str) -> str:
    """Return a pattern that matches each of the choices."""
    try:
        choices = json.loads(definition)
    except RecursionError:
        choices = None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise InvalidInput(FIELD, "expected a list of at least one string for a choice")
    "".join(choices).encode()  # an escape may encode half of a surrogate pair
    return "|".join("".join(map(_as_pattern, choice)) for choice in choices)


def _as_pattern(character: str) -> str:
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):X}}}"


def without_forcing(grammar: str) -> str:
    """Return a grammar for a text that may hold the text of a special token.

    Where a grammar leaves one continuation, the library tokenizes its bytes, which gives the special token; the parser
    then refuses it. Without forcing every token of these bytes is allowed, but no special token.
    """
    lark = lark_of(grammar)
    if lark is None:
        return grammar
    return LLMatcher.grammar_from_lark(f'%llguidance {{"no_forcing": true}}\n{lark}')


def lark_of(grammar: str) -> str | None:
    """Return a grammar in Lark, without options; None for a depth that the library refuses."""
    if grammar.startswith(_NO_OPTIONS):
        return grammar.removeprefix(_NO_OPTIONS)
    try:
        (own,) = json.loads(grammar)["grammars"]
    except RecursionError:
        return None
    return own.get("lark_grammar") or f"start: %json {json.dumps(own['json_schema'])}"


def error_text(error: object) -> str:
    """Return an error in one line, without its own verbosity marks."""
    return " ".join(str(error).replace("<non-verbose/>", "").split())[:_MAX_ERROR_CHARACTERS]
