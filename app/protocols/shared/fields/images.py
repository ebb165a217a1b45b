"""Read images out of JSON: base64 or data URLs. Shared by all protocols; no URL is ever fetched."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from app.protocols.shared.fields.model_inputs import explain_expected_input
from app.protocols.shared.json.body import describe_type
from frameworks.core.errors import InvalidInput
from frameworks.images.encoded import read_encoded
from frameworks.images.headers import SUFFIXES
from frameworks.types import ModelSpec

MAX_IMAGES = 256
"""Images of one request."""
MEDIA_TYPES = tuple(dict.fromkeys(SUFFIXES.values()))
"""Content types of the files that models read."""

Images = str | Annotated[list[str], Field(min_length=1, max_length=MAX_IMAGES, fail_fast=True)]
"""The schema of one image or several."""


def check_reads_images(spec: ModelSpec, field: str) -> None:
    """Raise InvalidInput for a model that reads no images."""
    if spec.image is None:
        raise InvalidInput(field, f"expected a model that reads images, got another; {explain_expected_input(spec)}")


def check_reads_texts(spec: ModelSpec, field: str) -> None:
    """Raise InvalidInput for a model that reads no texts, such as one that only reads images."""
    if spec.text is None:
        raise InvalidInput(field, f"expected a model that reads texts, got another; {explain_expected_input(spec)}")


def vectors_of_images(spec: ModelSpec) -> tuple[Literal["dense", "multi"], ...]:
    """Return the kind of the model's vectors of images, for a response that can hold each kind."""
    return ("multi",) if spec.text is not None and spec.text.vectors == "multi" else ("dense",)


def check_vector_size(dimensions: int | None, spec: ModelSpec) -> None:
    """Raise InvalidInput for another size than that of the model's vectors: those of images are never cut."""
    size = spec.embedding_size
    if dimensions is not None and dimensions != size:
        expected = f"{size}, the size of this model's vectors" if size else "nothing"
        raise InvalidInput("dimensions", f"expected {expected}, got {dimensions}; omit the field")


def check_num_images(count: int, field: str) -> None:
    """Raise InvalidInput for no image, and for more than MAX_IMAGES."""
    if not 1 <= count <= MAX_IMAGES:
        raise InvalidInput(field, f"expected 1 to {MAX_IMAGES} images, got {count}; split the request")


def decode_images(given: Sequence[Any], field: str, is_list: bool = True) -> list[bytes]:
    """Return the files of a list of base64 texts. `is_list` False: `field` holds the only one. Raises InvalidInput."""
    check_num_images(len(given), field)
    return [decode_image(each, f"{field}[{index}]" if is_list else field) for index, each in enumerate(given)]


def decode_image(text: Any, field: str) -> bytes:
    """Return the file of a data URL or of plain base64, also in the alphabet for URLs. Raises InvalidInput."""
    if not isinstance(text, str):
        raise InvalidInput(field, f"expected an image as base64 or data URL, got {describe_type(text)}")
    return read_encoded(text, field)
