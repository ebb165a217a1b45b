"""What a body says that its text has to be: an expression, one of several texts, JSON, or JSON of a schema."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field

from app.protocols.bodies import Body, OnlyTrue
from app.protocols.generation_fields import read_flag
from app.protocols.json_body import describe_type, describe_value
from frameworks.errors import InvalidInput, UnknownField
from frameworks.generation.types import Constraint

CONSTRAINT_FIELDS = frozenset({"regex", "choice", "json_schema", "response_format"})
"""At most one of them says something in a request."""

MAX_CHOICE_STRINGS = 1024
MAX_DEFINITION_CHARACTERS = 64 * 1024
"""Characters of a pattern or of a schema's JSON, and of all choices together."""

# vLLM's names of constraints, and ours.
_STRUCTURED = {"regex": "regex", "choice": "choice", "json": "json_schema", "json_object": "response_format"}
_RESPONSE_FORMATS = ("text", "json_object", "json_schema")


_ChoiceString = Annotated[str, Field(min_length=1)]

Regex = Annotated[
    str | None,
    Field(min_length=1, max_length=MAX_DEFINITION_CHARACTERS, description="The text matches this regular expression."),
]
Choice = Annotated[
    Annotated[
        list[_ChoiceString],
        Field(
            min_length=1,
            max_length=MAX_CHOICE_STRINGS,
            fail_fast=True,
            json_schema_extra={"uniqueItems": True},
        ),
    ]
    | None,
    Field(description="The text is one of these strings."),
]
JsonSchema = Annotated[
    OnlyTrue | dict[str, Any] | None, Field(description="The text is JSON that meets this schema; true: any JSON.")
]


class TextFormat(Body):
    """Text without a constraint."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedJsonSchema(Body):
    """A JSON schema as OpenAI wraps it. Only `schema` has an effect: every text meets its schema."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "…", "schema": {"type": "object"}}]})

    schema_: OnlyTrue | dict[str, Any] = Field(alias="schema")
    name: Any = None
    description: Any = None
    strict: Any = None


class JsonSchemaFormat(Body):
    """JSON that meets a schema."""

    type: Literal["json_schema"]
    json_schema: NamedJsonSchema


ResponseFormat = Annotated[
    Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")] | None,
    Field(description="The format of the text, as OpenAI describes it.", examples=[{"type": "json_object"}]),
]


class ConstraintFields(Body):
    """What a text has to match. At most one field constrains the text; build the Constraint by `to_constraint`."""

    regex: Regex = None
    choice: Choice = None
    json_schema: JsonSchema = None
    response_format: ResponseFormat = None


class StructuredOutputs(Body):
    """vLLM's names of the same constraints; at most one of them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"choice": ["yes", "no"]}]})

    regex: Regex = None
    choice: Choice = None
    json_: JsonSchema = Field(None, alias="json")
    json_object: bool | None = Field(None, description="true: the text is any JSON object.")


def to_constraint(body: ConstraintFields) -> Constraint | None:
    """Return the constraint of a body, or None. Raises InvalidInput; the schema or pattern is compiled later."""
    response_format = body.response_format
    found = _constraints("", body.regex, body.choice, body.json_schema, "json_schema")
    if isinstance(response_format, JsonObjectFormat):
        found["response_format"] = Constraint("json_object")
    elif isinstance(response_format, JsonSchemaFormat):
        field = "response_format.json_schema.schema"
        found["response_format"] = Constraint("json_schema", _definition(response_format.json_schema.schema_, field))
    return _only_one(found)


def to_structured_constraint(body: StructuredOutputs, field: str) -> Constraint | None:
    """Return the constraint of vLLM's `structured_outputs`, or None. `field`: its path. Raises InvalidInput."""
    found = _constraints(f"{field}.", body.regex, body.choice, body.json_, "json")
    if body.json_object:
        found[f"{field}.json_object"] = Constraint("json_object")
    return _only_one(found)


def _constraints(
    within: str, regex: str | None, choice: list[str] | None, json_schema: Any, json_name: str
) -> dict[str, Constraint]:
    """Return the constraint of each field that has one."""
    found: dict[str, Constraint] = {}
    if regex is not None:
        found[f"{within}regex"] = Constraint("regex", regex)
    if choice is not None:
        if len(set(choice)) != len(choice):
            twice, _ = Counter(choice).most_common(1)[0]
            raise InvalidInput(f"{within}choice", f'expected different strings, got "{twice[:100]}" twice')
        found[f"{within}choice"] = Constraint("choice", _definition(choice, f"{within}choice"))
    if json_schema is not None:
        field = within + json_name
        found[field] = Constraint("json_schema", _definition(json_schema, field))
    return found


def _only_one(found: dict[str, Constraint]) -> Constraint | None:
    if len(found) > 1:
        first, second, *_ = found
        raise InvalidInput(second, f"expected one constraint, got {first} too; send one of them")
    return next(iter(found.values()), None)


def _definition(value: Any, field: str) -> str:
    try:
        definition = orjson.dumps(value).decode()
    except TypeError as error:
        raise InvalidInput(field, f"expected valid JSON, got an error: {error}") from None
    if len(definition) > MAX_DEFINITION_CHARACTERS:
        raise InvalidInput(field, f"expected at most {MAX_DEFINITION_CHARACTERS} characters, got {len(definition)}")
    return definition


def read_constraint(fields: Mapping[str, Any]) -> Constraint | None:
    """CONSTRAINT_FIELDS of a body; None where the text is free. Null is as good as left out.

    Whether a schema or pattern can be followed is found when it is compiled. Raises InvalidInput, UnknownField.
    """
    found: dict[str, Constraint] = {}
    for name, read in _READERS.items():
        value = fields.get(name)
        constraint = None if value is None else read(value)
        if constraint is not None:
            found[name] = constraint
    if len(found) > 1:
        first, second, *_ = found
        raise InvalidInput(second, f"does not go with {first}; send one of them")
    return next(iter(found.values()), None)


def read_structured_outputs(value: Any, field: str) -> Constraint | None:
    """vLLM's `structured_outputs`: an object with one of its own names of constraints. `field`: what the caller calls
    it. Raises InvalidInput, UnknownField.
    """
    if not isinstance(value, dict):
        raise InvalidInput(field, f'is {describe_type(value)}; wants an object like {{"choice": ["yes", "no"]}}')
    _check_members(value, _STRUCTURED, field)
    flag = f"{field}.json_object"
    as_json = {"type": "json_object"} if read_flag({flag: value.get("json_object")}, flag) else None
    named = {_STRUCTURED[name]: each for name, each in value.items() if name != "json_object"}
    try:
        return read_constraint({**named, "response_format": as_json})
    except InvalidInput as error:
        theirs = next(name for name, ours in _STRUCTURED.items() if error.field.startswith(ours))
        raise InvalidInput(f"{field}.{theirs}", error.reason) from None


def _read_regex(value: Any) -> Constraint:
    if not isinstance(value, str) or not value:
        raise InvalidInput("regex", f'is {describe_value(value)}; wants a pattern like "[0-9]{{4}}"')
    return Constraint("regex", _bounded(value, "regex"))


def _read_choice(value: Any) -> Constraint:
    wants = f"wants a list of 1 to {MAX_CHOICE_STRINGS} different strings"
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CHOICE_STRINGS:
        given = f"has {len(value)}" if isinstance(value, list) else f"is {describe_value(value)}"
        raise InvalidInput("choice", f"{given}; {wants}")
    for i, choice in enumerate(value):
        if not isinstance(choice, str) or not choice:
            raise InvalidInput(f"choice[{i}]", f"is {describe_value(choice)}; wants a string that is not empty")
    if len(set(value)) != len(value):
        twice = next(choice for choice in value if value.count(choice) > 1)
        raise InvalidInput("choice", f'has "{twice[:100]}" twice; {wants}')
    return Constraint("choice", _bounded(_json(value, "choice"), "choice"))


def _read_schema(value: Any, field: str = "json_schema") -> Constraint:
    if value is not True and not isinstance(value, dict):
        raise InvalidInput(field, f"is {describe_value(value)}; wants a JSON schema, or true for any JSON")
    return Constraint("json_schema", _bounded(_json(value, field), field))


def _read_response_format(value: Any) -> Constraint | None:
    """As OpenAI's."""
    field = "response_format"
    if not isinstance(value, dict):
        raise InvalidInput(field, f'is {describe_value(value)}; wants an object like {{"type": "json_object"}}')
    kind = value.get("type")
    if kind not in _RESPONSE_FORMATS:
        raise InvalidInput(f"{field}.type", f"wants one of {', '.join(_RESPONSE_FORMATS)}")
    known = ("type", "json_schema") if kind == "json_schema" else ("type",)
    _check_members(value, known, field)
    match kind:
        case "json_object":
            return Constraint("json_object")
        case "json_schema":
            within = value.get("json_schema")
            field += ".json_schema"
            if not isinstance(within, dict) or "schema" not in within:
                raise InvalidInput(field, 'wants an object like {"name": "…", "schema": {…}}')
            # The others are for people: a text always follows its schema here.
            _check_members(within, ("name", "description", "schema", "strict"), field)
            return _read_schema(within["schema"], f"{field}.schema")
    return None


_READERS = {
    "regex": _read_regex,
    "choice": _read_choice,
    "json_schema": _read_schema,
    "response_format": _read_response_format,
}


def _check_members(value: dict[str, Any], known: Collection[str], field: str) -> None:
    for name in value:
        if name not in known:
            raise UnknownField.among(name[:200], known, f"{field}.")


def _json(value: Any, field: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise InvalidInput(field, f"cannot be read: {error}") from None


def _bounded(definition: str, field: str) -> str:
    if len(definition) > MAX_DEFINITION_CHARACTERS:
        raise InvalidInput(field, f"has {len(definition)} characters; wants at most {MAX_DEFINITION_CHARACTERS}")
    return definition
