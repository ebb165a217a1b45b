"""Read whole JSON bodies: with certain shapes, and in the fast path of a short flat list."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from app.inference.contract import NamedRequest
from app.protocols.shared.json.body import Document, ExactParseNeeded, parse, parse_exact
from app.protocols.shared.json.cut import CutDocument, NotCut, cut
from app.protocols.shared.json.long_documents import LongDocument
from frameworks.core.errors import InvalidInput, RoundhouseError

Read = TypeVar("Read")
SHORT_BYTES = 16 * 1024
"""Shorter bodies have fast paths of their own, and are not cut."""
_LONG_BYTES = 3 * 1024 * 1024
"""From this length on a body is read in pieces, whatever it holds."""
_FEW_VALUES_BYTES = 256 * 1024
_FEW_VALUES, _FEW_MEMBERS = 160_000, 20_000
"""A body of _FEW_VALUES_BYTES or more is read in pieces if it has about more values, or more members of objects: one
parser would take 10 ms."""
_NUM_SAMPLES, _SAMPLE_BYTES = 64, 1024


def parse_body(body: bytes) -> Document:
    """Parse a body: at once if it is short, else in pieces. Raises InvalidJson, whose message has line and column."""
    is_long = len(body) >= _LONG_BYTES or (len(body) >= _FEW_VALUES_BYTES and _has_many_values(body))
    return LongDocument(body) if is_long else parse(body)


def _has_many_values(body: bytes) -> bool:
    """Estimate from samples whether a body has many commas or colons: to count all takes a tenth of a parse.

    The places of the samples are equal for equal bodies, and cannot be known to a caller: Python's hashes differ from
    process to process.
    """
    step = len(body) // _NUM_SAMPLES
    first = hash((len(body), body[:_SAMPLE_BYTES])) % (step - _SAMPLE_BYTES)
    commas = colons = 0
    for place in range(first, len(body), step):
        commas += body.count(b",", place, place + _SAMPLE_BYTES)
        colons += body.count(b":", place, place + _SAMPLE_BYTES)
    share = _NUM_SAMPLES * _SAMPLE_BYTES / len(body)
    return commas > _FEW_VALUES * share or colons > _FEW_MEMBERS * share


def read_document(body: bytes, read: Callable[[Document], Read]) -> Read:
    """Parse the body and return the result of `read`, which is called again if the shapes were not certain.

    Raises InvalidJson, and the errors of `read`.
    """
    document = cut(body) if len(body) >= SHORT_BYTES else None
    if document is not None:
        with suppress(NotCut):
            return _by_cut(document, lambda: read(document))
    return _certain(parse_body(body), body, read)


def read_named(body: bytes, read: Callable[[Document], NamedRequest]) -> NamedRequest:
    """Parse the body and return the names that `read` finds in it. Its `decode` is as the `read` of `read_document`.

    Raises InvalidJson, and the errors of `read`.
    """
    document = cut(body) if len(body) >= SHORT_BYTES else None
    if document is not None:
        try:
            by_cut = read(document)
        except (NotCut, RoundhouseError):
            pass  # an error of the array would be the first one
        else:

            def decode_cut(spec: Any) -> Any:
                with suppress(NotCut):
                    return _by_cut(document, lambda: by_cut.decode(spec))
                return _read_whole(body, read).decode(spec)

            return by_cut._replace(decode=decode_cut)
    return _read_whole(body, read)


def _by_cut(document: CutDocument, read: Callable[[], Read]) -> Read:
    """Return the result of `read`, or raise its error, if both are certain. Raises NotCut."""
    try:
        result = read()
    except RoundhouseError:
        if document.shapes_are_certain():
            raise
        raise NotCut from None
    if not document.shapes_are_certain():
        raise NotCut
    return result


def _read_whole(body: bytes, read: Callable[[Document], NamedRequest]) -> NamedRequest:
    """As `read_named`, without a cut."""
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
