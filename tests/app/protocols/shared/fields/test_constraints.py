"""Fields that constrain a text: each constraint is read, and an invalid one is refused by its field."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.shared.bodies import read_body
from app.protocols.shared.fields.constraints import (
    MAX_DEFINITION_CHARACTERS,
    ConstraintFields,
    StructuredOutputs,
    to_constraint,
    to_structured_constraint,
)
from frameworks.core.errors import InvalidInput, RequestError, UnknownField
from frameworks.generation.types import Constraint
from tests.app.protocols.strategies import json_values

SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}
AS_JSON = '{"type":"object","properties":{"é":{"type":"integer"}}}'
CONSTRAINT_FIELDS = ConstraintFields.model_fields.keys()


def constraint(fields: dict[str, Any]) -> Constraint | None:
    return to_constraint(read_body(ConstraintFields, fields))


def structured(fields: dict[str, Any]) -> Constraint | None:
    return to_structured_constraint(read_body(StructuredOutputs, fields, "given."), "given")


def test_text_without_constraint_is_free() -> None:
    assert constraint({}) is None
    assert constraint(dict.fromkeys(CONSTRAINT_FIELDS)) is None
    assert constraint({"response_format": {"type": "text"}}) is None
    assert structured({}) is None
    assert structured({"json_object": False, "regex": None}) is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"regex": "[0-9]+"}, Constraint("regex", "[0-9]+")),
        ({"choice": ["yes", "nö"]}, Constraint("choice", '["yes","nö"]')),
        ({"json_schema": SCHEMA}, Constraint("json_schema", AS_JSON)),
        ({"json_schema": True}, Constraint("json_schema", "true")),
        ({"response_format": {"type": "json_object"}}, Constraint("json_object")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "strict": True, "schema": SCHEMA},
                }
            },
            Constraint("json_schema", AS_JSON),
        ),
        ({"response_format": {"type": "json_object", "value": SCHEMA}}, Constraint("json_schema", AS_JSON)),
        ({"response_format": {"type": "json_object", "value": None}}, Constraint("json_object")),
        ({"response_format": {"type": "json", "value": SCHEMA}}, Constraint("json_schema", AS_JSON)),
        ({"response_format": {"type": "regex", "value": "a+"}}, Constraint("regex", "a+")),
        ({"regex": "a", "response_format": {"type": "text"}, "choice": None}, Constraint("regex", "a")),
    ],
)
def test_constraint_is_read_from_each_field(fields: dict[str, Any], expected: Constraint) -> None:
    assert constraint(fields) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"regex": "[0-9]+"}, Constraint("regex", "[0-9]+")),
        ({"choice": ["yes", "nö"]}, Constraint("choice", '["yes","nö"]')),
        ({"json": SCHEMA}, Constraint("json_schema", AS_JSON)),
        ({"json": True, "json_object": False}, Constraint("json_schema", "true")),
        ({"json_object": True}, Constraint("json_object")),
    ],
)
def test_structured_outputs_are_read_from_each_field(fields: dict[str, Any], expected: Constraint) -> None:
    assert structured(fields) == expected


DEEP: Any = {}
for _ in range(300):
    DEEP = {"not": DEEP}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": ""}, 'regex: expected a string of 1 to 65536 characters, got ""'),
        ({"regex": ["a"]}, "regex: .* got an array"),
        ({"regex": "a" * (MAX_DEFINITION_CHARACTERS + 1)}, "regex: .* got 65537 characters"),
        ({"choice": "a"}, 'choice: expected a list of 1 to 1024 non-empty strings, got "a"'),
        ({"choice": []}, "choice: .* got 0 items"),
        ({"choice": ["a", ""]}, r'choice\[1\]: expected a non-empty string, got ""'),
        ({"choice": ["a", 1]}, r"choice\[1\]: expected a non-empty string, got 1"),
        ({"choice": ["a", "b", "a"]}, 'choice: expected different strings, got "a" twice'),
        ({"choice": ["a" * MAX_DEFINITION_CHARACTERS]}, "choice: expected at most 65536 characters, got 65540"),
        ({"json_schema": False}, "json_schema: expected true or an object, got a boolean"),
        ({"json_schema": "{}"}, 'json_schema: expected true or an object, got "{}"'),
        ({"json_schema": DEEP}, "json_schema: expected valid JSON, got an error: "),
        ({"json_schema": {"title": "\ud800"}}, "json_schema: expected valid JSON, got an error: "),
        ({"json_schema": {"title": "a" * MAX_DEFINITION_CHARACTERS}}, "json_schema: expected at most 65536 characters"),
        ({"response_format": "json"}, 'response_format: expected an object, got "json"'),
        ({"response_format": {"type": "xml"}}, 'response_format.type: expected .*, got "xml"'),
        ({"response_format": {"type": ["text"]}}, "response_format.type: expected .*, got an array"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: expected an object like"),
        ({"response_format": {"type": "json_object", "value": "{"}}, "response_format.value: expected an object"),
        ({"response_format": {"type": "json", "value": {"a": "b" * 70_000}}}, "response_format.value: .* got 70008"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
            "response_format.json_schema.schema: expected true or an object, got 1",
        ),
        ({"regex": "a", "choice": ["a"]}, "choice: expected one constraint, got regex too; send one of them"),
        ({"json_schema": True, "response_format": {"type": "json_object"}}, "response_format: .* got json_schema too"),
    ],
)
def test_invalid_constraint_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{message}"):
        constraint(fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"json": "{}"}, "given.json: expected true or an object"),
        ({"json": DEEP}, "given.json: expected valid JSON"),
        ({"choice": ["a", "a"]}, "given.choice: expected different strings"),
        ({"regex": "a", "json_object": True}, "given.json_object: expected one constraint, got given.regex too"),
    ],
)
def test_invalid_structured_outputs_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{message}"):
        structured(fields)


@pytest.mark.parametrize(
    ("response_format", "field"),
    [
        ({"type": "text", "schema": {}}, "response_format.schema"),
        ({"type": "json_object", "json_schema": {}}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "schem": 1}}, "response_format.json_schema.schem"),
    ],
)
def test_unknown_field_of_response_format_is_refused(response_format: dict[str, Any], field: str) -> None:
    with pytest.raises(UnknownField) as caught:
        constraint({"response_format": response_format})
    assert caught.value.field == field


formats = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "json_object", "json_schema", ""])},
    optional={"json_schema": st.fixed_dictionaries({"schema": json_values}), "name": json_values},
)


@given(st.dictionaries(st.sampled_from(sorted(CONSTRAINT_FIELDS)), json_values | formats, max_size=2))
def test_any_value_is_a_constraint_or_refused(fields: dict[str, Any]) -> None:
    read, refusal = None, None
    try:
        read = constraint(fields)
    except RequestError as error:
        refusal = error.message
    assert refusal is None or refusal.startswith(tuple(fields))
    if read is not None and read.kind in ("choice", "json_schema"):
        json.loads(read.definition)
