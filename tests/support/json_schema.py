"""Whether a value meets a JSON schema, for the keywords that the bodies of this server use."""

import re
from types import NoneType
from typing import Any

_TYPES: dict[str, Any] = {
    "string": str, "null": NoneType, "object": dict, "array": list, "number": int | float, "integer": int,
    "boolean": bool,
}  # fmt: skip
_KNOWN = frozenset({
    "type", "anyOf", "oneOf", "const", "enum", "pattern", "minimum", "exclusiveMinimum", "maximum", "minLength",
    "maxLength", "minItems", "maxItems", "maxProperties", "properties", "required", "additionalProperties",
    "dependentRequired", "items", "default", "description", "title", "examples", "format",
})  # fmt: skip


def meets(schema: dict[str, Any], value: Any) -> bool:
    """Whether the value meets the schema. Raises AssertionError for a keyword that this function does not know."""
    assert schema.keys() <= _KNOWN, schema.keys() - _KNOWN
    if "anyOf" in schema:
        return any(meets(each, value) for each in schema["anyOf"])
    if "oneOf" in schema:
        return sum(meets(each, value) for each in schema["oneOf"]) == 1
    if value not in schema.get("enum", [schema.get("const", value)]):
        return False
    kind = schema.get("type")
    if kind is None:
        return True
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    return _kind_meets(schema, value)


def _kind_meets(schema: dict[str, Any], value: Any) -> bool:
    if isinstance(value, int | float):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value)) and bool(
            value > schema.get("exclusiveMinimum", value - 1)
        )
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            return False
        return bool(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)))
    if isinstance(value, list):
        in_size = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return in_size and all(meets(schema.get("items", {}), each) for each in value)
    return not isinstance(value, dict) or _object_meets(schema, value)


def _object_meets(schema: dict[str, Any], value: dict[str, Any]) -> bool:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    if len(value) > schema.get("maxProperties", len(value)) or not set(schema.get("required", ())) <= value.keys():
        return False
    for name, needed in schema.get("dependentRequired", {}).items():
        if name in value and not set(needed) <= value.keys():
            return False
    for name, each in value.items():
        if name in known:
            if not meets(known[name], each):
                return False
        elif others is False or (isinstance(others, dict) and not meets(others, each)):
            return False
    return True
