"""Read `parameters` of models that embed or classify: the options of /infer by the names of their own fields."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import orjson

from app.protocols.native.fields import OPTIONS, PARAMETERS
from app.protocols.shared.fields.texts import read_function_to_apply
from app.protocols.shared.json.body import Document, Node, describe_type
from frameworks.core.errors import MAX_SHOWN_CHARACTERS, InvalidInput, UnknownField
from frameworks.types import ModelSpec

Decoded = TypeVar("Decoded")

NAMES: dict[str, frozenset[str]] = {"text": OPTIONS["text"], "image": OPTIONS["image"] - {"outputs"}}
"""Input field → the names of its parameters."""


def has_own_parameters(fields: Collection[str]) -> bool:
    """Whether a body has `parameters` beside the one input whose options they may be."""
    return PARAMETERS in fields and sum(name in fields for name in NAMES) == 1


def decode_merged(
    decode: Callable[[Document, dict[str, Node], ModelSpec], Decoded],
    document: Document,
    fields: dict[str, Node],
    spec: ModelSpec,
) -> Decoded:
    """Decode a body whose options are in `parameters`: `decode` reads them as fields of their own.

    Those of a task are left as they are. Raises InvalidInput, UnknownField, with the fields of the request.
    """
    node = fields[PARAMETERS]
    if spec.pipeline is not None:
        return decode(document, fields, spec)
    own = {name: value for name, value in fields.items() if name != PARAMETERS}
    if node is None:
        return decode(document, own, spec)
    if not document.is_object(node):
        raise InvalidInput(PARAMETERS, f"expected an object, got {describe_type(node)}; send parameters by their names")
    field = next(name for name in NAMES if name in fields)
    merged, names = _merged(own, document.members(node, NAMES[field], f"{PARAMETERS}."))
    try:
        return decode(document, merged, spec)
    except InvalidInput as error:
        raise in_parameters(error, names) from None


def merge_parameters_of_files(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options of image files with those of `parameters`, JSON as text, and the names of these.

    Raises InvalidInput, UnknownField.
    """
    own = {name: value for name, value in options.items() if name != PARAMETERS}
    try:
        # Its length is bounded where a form or a query is read.
        given = orjson.loads(options[PARAMETERS])
    except orjson.JSONDecodeError as error:
        raise InvalidInput(PARAMETERS, f"expected a JSON object as text, got other text ({error})") from None
    if not isinstance(given, dict | None):
        raise InvalidInput(PARAMETERS, f"expected a JSON object as text, got {describe_type(given)}")
    for name in given or ():
        if name not in NAMES["image"]:
            raise UnknownField.among(name[:MAX_SHOWN_CHARACTERS], NAMES["image"], within=f"{PARAMETERS}.")
    return _merged(own, given or {})


def _merged(own: dict[str, Any], members: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return both, and the names of the members. Those that are null have their defaults."""
    given = {name: value for name, value in members.items() if value is not None}
    for name in given:
        if name in own:
            raise InvalidInput(f"{PARAMETERS}.{name}", f"expected one value, got {name} too; leave one of them out")
    return own | given, list(given)


def in_parameters(error: InvalidInput, names: Collection[str]) -> InvalidInput:
    """Return the error of a field under the name that the request has for it."""
    return InvalidInput(f"{PARAMETERS}.{error.field}", error.reason) if error.field in names else error


def read_raw_scores(fields: Mapping[str, Node], spec: ModelSpec) -> bool:
    """Read `function_to_apply`: whether logits are asked for. Raises InvalidInput for a function of other models."""
    name = "function_to_apply"
    return name in fields and read_function_to_apply(fields[name], spec, name)
