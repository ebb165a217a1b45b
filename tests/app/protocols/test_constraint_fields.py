"""What a body says that its text has to be is read, or the field that is wrong is named."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.constraint_fields import CONSTRAINT_FIELDS, MAX_DEFINITION_CHARACTERS, read_constraint
from frameworks.errors import InvalidInput, RequestError, UnknownField
from frameworks.generation.types import Constraint
from tests.app.protocols.strategies import json_values

SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}
AS_JSON = '{"type":"object","properties":{"é":{"type":"integer"}}}'


def test_a_text_is_free_unless_somebody_says_otherwise() -> None:
    assert read_constraint({"temperature": 1}) is None
    assert read_constraint(dict.fromkeys(CONSTRAINT_FIELDS)) is None
    assert read_constraint({"response_format": {"type": "text"}}) is None


@pytest.mark.parametrize(
    ("fields", "constraint"),
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
        ({"regex": "a", "response_format": {"type": "text"}, "choice": None}, Constraint("regex", "a")),
    ],
)
def test_every_kind_is_read(fields: dict[str, Any], constraint: Constraint) -> None:
    assert read_constraint(fields) == constraint


DEEP: Any = {}
for _ in range(300):
    DEEP = {"not": DEEP}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": ""}, 'regex: is ""; wants a pattern like'),
        ({"regex": ["a"]}, "regex: is an array"),
        ({"regex": "a" * (MAX_DEFINITION_CHARACTERS + 1)}, "regex: has 65537 characters; wants at most 65536"),
        ({"choice": "a"}, "choice: is a string; wants a list of 1 to 1024 different strings"),
        ({"choice": []}, "choice: has 0; wants"),
        ({"choice": ["a", ""]}, r'choice\[1\]: is ""; wants a string that is not empty'),
        ({"choice": ["a", 1]}, r"choice\[1\]: is 1; wants"),
        ({"choice": ["a", "b", "a"]}, 'choice: has "a" twice'),
        ({"choice": ["a" * MAX_DEFINITION_CHARACTERS]}, "choice: has 65540 characters"),
        ({"json_schema": False}, "json_schema: is a boolean; wants a JSON schema, or true for any JSON"),
        ({"json_schema": "{}"}, "json_schema: is a string"),
        ({"json_schema": DEEP}, "json_schema: cannot be read: "),
        ({"json_schema": {"title": "\ud800"}}, "json_schema: cannot be read: "),
        ({"response_format": "json"}, "response_format: is a string; wants an object like"),
        ({"response_format": {"type": "xml"}}, "response_format.type: wants one of text, json_object, json_schema"),
        ({"response_format": {"type": ["text"]}}, "response_format.type: wants one of"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: wants an object like"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
            "response_format.json_schema.schema: is 1; wants a JSON schema",
        ),
        ({"regex": "a", "choice": ["a"]}, "choice: does not go with regex; send one of them"),
        ({"json_schema": True, "response_format": {"type": "json_object"}}, "does not go with json_schema"),
    ],
)
def test_what_is_wrong(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_constraint(fields)


@pytest.mark.parametrize(
    ("response_format", "field"),
    [
        ({"type": "text", "schema": {}}, "response_format.schema"),
        ({"type": "json_object", "json_schema": {}}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "schem": 1}}, "response_format.json_schema.schem"),
    ],
)
def test_a_response_format_with_an_unknown_member(response_format: dict[str, Any], field: str) -> None:
    with pytest.raises(UnknownField) as caught:
        read_constraint({"response_format": response_format})
    assert caught.value.field == field


formats = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "json_object", "json_schema", ""])},
    optional={"json_schema": st.fixed_dictionaries({"schema": json_values}), "name": json_values},
)


@given(st.dictionaries(st.sampled_from(sorted(CONSTRAINT_FIELDS)), json_values | formats, max_size=2))
def test_whatever_comes_is_a_constraint_or_refused(fields: dict[str, Any]) -> None:
    constraint, refusal = None, None
    try:
        constraint = read_constraint(fields)
    except RequestError as error:
        refusal = error.message
    assert refusal is None or refusal.startswith(tuple(fields))
    if constraint is not None and constraint.kind in ("choice", "json_schema"):
        json.loads(constraint.definition)
