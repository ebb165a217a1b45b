"""Read images out of JSON: base64 or data URLs. Shared by all protocols; no URL is ever fetched."""

import binascii
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from app.protocols.json_body import describe_type
from app.protocols.model_inputs import explain_expected_input
from frameworks.errors import InvalidInput
from frameworks.types import ModelSpec

MAX_IMAGES = 256
"""Images of one request."""
MEDIA_TYPES = ("image/jpeg", "image/png", "image/webp")
"""Content types of the files that models read."""

_DATA_URL = re.compile(r"data:([^;,]{0,100})((?:;[^;,]{0,100}){0,8}),", re.ASCII | re.IGNORECASE)
_OTHER_URL = re.compile(r"[a-z][a-z0-9+.-]{0,30}:", re.ASCII | re.IGNORECASE)
_URL_CHARACTERS = str.maketrans("-_", "+/")
_MAX_SHOWN = 40

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
    start = 0
    # base64 has no colon, and a scheme is short: a long text is not searched.
    if ":" in text[:_MAX_SHOWN]:
        start = _end_of_data_url(text, field)
    try:
        content = binascii.a2b_base64(_payload(text[start:] if start else text), strict_mode=True)
    except ValueError as error:
        raise InvalidInput(field, f"expected base64, got other text ({error}); encode the bytes of the file") from None
    if not content:
        raise InvalidInput(field, "expected an image, got an empty text; encode the bytes of the file")
    return content


def _end_of_data_url(text: str, field: str) -> int:
    """Return the index behind the head of a data URL. Raises InvalidInput for every other URL."""
    head = _DATA_URL.match(text)
    if head is not None:
        if head[2].lower().endswith(";base64"):
            return head.end()
        raise InvalidInput(field, "expected a data URL in base64, got another one; send data:image/jpeg;base64,…")
    if _OTHER_URL.match(text):
        scheme = text.partition(":")[0].lower()
        raise InvalidInput(
            field,
            f"expected base64 or a data URL, got a URL with the scheme {scheme[:_MAX_SHOWN]}; the server fetches no "
            "URL: send the file itself, as data:image/jpeg;base64,…",
        )
    raise InvalidInput(field, "expected base64 or a data URL, got other text; encode the bytes of the file")


def _payload(text: str) -> str | bytes:
    """Return base64 in the usual alphabet, without line ends and with its padding."""
    if "\n" in text or "\r" in text:
        text = text.replace("\r", "").replace("\n", "")
    if "-" in text or "_" in text:
        text = text.translate(_URL_CHARACTERS)
    return text + "=" * (-len(text) % 4) if len(text) % 4 > 1 else text
