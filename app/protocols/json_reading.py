"""Read whole JSON bodies: with certain shapes, and in the fast path of a short flat list."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from app.protocols import json_body
from app.protocols.json_body import Document, ExactParseNeeded, parse, parse_exact
from frameworks.errors import InvalidInput
from frameworks.types import Array

Read = TypeVar("Read")
SHORT_BYTES = 16 * 1024
"""Shorter bodies have fast paths of their own."""


def read_document(body: bytes, read: Callable[[Document], Read]) -> Read:
    """Parse the body and return the result of `read`, which is called again if the shapes were not certain.

    Raises InvalidJson, and the errors of `read`.
    """
    document = parse(body)
    try:
        read_once = read(document)
    except ExactParseNeeded:
        return read(parse_exact(body))
    except InvalidInput:
        if not document.shapes_are_certain():
            # An array of a wrong length may be ragged: the exact parser then raises a better error.
            read(parse_exact(body))
        raise
    if document.shapes_are_certain():
        return read_once
    # A bracket more than expected is a nested array or part of a string: only the exact parser knows.
    return read(parse_exact(body))


def read_flat(body: bytes) -> tuple[Any, Array] | None:
    """Return `model_name`, or None without one, and the float64 numbers of `input_data` of a short body.

    Returns None for a body with another member or a nested array, and for an invalid body.
    """
    # With one bracket there is no nested array.
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
