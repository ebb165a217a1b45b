"""JSON schemas in property tests: check values against a schema, and generate values in and around it."""

import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel

from tests.app.protocols.strategies import json_values

Schema = dict[str, Any]
_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


@cache
def schema_of(model: type[BaseModel]) -> Schema:
    """Return the schema that OpenAPI shows, without references. Built once for each model."""
    schema = model.model_json_schema()
    inlined: Schema = _inline(schema, schema.get("$defs", {}))
    return inlined


def accepts(schema: Schema, value: Any) -> bool:
    """Return whether a value meets a schema. `1.0` does not meet `integer`: the server refuses it."""
    if branches := schema.get("anyOf", schema.get("oneOf")):
        return any(accepts(branch, value) for branch in branches)
    if "enum" in schema or "const" in schema:
        choices = schema.get("enum", [schema.get("const")])
        return any(type(value) is type(choice) and value == choice for choice in choices)
    if "type" not in schema:
        return True
    return type(value) in _TYPES[schema["type"]] and all(_rules(schema, value))


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Generate values that meet a schema."""
    if branches := schema.get("anyOf", schema.get("oneOf")):
        return st.one_of([values(branch) for branch in branches])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum"))
            return st.floats(low, schema.get("maximum"), exclude_min="exclusiveMinimum" in schema)
        case "string":
            return _strings(schema)
        case "array":
            size = schema.get("minItems", 0)
            unique = repr if schema.get("uniqueItems") else None
            return st.lists(values(schema["items"]), min_size=size, max_size=size + 3, unique_by=unique)
        case "object":
            return _objects(schema)
    return json_values


def values_around(schema: Schema) -> st.SearchStrategy[Any]:
    """Generate values in a schema, at its bounds and just outside of them, and any other JSON."""
    bounds = list(_bounds(schema))
    return st.one_of(values(schema), json_values, *([st.sampled_from(bounds)] if bounds else []))


def _strings(schema: Schema) -> st.SearchStrategy[str]:
    if pattern := schema.get("pattern"):
        return st.from_regex(pattern.replace("$", r"\Z"))
    return st.text(min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 8), 8))


def _objects(schema: Schema) -> st.SearchStrategy[Any]:
    if patterns := schema.get("patternProperties"):
        ((pattern, member),) = patterns.items()
        return st.dictionaries(st.from_regex(pattern.replace("$", r"\Z")), values(member), max_size=3)
    properties = {name: values(member) for name, member in schema.get("properties", {}).items()}
    required = {name: properties.pop(name) for name in schema.get("required", ())}
    # One optional member at a time: no schema states which members exclude each other.
    choices = [st.fixed_dictionaries({**required, name: value}) for name, value in properties.items()]
    return st.one_of(st.fixed_dictionaries(required), *choices)


def _rules(schema: Schema, value: Any) -> Iterator[bool]:
    if isinstance(value, int | float):
        yield schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf)
        yield value > schema.get("exclusiveMinimum", -math.inf)
    if isinstance(value, str):
        yield schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf)
        yield "pattern" not in schema or re.search(schema["pattern"].replace("$", r"\Z"), value) is not None
    if isinstance(value, list):
        yield schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf)
        yield all(accepts(schema.get("items", {}), item) for item in value)
        yield not schema.get("uniqueItems") or len(set(map(repr, value))) == len(value)
    if isinstance(value, dict):
        yield len(value) <= schema.get("maxProperties", math.inf)
        yield from _member_rules(schema, value)


def _member_rules(schema: Schema, value: dict[str, Any]) -> Iterator[bool]:
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    yield all(name in value for name in schema.get("required", ()))
    for name, member in value.items():
        if name in properties:
            yield accepts(properties[name], member)
        elif matched := [each for pattern, each in patterns.items() if re.search(pattern.replace("$", r"\Z"), name)]:
            yield all(accepts(each, member) for each in matched)
        else:
            yield schema.get("additionalProperties") is not False


def _bounds(schema: Schema) -> Iterator[Any]:
    """Yield values at each bound and beyond it."""
    for branch in schema.get("anyOf") or schema.get("oneOf") or ():
        yield from _bounds(branch)
    for bound in (schema.get(name) for name in ("minimum", "maximum", "exclusiveMinimum")):
        if bound is not None:
            yield from (bound, bound - 1, bound + 1, float(bound), bound - 0.001, bound + 0.001)
    if schema.get("type") == "string" and "maxLength" in schema:
        yield from ("a" * schema["maxLength"], "a" * (schema["maxLength"] + 1), "")
    if schema.get("type") == "array" and (size := schema.get("maxItems", 0)) < 2000:
        item = {"string": "a", "integer": 1, "array": [1]}.get(schema["items"].get("type"))
        yield [item] * size
        yield [item] * (size + 1)
        yield []


def _inline(node: Any, definitions: dict[str, Schema]) -> Any:
    if isinstance(node, list):
        return [_inline(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {name: _inline(each, definitions) for name, each in node.items() if name != "$defs"}
