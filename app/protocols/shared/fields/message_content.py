"""The content of a message as parts of text and images, for every protocol: data URLs and base64 only."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.protocols.shared.bodies import Body
from app.protocols.shared.fields.images import decode_image
from frameworks.generation.types import MessageImage

_EXAMPLE: Any = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,…"}}


class TextPart(Body):
    """A part of a message's content."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"type": "text", "text": "…"}]})

    type: Literal["text"]
    text: str


class ImageUrl(Body):
    """A file as a data URL, or at a host of `server.media_hosts`."""

    url: str
    detail: Any = Field(None, description="Accepted without effect.")


class ImagePart(Body):
    """An image."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    type: Literal["image_url"]
    image_url: ImageUrl
    uuid: Any = Field(None, description="Accepted without effect.")


NO_IMAGES: tuple[MessageImage, ...] = ()
Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]
"""A part of a message's content. Models that see read images."""


class Content:
    """The content of one message, as its parts are read."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._images: list[MessageImage] = []
        self._length = 0

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def images(self) -> tuple[MessageImage, ...]:
        return tuple(self._images)

    def add_text(self, text: str) -> None:
        self._texts.append(text)
        self._length += len(text)

    def add_image(self, encoded: Any, field: str) -> None:
        """Add the file of a data URL or of base64. Raises InvalidInput."""
        self.add_file(decode_image(encoded, field), field)

    def add_file(self, data: bytes, field: str) -> None:
        """Add an image file."""
        self._images.append(MessageImage(data, self._length, field))

    def add_url(self, url: str, field: str) -> None:
        """Add an image by URL: one of http(s) is fetched later, others are as of `add_image`. Raises InvalidInput."""
        if url[:8].lower().startswith(("http://", "https://")):
            self._images.append(MessageImage(b"", self._length, field, url))
        else:
            self.add_image(url, field)


def read_content(content: str | Sequence[TextPart | ImagePart], field: str) -> tuple[str, tuple[MessageImage, ...]]:
    """Return the joined texts of a content, and its images. `field`: of the content. Raises InvalidInput."""
    if isinstance(content, str):
        return content, ()
    found = Content()
    for index, part in enumerate(content):
        if isinstance(part, TextPart):
            found.add_text(part.text)
        else:
            found.add_url(part.image_url.url, f"{field}[{index}].image_url.url")
    return found.text, found.images
