"""Fields of texts and of their embeddings, shared by all protocols."""

from typing import Annotated

from pydantic import Field

from app.protocols.bodies import MAX_INT32
from frameworks.errors import InvalidInput
from frameworks.types import TextSpec

MAX_TEXTS = 100_000
"""Texts in one request to an embed or classify model."""

_MAX_OFFERED_SIZES = 20

Texts = str | Annotated[list[str], Field(max_length=MAX_TEXTS, fail_fast=True)]
Truncate = Annotated[bool | None, Field(description="Truncate texts at the model's limit. Default: true.")]
Dimensions = Annotated[
    int | None,
    Field(
        ge=1,
        le=MAX_INT32,
        description="Truncate the vectors to this size and normalise them, where the model supports it.",
    ),
]


def to_texts(texts: str | list[str]) -> list[str]:
    """Return a list also for a single text."""
    return [texts] if isinstance(texts, str) else texts


def check_dimensions(dimensions: int | None, text: TextSpec) -> int | None:
    """Return the size to truncate vectors to, None for whole vectors. Raises InvalidInput for an unsupported size."""
    size, shorter = text.embedding_size, text.shorter_sizes
    if dimensions is None or dimensions == size:
        return None
    if dimensions in shorter:
        return dimensions
    if not shorter:
        expected = f"{size}, the size of this model's vectors" if size else "nothing"
        raise InvalidInput("dimensions", f"expected {expected}, got {dimensions}; omit the field")
    if len(shorter) <= _MAX_OFFERED_SIZES:
        raise InvalidInput("dimensions", f"expected one of {', '.join(map(str, (*shorter, size)))}, got {dimensions}")
    raise InvalidInput("dimensions", f"expected a size from {shorter[0]} to {shorter[-1]}, got {dimensions}")
