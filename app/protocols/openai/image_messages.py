"""Images in `messages`, as vLLM has them on the routes that embed and classify: data URLs only."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from app.protocols.shared.bodies import Body
from app.protocols.shared.fields.generation import MAX_MESSAGES
from app.protocols.shared.fields.images import (
    check_num_images,
    check_reads_images,
    check_reads_texts,
    decode_image,
    decode_images,
)
from app.protocols.shared.fields.message_content import ImagePart, Part
from app.protocols.shared.fields.texts import rename_text
from frameworks.core.errors import InvalidInput
from frameworks.types import ModelSpec

_EXAMPLE: Any = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,…"}}


class ImageMessage(Body):
    """A message with images."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "user", "content": [_EXAMPLE]}]})

    role: str = Field("user", min_length=1, max_length=64, description="Accepted without effect.")
    content: Annotated[list[Part], Field(min_length=1, fail_fast=True)]


ImageMessages = Annotated[
    list[ImageMessage],
    Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        fail_fast=True,
        description="Images instead of input, for models that read images. Each image has a result of its own.",
    ),
]


def read_images(messages: Sequence[ImageMessage] | None, texts: Any, spec: ModelSpec) -> list[bytes] | None:
    """Return the files of all messages, in order; None for a request with texts. Raises InvalidInput.

    `texts`: the field `input`; a request has exactly one of both.
    """
    if messages is None:
        if texts is None:
            raise InvalidInput("input", "expected a text or a list of texts, got nothing; or send messages with images")
        check_reads_texts(spec, "input")
        return None
    if texts is not None:
        raise InvalidInput("messages", "expected either input or messages, got both; send one of them")
    check_reads_images(spec, "messages")
    files = []
    check_num_images(sum(len(message.content) for message in messages), "messages")
    for number, message in enumerate(messages):
        for index, part in enumerate(message.content):
            field = f"messages[{number}].content[{index}]"
            if isinstance(part, ImagePart):
                files.append(decode_image(part.image_url.url, f"{field}.image_url.url"))
            elif part.text:
                raise InvalidInput(field, "expected an image, got a text; send texts as input, in another request")
    check_num_images(len(files), "messages")
    return files


def read_input(given: Any, spec: ModelSpec) -> list[bytes]:
    """Return the files of `input` beside `"modality": "image"`, one or a list. Raises InvalidInput."""
    check_reads_images(spec, "modality")
    if given is None:
        raise InvalidInput("input", "expected an image or a list of images, got nothing; send data URLs")
    return decode_images(given if isinstance(given, list) else [given], "input", isinstance(given, list))


def rename_content(field: str) -> str:
    """Return the field of a text as the bodies with `input` name it. An image may be of `messages` or of `input`."""
    return rename_text(field, "input")
