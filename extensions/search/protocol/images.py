"""Read images of queries and records: objects with the member `image`."""

from collections.abc import Mapping

from app.protocols.shared.fields.images import decode_image
from app.protocols.shared.json.body import Document, Node
from frameworks.core.errors import InvalidInput


def read_image_object(document: Document, node: Node, field: str) -> bytes:
    """Return the file in an object that has only `image`. Raises InvalidInput, UnknownField."""
    return read_image(document.members(node, ("image",), f"{field}."), field)


def read_image(members: Mapping[str, Node], field: str) -> bytes:
    """Return the file in the member `image`. Raises InvalidInput."""
    if "image" not in members:
        raise InvalidInput(f"{field}.image", "expected an image as base64 or data URL, got nothing")
    return decode_image(members["image"], f"{field}.image")
