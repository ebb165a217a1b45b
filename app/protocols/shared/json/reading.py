"""Read whole JSON bodies: with certain shapes, and in the fast path of a short flat list."""

from collections.abc import Callable
from typing import TypeVar

from app.protocols.shared.json.body import Document, ExactParseNeeded, parse_exact
from app.protocols.shared.json.long_documents import parse_body
from frameworks.core.errors import InvalidInput

Read = TypeVar("Read")
SHORT_BYTES = 16 * 1024
"""Shorter bodies have fast paths of their own."""


def read_document(body: bytes, read: Callable[[Document], Read]) -> Read:
    """Parse the body and return the result of `read`, which is called again if the shapes were not certain.

    Raises InvalidJson, and the errors of `read`.
    """
    document = parse_body(body)
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
