"""What a body says of the vectors that it asks for, whatever protocol it came by."""

from collections.abc import Mapping
from typing import Any

from app.protocols.generation_fields import read_whole
from frameworks.errors import InvalidInput
from frameworks.types import TextSpec

MAX_TEXTS = 100_000
"""Texts in one request to an embed or classify model."""


def read_dimensions(fields: Mapping[str, Any], text: TextSpec) -> int | None:
    """`dimensions`; None where all of a vector is wanted. Raises InvalidInput."""
    dimensions = read_whole(fields, "dimensions", 1, 2**31 - 1)
    size, shorter = text.embedding_size, text.shorter_sizes
    if dimensions is None or dimensions == size:
        return None
    if dimensions in shorter:
        return dimensions
    if not shorter:
        instead = f"send {size} or leave it out" if size else "leave it out"
        raise InvalidInput("dimensions", f"is {dimensions}; this model's vectors cannot be cut short: {instead}")
    offer = ", ".join(map(str, shorter[:20])) if len(shorter) <= 20 else f"one from {shorter[0]} to {shorter[-1]}"
    raise InvalidInput("dimensions", f"is {dimensions}; this model's vectors can be cut to {offer}; send one of these")
