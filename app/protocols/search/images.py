"""Read images of queries and records: objects with the member `image`."""

from collections.abc import Mapping

from app.protocols.image_fields import decode_image
from app.protocols.json_body import Document, Node
from frameworks.errors import InvalidInput


def read_image_object(document: Document, node: Node, field: str) -> bytes:
    """Return the file in an object that has only `image`. Raises InvalidInput, UnknownField."""
    return read_image(document.members(node, ("image",), f"{field}."), field)


def read_image(members: Mapping[str, Node], field: str) -> bytes:
    """Return the file in the member `image`. Raises InvalidInput."""
    if "image" not in members:
        raise InvalidInput(f"{field}.image", "expected an image as base64 or data URL, got nothing")
    return decode_image(members["image"], f"{field}.image")
