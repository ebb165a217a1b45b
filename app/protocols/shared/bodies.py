"""Request bodies that one pydantic model describes: it validates the body, and OpenAPI shows its schema.

    class ScoreRequest(Body):
        query: str
        priority: Priority = None

    request = read_body(ScoreRequest, fields)

`read_body` raises InvalidInput or UnknownField; the message states the expected value as the JSON schema states it.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from app.protocols.shared.json.body import describe_value
from frameworks.core.errors import MAX_SHOWN_CHARACTERS, InvalidInput, UnknownField
from frameworks.types import DEFAULT_PRIORITY, LAST_PRIORITY

MAX_INT32 = 2**31 - 1

_MAX_ERRORS = 10_000
_MAX_COMPARED_ERRORS = 64
_MAX_SHOWN_CHARACTERS = 40
# Sorts behind every index of a list.
_END = 2**62
# Types of errors whose location ends with a member that the value does not have, or that the schema does not know.
_ABSENT = frozenset({"missing", "extra_forbidden", "union_tag_invalid", "union_tag_not_found"})
# Type of error to the JSON type that the branch of a union expected.
_EXPECTED_TYPES = {
    "bool_type": "boolean",
    "int_type": "integer",
    "float_type": "number",
    "string_type": "string",
    "list_type": "array",
    "dict_type": "object",
    "model_type": "object",
    "model_attributes_type": "object",
    "value_error": "",
}
_SIZES = {"string": "Length", "array": "Items", "object": "Properties"}
_JSON_TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}

Schema = dict[str, Any]


class Body(BaseModel):
    """Base of every request body and of every object in one: frozen, strict, and without unknown fields.

    Its validator is built for the first request, which makes a start faster.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        protected_namespaces=(),
        allow_inf_nan=False,
        defer_build=True,
    )


class ResponseBody(BaseModel):
    """Base of every response body. It only describes the body: no validator is built, which makes a start faster."""

    model_config = ConfigDict(protected_namespaces=(), defer_build=True)


@dataclass(frozen=True, slots=True)
class Remedy:
    """Advice that ends every error message of a field; belongs into the metadata of the field's Annotated type."""

    text: str


Kind = TypeVar("Kind", bound=Body)

# Null is accepted wherever a field may be omitted: clients send null for omitted options.
Priority = Annotated[
    int | None,
    Field(
        ge=1,
        le=LAST_PRIORITY,
        description=f"Position in the queue, 1 is first; it rises with the time in the queue. Default: "
        f"{DEFAULT_PRIORITY}.",
    ),
]
TimeoutMs = Annotated[int | None, Field(ge=1, le=MAX_INT32, description="Deadline of the request in milliseconds.")]


def _check_true(value: bool) -> bool:
    if not value:
        raise ValueError("expected true")
    return value


def _check_false(value: bool) -> bool:
    if value:
        raise ValueError("expected false")
    return value


# Literal[True] of pydantic accepts 1 and 1.0 too.
OnlyTrue = Annotated[bool, AfterValidator(_check_true), WithJsonSchema({"const": True, "type": "boolean"})]
OnlyFalse = Annotated[bool, AfterValidator(_check_false), WithJsonSchema({"const": False, "type": "boolean"})]


def read_body(kind: type[Kind], fields: Mapping[str, Any], within: str = "") -> Kind:
    """Validate the fields of one object. `within`: its path in the body, as `parameters.`.

    Raises InvalidInput, UnknownField.
    """
    try:
        body: Kind = kind.__pydantic_validator__.validate_python(fields)
    except ValidationError as error:
        raise _field_error(kind, error, fields, within) from None
    return body


def got(value: Any) -> str:
    """Name a value in an error message: numbers and short strings by value, any other by its JSON type."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str) and len(value) <= _MAX_SHOWN_CHARACTERS:
        return f'"{value}"'
    return describe_value(value)


def describe(schemas: Iterable[Schema]) -> str:
    """Describe the values that meet one of the JSON schemas, as `an integer from 1 to 9 or a boolean`."""
    descriptions = list(dict.fromkeys(_noun(each, is_plural=False) for each in schemas if each.get("type") != "null"))
    return " or ".join(filter(None, (", ".join(descriptions[:-1]), *descriptions[-1:])))


@dataclass(frozen=True, slots=True)
class _Place:
    """The location of one error. `alternatives`: the value had to meet one of these schemas.

    `names`: the known fields of the object at the path without its last step.
    """

    path: tuple[str | int, ...] = ()
    alternatives: tuple[Schema, ...] = ()
    names: frozenset[str] = frozenset()

    def __str__(self) -> str:
        shown = (f"[{step}]" if isinstance(step, int) else f".{step[:MAX_SHOWN_CHARACTERS]}" for step in self.path)
        return "".join(shown)[1:]


def _field_error(
    kind: type[Body], error: ValidationError, fields: Mapping[str, Any], within: str
) -> InvalidInput | UnknownField:
    if error.error_count() > _MAX_ERRORS:
        return InvalidInput(within.rstrip(".") or "body", f"expected a valid object, got {error.error_count()} errors")
    details = error.errors(include_url=False)
    first_field = details[0]["loc"][:1]
    details = [each for each in details if each["loc"][:1] == first_field][:_MAX_COMPARED_ERRORS]
    places = [_locate(kind, detail, fields) for detail in details]
    # Each branch of a union reports an error. The branch that accepted most of the value is the one meant.
    furthest = max(map(_progress, places, details))
    closest = [pair for pair in zip(places, details, strict=True) if _progress(*pair) == furthest]
    place, detail = closest[0]
    field = within + str(place)
    if detail["type"] == "extra_forbidden":
        name = str(place.path[-1])
        return UnknownField.among(name, place.names, field[: len(field) - len(name[:MAX_SHOWN_CHARACTERS])])
    metadata = kind.model_fields[str(place.path[0])].metadata if place.path[0] in kind.model_fields else []
    remedy = next((f"; {each.text}" for each in metadata if isinstance(each, Remedy)), "")
    expected = _expected(place, [each["type"] for other, each in closest if other.path == place.path], detail)
    return InvalidInput(field, f"expected {expected}, got {_found(detail)}{remedy}")


def _locate(kind: type[Body], detail: Any, fields: Mapping[str, Any]) -> _Place:
    """Follow the location of an error through the value and the schema. Names of union branches are no steps of it."""
    location: tuple[str | int, ...] = detail["loc"][:-2] if _is_of_key(detail) else detail["loc"]
    if detail["type"].startswith("union_tag"):
        location = (*location, detail["ctx"]["discriminator"].strip("'"))
    path: list[str | int] = []
    names: frozenset[str] = frozenset()
    schemas = _alternatives([schema_of(kind)])
    value: Any = fields
    for position, step in enumerate(location):
        is_absent = position == len(location) - 1 and detail["type"] in _ABSENT
        if tagged := [each for each in schemas if each.get("tag") == step]:
            schemas = [{key: each[key] for key in each if key != "tag"} for each in tagged]
        elif isinstance(step, int) and isinstance(value, list):
            schemas, value = _alternatives(each["items"] for each in schemas if "items" in each), value[step]
            path.append(step)
        elif isinstance(value, dict) and (step in value or is_absent):
            names = frozenset(name for each in schemas for name in each.get("properties", {}))
            schemas, value = _alternatives(_members(schemas, str(step))), value.get(step)
            path.append(step)
    return _Place(tuple(path), tuple(schemas), names)


def _is_of_key(detail: Any) -> bool:
    """Return whether an error is of a name in a map. A member may have the name by which pydantic marks these."""
    location = detail["loc"]
    return location[-1] == "[key]" and detail["type"] not in _ABSENT and detail["input"] == location[-2]


def _members(schemas: Iterable[Schema], name: str) -> Iterator[Schema]:
    """Yield the schemas of one member of an object."""
    for schema in schemas:
        if name in schema.get("properties", {}):
            yield schema["properties"][name]
        else:
            yield from schema.get("patternProperties", {}).values()


def _alternatives(schemas: Iterable[Schema]) -> list[Schema]:
    """Resolve unions."""
    found: list[Schema] = []
    for schema in schemas:
        branches = schema.get("anyOf", schema.get("oneOf"))
        found += [schema] if branches is None else _alternatives(branches)
    return found


def _progress(place: _Place, detail: Any) -> tuple[int, ...]:
    """Order the errors of a union: by depth and index of the first invalid part; a wrong type is before a bound."""
    steps = tuple(step if isinstance(step, int) else 0 for step in place.path)
    return steps if detail["type"].endswith("_type") else (*steps, _END)


def _expected(place: _Place, types: Collection[str], detail: Any) -> str:
    """Describe the schemas of the branches that the value describe_value closest to. `types`: of their errors."""
    if _is_of_key(detail):
        return f"keys that match {detail['ctx'].get('pattern')}"
    kinds = {_EXPECTED_TYPES.get(each, _JSON_TYPES.get(type(detail["input"]), "")) for each in types}
    if "integer" in kinds:
        kinds.add("number")
    return describe([each for each in place.alternatives if each.get("type") in kinds] or place.alternatives)


def _found(detail: Any) -> str:
    name, value = detail["type"], detail["input"]
    if name in ("missing", "union_tag_not_found"):
        return "nothing"
    if name == "union_tag_invalid":
        return got(value.get(detail["ctx"]["discriminator"].strip("'")))
    if name in ("too_long", "too_short"):
        return f"{len(value)} {'members' if isinstance(value, dict) else 'items'}"
    if name == "string_too_long":
        return f"{len(value)} characters"
    return got(value)


def _noun(schema: Schema, is_plural: bool) -> str:
    """Describe one schema that is no union: `a string of 1 to 64 characters`. `is_plural`: as the items of a list."""
    if "const" in schema or "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "value")
    low, high = schema.get(f"min{_SIZES.get(kind)}"), schema.get(f"max{_SIZES.get(kind)}")
    noun = ("non-empty " if low == 1 and high is None else "") + ("list" if kind == "array" else kind)
    noun = f"{noun}s" if is_plural else f"an {noun}" if kind in ("integer", "object") else f"a {noun}"
    size = "" if high is None else f" of {low} to {high}" if low else f" of at most {high}"
    match kind:
        case "integer" | "number":
            return noun + _bounds(schema)
        case "string":
            return noun + (f"{size} characters" if size else "")
        case "array":
            items = _alternatives([schema.get("items", {})])
            return f"{noun}{size or ' of'} {' or '.join(_noun(each, is_plural=True) for each in items)}"
        case "object":
            example = schema.get("examples", [None])[0]
            return (
                noun
                + (f"{size} members" if size else "")
                + (f" like {json.dumps(example, ensure_ascii=False)}" if example else "")
            )
    return noun


def _bounds(schema: Schema) -> str:
    low, high, above = schema.get("minimum"), schema.get("maximum"), schema.get("exclusiveMinimum")
    if above is not None:
        return f" above {above}" + ("" if high is None else f" and at most {high}")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    return "" if low is None else f" of {low} or more"


@cache
def schema_of(kind: type[Body]) -> Schema:
    """Return the schema without references. Each branch of a tagged union gets its tag as the member `tag`."""
    schema = kind.model_json_schema()
    inlined: Schema = _inline(schema, schema.get("$defs", {}))
    return inlined


def _tagged(branch: Schema, name: str, tag: str) -> Schema:
    """Return a branch of a tagged union for one of its tags. `name`: of the member that has the tag."""
    properties = {**branch["properties"], name: {**branch["properties"][name], "enum": [tag]}}
    return {**branch, "properties": properties, "tag": tag}


def _inline(node: Any, definitions: Mapping[str, Schema]) -> Any:
    if isinstance(node, list):
        return [_inline(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(definitions[node["$ref"].rpartition("/")[2]], definitions)
    if "discriminator" in node:
        name, branches = node["discriminator"]["propertyName"], node["discriminator"]["mapping"].items()
        return {"oneOf": [_tagged(_inline({"$ref": reference}, definitions), name, tag) for tag, reference in branches]}
    return {name: _inline(each, definitions) for name, each in node.items() if name != "$defs"}
