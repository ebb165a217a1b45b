"""Fields that constrain a text, shared by all protocols: a pattern, one of several strings, or JSON of a schema."""

from collections import Counter
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo

from app.protocols.shared.bodies import Body, OnlyTrue
from app.protocols.shared.fields.policy import FieldPolicy, Refusal
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Constraint

MAX_CHOICE_STRINGS = 1024
MAX_DEFINITION_CHARACTERS = 64 * 1024
"""Limit of a pattern, of the JSON of a schema, and of the JSON of all choices."""

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


class JsonGrammar(Body):
    """JSON that meets a schema, as Text Generation Inference (TGI) describes it."""

    type: Literal["json", "json_object", "json_schema"]
    value: dict[str, Any] | str = Field(
        description="The schema, also as text; for json_schema an object with the schema as `schema`."
    )


class RegexGrammar(Body):
    """Text that matches a regular expression, as TGI describes it."""

    type: Literal["regex"]
    value: Annotated[str, Field(min_length=1, max_length=MAX_DEFINITION_CHARACTERS)]


class JsonFormat(Body):
    """Any JSON object; in TGI's form, with `value`, JSON that meets a schema."""

    type: Literal["json", "json_object"]
    value: dict[str, Any] | None = Field(None, description="The schema.")


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
    Annotated[TextFormat | JsonFormat | JsonSchemaFormat | RegexGrammar, Field(discriminator="type")] | None,
    Field(description="The format of the text, as OpenAI or TGI describes it.", examples=[{"type": "json_object"}]),
]


class ConstraintFields(Body):
    """Constraints of a text. At most one field constrains it; `to_constraint` builds the Constraint."""

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


_OTHER_FORMS = "send regex, choice or json"
_OF_LIBRARY = "the server has one library of constraints: omit the field"
# Fields of vLLM that the server does not have.
_STRUCTURED = FieldPolicy(
    {
        "grammar": Refusal(_OTHER_FORMS),
        "structural_tag": Refusal(_OTHER_FORMS),
        "whitespace_pattern": Refusal(_OF_LIBRARY),
        "disable_fallback": Refusal(_OF_LIBRARY, (False,)),
        "disable_any_whitespace": Refusal(_OF_LIBRARY, (False,)),
        "disable_additional_properties": Refusal(
            'set "additionalProperties": false in the schema, and omit the field', (False,)
        ),
    }
)


def _without_neutral(value: Any, info: ValidationInfo) -> Any:
    """Remove fields that ask for nothing. Raises InvalidInput for the others of vLLM."""
    if type(value) is dict:
        value = dict(value)
        _STRUCTURED.apply(value, f"{info.field_name}.")
    return value


StructuredField = Annotated[StructuredOutputs | None, BeforeValidator(_without_neutral)]


def to_constraint(body: ConstraintFields) -> Constraint | None:
    """Return the constraint of a body, or None. Raises InvalidInput; the schema or pattern is compiled later."""
    found = _constraints("", body.regex, body.choice, body.json_schema, "json_schema")
    of_format = None if body.response_format is None else _of_format(body.response_format)
    if of_format is not None:
        found["response_format"] = of_format
    return _only_one(found)


def json_schema_constraint(schema: dict[str, Any], field: str) -> Constraint:
    """Return the constraint of a JSON schema. Raises InvalidInput for one that is too long. `field`: its path."""
    return Constraint("json_schema", _definition(schema, field))


def grammar_constraint(grammar: JsonGrammar | RegexGrammar, field: str) -> Constraint:
    """Return the constraint of a grammar in TGI's form. Raises InvalidInput. `field`: the path of its `value`."""
    if isinstance(grammar, RegexGrammar):
        return Constraint("regex", grammar.value)
    schema: Any = grammar.value
    if isinstance(schema, str):
        if len(schema) > MAX_DEFINITION_CHARACTERS:
            raise _too_long(schema, field)
        try:
            schema = orjson.loads(schema)
        except orjson.JSONDecodeError as error:
            raise InvalidInput(field, f"expected a JSON schema, got an error: {error}") from None
    if grammar.type == "json_schema" and isinstance(schema, dict):
        schema = schema.get("schema")
    if not isinstance(schema, dict):
        raise InvalidInput(field, "expected a JSON schema, got no object; send an object with properties")
    return json_schema_constraint(schema, field)


def _of_format(given: TextFormat | JsonFormat | JsonSchemaFormat | RegexGrammar) -> Constraint | None:
    if isinstance(given, TextFormat):
        return None
    if isinstance(given, RegexGrammar):
        return Constraint("regex", given.value)
    if isinstance(given, JsonSchemaFormat):
        field = "response_format.json_schema.schema"
        return Constraint("json_schema", _definition(given.json_schema.schema_, field))
    if given.value is None:
        return Constraint("json_object")
    return json_schema_constraint(given.value, "response_format.value")


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
        raise _too_long(definition, field)
    return definition


def _too_long(definition: str, field: str) -> InvalidInput:
    return InvalidInput(field, f"expected at most {MAX_DEFINITION_CHARACTERS} characters, got {len(definition)}")
