"""The content of a message as parts of text, images and videos, for every protocol."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.protocols.shared.bodies import Body
from app.protocols.shared.fields.images import decode_image
from app.protocols.shared.fields.media import decode_file
from frameworks.generation.types import MessageImage

_EXAMPLE: Any = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,…"}}
_VIDEO_EXAMPLE: Any = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,…"}}


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


class VideoUrl(Body):
    """A file as a data URL, or at a host of `server.media_hosts`."""

    url: str


class VideoPart(Body):
    """A video."""

    model_config = ConfigDict(json_schema_extra={"examples": [_VIDEO_EXAMPLE]})

    type: Literal["video_url"]
    video_url: VideoUrl
    uuid: Any = Field(None, description="Accepted without effect.")


NO_IMAGES: tuple[MessageImage, ...] = ()
Part = Annotated[TextPart | ImagePart | VideoPart, Field(discriminator="type")]
"""A part of a message's content. Models that see read images, and some of them videos."""


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

    def add_url(self, url: str, field: str, is_video: bool = False) -> None:
        """Add a file by URL: one of http(s) is fetched later, others hold the file itself. Raises InvalidInput."""
        if url[:8].lower().startswith(("http://", "https://")):
            self._images.append(MessageImage(b"", self._length, field, url, is_video))
        elif is_video:
            self._images.append(MessageImage(decode_file(url, "video", field), self._length, field, is_video=True))
        else:
            self.add_image(url, field)


def read_content(
    content: str | Sequence[TextPart | ImagePart | VideoPart], field: str
) -> tuple[str, tuple[MessageImage, ...]]:
    """Return the joined texts of a content, and its images and videos. `field`: of the content. Raises InvalidInput."""
    if isinstance(content, str):
        return content, ()
    found = Content()
    for index, part in enumerate(content):
        if isinstance(part, TextPart):
            found.add_text(part.text)
        elif isinstance(part, VideoPart):
            found.add_url(part.video_url.url, f"{field}[{index}].video_url.url", is_video=True)
        else:
            found.add_url(part.image_url.url, f"{field}[{index}].image_url.url")
    return found.text, found.images
