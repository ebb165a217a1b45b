"""Ways to read a body: the quickest for the shortest, and one that makes certain what came."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from app.protocols import json_body
from app.protocols.json_body import Document, ExactParseNeeded, parse, parse_exact
from frameworks.errors import InvalidInput
from frameworks.types import Array

Read = TypeVar("Read")
SHORT_BYTES = 16 * 1024
"""Below this a body may be worth a way of its own."""


def read_document(body: bytes, read: Callable[[Document], Read]) -> Read:
    """What `read` makes of the body, whose shapes are certain. It is called again where they were not.

    Raises InvalidJson, and what `read` raises.
    """
    document = parse(body)
    try:
        read_once = read(document)
    except ExactParseNeeded:
        return read(parse_exact(body))
    except InvalidInput:
        if not document.shapes_are_certain():
            # What seemed flat and of the wrong length may be ragged: the slower way then says so instead.
            read(parse_exact(body))
        raise
    if document.shapes_are_certain():
        return read_once
    # An array that seemed flat may hide a nest, or a bracket stands in a string: the slower way tells.
    return read(parse_exact(body))


def read_flat(body: bytes) -> tuple[Any, Array] | None:
    """The value of `model_name`, None where it is left out, and the float64 numbers of `input_data`, of a short body
    that has no other member and no nest; None for any other body, which is read by `parse` or refused there.
    """
    # One bracket opens one array, and none within it.
    simdjson = json_body.simdjson
    if simdjson is None or len(body) >= SHORT_BYTES or body.count(b"[") != 1 or not body.startswith(b"{"):
        return None
    try:
        root = simdjson.Parser().parse(body)
        names = list(root)
        if names == ["input_data"]:
            return None, np.frombuffer(root["input_data"].as_buffer(of_type="d"), np.float64)
        if names == ["model_name", "input_data"]:
            return root["model_name"], np.frombuffer(root["input_data"].as_buffer(of_type="d"), np.float64)
    except (ValueError, TypeError, RuntimeError, AttributeError):
        pass
    return None
