"""Bodies that a pydantic model describes: what is accepted, and the message for each kind of fault."""

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from app.protocols.shared.bodies import Body, Priority, Remedy, got, read_body
from app.protocols.shared.fields.constraints import ConstraintFields, StructuredOutputs
from app.protocols.shared.fields.generation import (
    Messages,
    NumChoices,
    SamplingFields,
    StoppingFields,
    TokenId,
    TopLogprobs,
)
from frameworks.core.errors import InvalidInput, RequestError, UnknownField
from tests.app.protocols.strategies import json_values

Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


class Example(SamplingFields, StoppingFields, ConstraintFields):
    """Every kind of field that a body of text generation has."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=128, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=128, fail_fast=True)]
    ) = "a"
    messages: Messages | None = None
    structured_outputs: StructuredOutputs | None = None
    encoding_format: Literal["float", "base64"] | None = None
    n: NumChoices = 1
    logprobs: bool | TopLogprobs = None
    advised: Annotated[int | None, Field(ge=0), Remedy("omit it")] = None


class Required(Body):
    """A field without a default, and an object in a union."""

    priority: Priority
    documents: list[str | SamplingFields] | None = None


IDS = "integers from 0 to 2147483647"
MESSAGE = 'like {"content": "…", "role": "user"}'
PARTS = (
    'like {"image_url": {"url": "data:image/jpeg;base64,…"}, "type": "image_url"} or objects like '
    '{"text": "…", "type": "text"} or objects like '
    '{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,…"}}'
)
STOP = "string of 1 to 1024 characters"
LONG = "a" * 1025


@pytest.mark.parametrize(
    ("field", "value", "where", "reason"),
    [
        ("temperature", -1, "", "expected a number from 0 to 100, got -1"),
        ("temperature", True, "", "expected a number from 0 to 100, got a boolean"),
        ("temperature", "1", "", 'expected a number from 0 to 100, got "1"'),
        ("top_p", 0, "", ("expected a number above 0 and at most 1, got 0; for the most likely token alone send "
         '"temperature": 0')),
        ("top_k", 1.0, "", "expected an integer from -1 to 2147483647, got 1.0"),
        ("seed", 2**63, "", "expected an integer from 0 to 9223372036854775807, got 9223372036854775808"),
        ("presence_penalty", float("inf"), "", "expected a number from -2 to 2, got inf"),
        ("presence_penalty", float("nan"), "", "expected a number from -2 to 2, got nan"),
        ("ignore_eos", 1, "", "expected a boolean, got 1"),
        ("logit_bias", {"a": 1}, "", 'expected keys that match ^[0-9]{1,9}$, got "a"'),
        ("logit_bias", {"٣": 1}, "", 'expected keys that match ^[0-9]{1,9}$, got "٣"'),
        ("logit_bias", {"9" * 5000: 1}, "", "expected keys that match ^[0-9]{1,9}$, got a string"),
        ("logit_bias", {"1": 101}, ".1", "expected a number from -100 to 100, got 101"),
        ("logit_bias", [], "", "expected an object of at most 1024 members, got an array"),
        ("logit_bias", dict.fromkeys(map(str, range(1025)), 0), "",
         "expected an object of at most 1024 members, got 1025 members"),
        ("stop", 1, "", f"expected a {STOP} or a list of at most 16 strings of 1 to 1024 characters, got 1"),
        ("stop", "", "", f'expected a {STOP}, got ""'),
        ("stop", LONG, "", f"expected a {STOP}, got 1025 characters"),
        ("stop", ["a"] * 17, "", "expected a list of at most 16 strings of 1 to 1024 characters, got 17 items"),
        ("stop", ["a", None], "[1]", f"expected a {STOP}, got null"),
        ("prompt", ["a", 1], "[1]", "expected a string, got 1"),
        ("prompt", [1, True], "[1]", "expected an integer from 0 to 2147483647, got a boolean"),
        ("prompt", [[1], []], "[1]", f"expected a non-empty list of {IDS}, got 0 items"),
        ("prompt", [[1], [-1]], "[1][0]", "expected an integer from 0 to 2147483647, got -1"),
        ("prompt", 3, "", (f"expected a string, a list of 1 to 128 strings, a non-empty list of {IDS} or a list of 1 "
         f"to 128 non-empty lists of {IDS}, got 3")),
        ("messages", "h", "", f'expected a list of 1 to 10000 objects {MESSAGE}, got "h"'),
        ("messages", [], "", f"expected a list of 1 to 10000 objects {MESSAGE}, got 0 items"),
        ("messages", ["a"], "[0]", f'expected an object {MESSAGE}, got "a"'),
        ("messages", [{"role": "user"}], "[0].content",
         f"expected a string or a list of objects {PARTS}, got nothing"),
        ("messages", [{"role": "", "content": "a"}], "[0].role", 'expected a string of 1 to 64 characters, got ""'),
        ("messages", [{"role": "u", "content": [{"type": "image"}]}], "[0].content[0].type",
         'expected "image_url", "text" or "video_url", got "image"'),
        ("response_format", {"type": "xml"}, ".type",
         'expected "json", "json_object", "json_schema", "regex" or "text", got "xml"'),
        ("response_format", {}, ".type",
         'expected "json", "json_object", "json_schema", "regex" or "text", got nothing'),
        ("response_format", "json", "", 'expected an object, got "json"'),
        ("response_format", {"type": "json_schema"}, ".json_schema",
         'expected an object like {"name": "…", "schema": {"type": "object"}}, got nothing'),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": 1}}, ".json_schema.schema",
         "expected true or an object, got 1"),
        ("json_schema", False, "", "expected true or an object, got a boolean"),
        ("json_schema", 1, "", "expected true or an object, got 1"),
        ("choice", ["a", ""], "[1]", 'expected a non-empty string, got ""'),
        ("encoding_format", "hex", "", 'expected "float" or "base64", got "hex"'),
        ("logprobs", 21, "", "expected an integer from 0 to 20, got 21"),
        ("structured_outputs", {"json": "{}"}, ".json", 'expected true or an object, got "{}"'),
        ("advised", -1, "", "expected an integer of 0 or more, got -1; omit it"),
    ],
)  # fmt: skip
def test_message_for_invalid_value_states_expectation(field: str, value: Any, where: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_body(Example, {field: value})
    assert (caught.value.field, caught.value.reason) == (field + where, reason)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"temprature": 1}, "temprature", 'did you mean "temperature"?'),
        (
            {"messages": [{"role": "u", "content": "a", "rol": 1}]},
            "messages[0].rol",
            'did you mean "messages[0].role"?',
        ),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema", "response_format.type"),
        ({"structured_outputs": {"jsn": 1}}, "structured_outputs.jsn", 'did you mean "structured_outputs.json"?'),
    ],
)
def test_unknown_field_names_nearest_known(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(UnknownField) as caught:
        read_body(Example, fields)
    assert caught.value.field == field
    assert words in caught.value.reason


def test_missing_field_and_parent_path_in_message() -> None:
    with pytest.raises(InvalidInput, match=r"^parameters\.priority: expected an integer from 1 to 9, got nothing$"):
        read_body(Required, {}, "parameters.")
    with pytest.raises(InvalidInput, match=r"^parameters\.documents\[1\]\.seed: expected an integer"):
        read_body(Required, {"priority": 1, "documents": ["a", {"seed": -1}]}, "parameters.")


def test_body_with_many_faults_is_refused_in_short() -> None:
    with pytest.raises(InvalidInput, match=r"^body: expected a valid object, got 10001 errors$"):
        read_body(Example, {f"x{i}": 1 for i in range(10_001)})


def test_null_counts_as_omitted() -> None:
    names = set(Example.model_fields) - {"prompt"}
    assert read_body(Example, dict.fromkeys(names)).prompt == "a"


@pytest.mark.parametrize(
    ("value", "name"),
    [(True, "a boolean"), (None, "null"), (1.5, "1.5"), ("a", '"a"'), ("a" * 41, "a string"), ([], "an array")],
)
def test_got_names_value(value: object, name: str) -> None:
    assert got(value) == name


@given(st.dictionaries(st.sampled_from(sorted(Example.model_fields)) | st.text(max_size=4), json_values, max_size=4))
def test_any_object_is_accepted_or_refused_by_name(fields: dict[str, Any]) -> None:
    try:
        read_body(Example, fields)
    except RequestError as error:
        assert error.message.startswith(tuple(fields))  # noqa: PT017 - any other error is a bug
        assert ": expected " in error.message or "unknown field; " in error.message  # noqa: PT017 - as above


@pytest.mark.parametrize("fields", [{"x" * 4_000_000: 1}, {"documents": [{"x" * 4_000_000: 1}]}])
def test_long_unknown_name_is_cut(fields: dict[str, Any]) -> None:
    with pytest.raises(UnknownField) as raised:
        read_body(Required, {"priority": 1, **fields})
    assert "x" * 200 in raised.value.field
    assert len(raised.value.message) < 3_000


def test_long_key_in_path_is_cut() -> None:
    with pytest.raises(RequestError) as raised:
        read_body(Example, {"logit_bias": {"1" * 4_000_000: 1}})
    assert len(raised.value.message) < 1_000


def test_first_request_builds_the_validator() -> None:
    class Late(Body):
        number: int

    assert not Late.__pydantic_complete__
    assert read_body(Late, {"number": 1}).number == 1
    assert Late.__pydantic_complete__
