"""Read whole JSON bodies: with certain shapes, and in the fast path of a short flat list."""

from collections.abc import Callable
from typing import Any, TypeVar

from app.inference.contract import NamedRequest
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
    return _certain(parse_body(body), body, read)


def read_named(body: bytes, read: Callable[[Document], NamedRequest]) -> NamedRequest:
    """Parse the body and return the names that `read` finds in it. Its `decode` is as the `read` of `read_document`.

    Raises InvalidJson, and the errors of `read`.
    """
    document = parse_body(body)
    try:
        named = read(document)
    except ExactParseNeeded:
        return read(parse_exact(body))

    def decode(spec: Any) -> Any:
        return _certain(document, body, lambda each: (named if each is document else read(each)).decode(spec))

    return named._replace(decode=decode)


def _certain(document: Document, body: bytes, read: Callable[[Document], Read]) -> Read:
    """Return the result of `read` for a document of this body whose shapes are certain."""
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
