"""Read and describe the body of `POST /models`: the keys of an entry in config.toml, and optionally `framework`."""

from pathlib import Path
from typing import Any

from app.config import ConfigError, parse_model_entry
from frameworks.core.addresses import SourceAddress
from frameworks.core.errors import InvalidInput, UnknownField
from frameworks.core.settings.adapters import MAX_ADAPTERS, NAME_PATTERN
from frameworks.core.settings.entries import Isolation, OnnxModelEntry, TorchModelEntry
from frameworks.core.settings.images import ImageSettings
from frameworks.core.settings.states import MAX_STATES, StateEntry

ENTRY_EXAMPLE = {"name": "digits-2", "path": "./models/digits"}

_NULL = {"type": "null"}
_SIZE = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
        {"type": "string", "pattern": "^ *([1-9][0-9]{0,17} *B?|[1-9][0-9]{0,5}(\\.[0-9]{1,9})? *[KMGT]i?B) *$"},
        _NULL,
    ]
}
_CPUS = "[0-9]{1,4}(-[0-9]{1,4})?"
_VALUES: dict[str, dict[str, Any]] = {
    "path": {"type": "string", "pattern": r"\S"},
    "version_policy": {
        "anyOf": [
            {"type": "string", "enum": ["latest", "all"]},
            {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
        ]
    },
    "device": {"type": "string", "pattern": "^(auto|cpu|mps|cuda(:[0-9]{1,3})?)$"},
    "kv_cache_bytes": _SIZE,
    "max_process_memory": _SIZE,
    "cpus": {"anyOf": [{"type": "string", "maxLength": 256, "pattern": f"^{_CPUS}(,{_CPUS})*$"}, _NULL]},
    "adapters": {
        "type": "array",
        "maxItems": MAX_ADAPTERS,
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": NAME_PATTERN},
                "path": {"type": "string", "pattern": r"\S"},
            },
            "required": ["name", "path"],
            "additionalProperties": False,
        },
    },
    "draft_model": {"anyOf": [{"type": "string", "pattern": r"\S"}, _NULL]},
    "pad_values": {"anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, _NULL]},
    "image": {"anyOf": [ImageSettings.model_json_schema(), _NULL]},
    "max_state_bytes": _SIZE,
    "state": {
        "anyOf": [
            {"const": "auto"},
            {"type": "array", "minItems": 1, "maxItems": MAX_STATES, "items": StateEntry.model_json_schema()},
            _NULL,
        ]
    },
}
"""Schemas of keys that pydantic cannot describe. Some keys accept more spellings, as "float32" for "f32"."""


def read_entry(body: dict[str, Any], isolation: Isolation = "none") -> OnnxModelEntry | TorchModelEntry:
    """Validate a model's entry. `isolation`: that of a model that has none of its own.

    Raises UnknownField or InvalidInput, with all issues of the body in its message.
    """
    try:
        return parse_model_entry(body.get("framework"), body, isolation)
    except ConfigError as error:
        first, *others = error.issues
        message = "; ".join([first.message, *(f"{issue.key}: {issue.message}" for issue in others)])
        kind = UnknownField if first.kind == "unknown_key" else InvalidInput
        raise kind(first.key or "body", message) from None


def read_path(body: dict[str, Any]) -> Path | SourceAddress:
    """Return the path of an entry whose framework is not known. Raises InvalidInput."""
    given = {"path": body["path"]} if "path" in body else {}
    return read_entry({"framework": "onnx", "name": "any", **given}).path


def entry_schema() -> dict[str, Any]:
    """Return the schema of a registration: the class of each framework's entries, and `framework`.

    A body without `framework` meets the schema if the keys are those of any of them.
    """
    schemas = []
    for framework, entry_type in (("onnx", OnnxModelEntry), ("pytorch", TorchModelEntry)):
        schema = entry_type.model_json_schema()
        schema.pop("$defs", None)  # of the adapters, images and states, which _VALUES describes
        schema["description"] = (
            "The keys of an entry in config.toml. `path` must be below one of models.roots, or an address within "
            "models.sources."
        )
        properties = schema["properties"]
        for name in properties.keys() & _VALUES.keys():
            kept = {key: value for key, value in properties[name].items() if key in ("title", "default")}
            properties[name] = {**kept, **_VALUES[name]}
        if "execution_providers" in properties:
            properties["execution_providers"]["anyOf"][0]["minItems"] = 1
            schema["dependentRequired"] = {name: ["sequence_axis"] for name in ("pad_values", "mask_input")}
        about = "Default: found from the files, as `roundhouse serve PATH` does."
        schema["properties"] = {"framework": {"const": framework, "description": about}, **properties}
        schemas.append(schema)
    return {"anyOf": schemas}
