"""Translate constraints into grammars of llguidance: a JSON schema, or its dialect of Lark."""

import json

from llguidance import LLMatcher

from frameworks.errors import InvalidInput
from frameworks.generation.types import Constraint

FIELD = "constraint"

# One space, or a new line with its indentation, as people write it and models have read it. If more is allowed, some
# models write nothing else until they are stopped.
WHITESPACE = r" |\n[ \t]{0,20}"
_ANY_OBJECT = '{"type": "object"}'
_NO_OPTIONS = "%llguidance {}"
_MAX_DEFINITION_BYTES = 64 << 10
_MAX_ERROR_CHARACTERS = 500


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
                    constraint.definition, overrides={"whitespace_pattern": WHITESPACE}
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
    if grammar.startswith(_NO_OPTIONS):
        lark = grammar.removeprefix(_NO_OPTIONS)
    else:
        try:
            (own,) = json.loads(grammar)["grammars"]
        except RecursionError:
            return grammar  # the library refuses such depth
        lark = own.get("lark_grammar") or f"start: %json {json.dumps(own['json_schema'])}"
    return LLMatcher.grammar_from_lark(f'%llguidance {{"no_forcing": true}}\n{lark}')


def error_text(error: object) -> str:
    """Return an error in one line, without its own verbosity marks."""
    return " ".join(str(error).replace("<non-verbose/>", "").split())[:_MAX_ERROR_CHARACTERS]
