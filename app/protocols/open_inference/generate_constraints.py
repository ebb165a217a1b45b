"""What a text has to be, in the words of Triton's backends: vLLM's, TensorRT-LLM's, and ours."""

from typing import Any

import orjson

from app.protocols.constraint_fields import read_constraint, read_structured_outputs
from app.protocols.generation_fields import Fields
from app.protocols.json_body import describe_value
from frameworks.errors import InvalidInput
from frameworks.generation.types import Constraint

_OF_VLLM = ("structured_outputs", "guided_decoding")
_KIND, _GUIDE = "guided_decoding_guide_type", "guided_decoding_guide"
"""TensorRT-LLM's."""

CONSTRAINT_NAMES = frozenset({*_OF_VLLM, _KIND, _GUIDE})
"""What `read_any_constraint` reads besides CONSTRAINT_FIELDS."""


def read_any_constraint(fields: Fields) -> Constraint | None:
    """None where the text is free. Raises InvalidInput, UnknownField."""
    found: list[tuple[str, Constraint | None]] = [("the other fields", read_constraint(fields))]
    for name in _OF_VLLM:
        value = fields.get(name)
        if value is not None:
            found.append((name, _read_structured(value, name)))
    found.append((_KIND, _read_guide(fields)))
    constraints = [(name, constraint) for name, constraint in found if constraint is not None]
    if len(constraints) > 1:
        raise InvalidInput(constraints[1][0], "does not go with the other ways to say what the text has to be")
    return constraints[0][1] if constraints else None


def read_json(value: str, name: str) -> Any:
    """A value that came as a string of JSON. Raises InvalidInput."""
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(name, f"is a string, but not of JSON: {error}") from None


def _read_structured(value: Any, name: str) -> Constraint | None:
    """An object, or as the parameters of Triton have it, the JSON of one."""
    if isinstance(value, str):
        value = read_json(value, name)
    if isinstance(value, dict):
        # Which library does it: ours is our own.
        value = {member: each for member, each in value.items() if member != "backend"}
    return read_structured_outputs(value, name)


def _read_guide(fields: Fields) -> Constraint | None:
    kind, guide = fields.get(_KIND), fields.get(_GUIDE)
    if kind is None:
        if guide is not None:
            raise InvalidInput(_KIND, "is missing; wants one of json, json_schema, regex")
        return None
    if kind == "json":
        return read_constraint({"json_schema": True})
    if kind not in ("json_schema", "regex"):
        raise InvalidInput(_KIND, f"is {describe_value(kind)}; wants one of json, json_schema, regex")
    if not isinstance(guide, str):
        given = "is missing" if guide is None else f"is {describe_value(guide)}"
        raise InvalidInput(_GUIDE, f"{given}; wants a string, the schema or the pattern")
    try:
        return read_constraint({kind: read_json(guide, _GUIDE) if kind == "json_schema" else guide})
    except InvalidInput as error:
        raise InvalidInput(_GUIDE, error.reason) from None
