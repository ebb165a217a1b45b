"""Read images from JSON: base64, or data URLs of these types. No other URL is ever fetched."""

import base64
import binascii
import re

from app.protocols.json_body import Document, Node, describe_type
from frameworks.errors import InvalidInput

_DATA_URL = re.compile(r"data:image/(?:jpeg|png|webp);base64,")


def read_image(document: Document, node: Node, field: str) -> bytes:
    """Return the file in the member `image` of an object. Raises InvalidInput, UnknownField."""
    known = ("image",) if field.startswith("query") else ("id", "vector", "text", "image", "metadata")
    members = document.members(node, known, f"{field}.")
    text = members.get("image")
    name = f"{field}.image"
    if not isinstance(text, str):
        raise InvalidInput(name, f"expected a data URL or base64, got {describe_type(text)}")
    start = _DATA_URL.match(text)
    if start is None and text[:5].lower() in ("data:", "http:", "https"):
        raise InvalidInput(name, "expected data:image/jpeg, png or webp with ;base64, got another URL; send the file")
    try:
        return base64.b64decode(text[start.end() :] if start else text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(name, "expected base64, got other characters; encode the file") from None
