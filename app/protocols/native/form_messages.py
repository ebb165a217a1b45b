"""Messages of a form: as those of JSON, with places for the files of the form."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from app.protocols.shared.bodies import Body
from app.protocols.shared.errors import InvalidJson
from app.protocols.shared.fields.generation import MAX_MESSAGES, MAX_ROLE_CHARACTERS, build_messages
from app.protocols.shared.fields.message_content import Content, ImagePart, TextPart, VideoPart
from app.protocols.shared.json.reading import read_document
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Conversation, Message, MessageImage

IMAGES = "images"
"""The field of the files."""


class FilePart(Body):
    """A place for the next file of the form."""

    type: Literal["image"]


_Part = Annotated[TextPart | ImagePart | VideoPart | FilePart, Field(discriminator="type")]


class FormMessage(Body):
    """One turn of a conversation."""

    role: str = Field(min_length=1, max_length=MAX_ROLE_CHARACTERS)
    content: str | Annotated[list[_Part], Field(fail_fast=True)]


def _build(messages: Any) -> Any:
    return build_messages(messages, FormMessage)


FormMessages = Annotated[
    list[FormMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True), BeforeValidator(_build)
]


def parse_messages(text: str) -> Any:
    """Return the value of a part that is JSON. Raises InvalidInput."""
    try:
        return read_document(text.encode(), lambda document: document.python(document.root))
    except InvalidJson as error:
        reason = str(error).partition(": ")[2]
        raise InvalidInput("messages", f"expected a list of messages as JSON, got other text: {reason}") from None
    except InvalidInput as error:
        raise InvalidInput("messages", error.reason) from None


def images_of(files: Sequence[bytes]) -> tuple[MessageImage, ...]:
    """Return the files as images before a text. Raises InvalidInput for an empty one."""
    names = [f"{IMAGES}[{index}]" for index in range(len(files))] if len(files) > 1 else [IMAGES]
    if b"" in files:
        raise InvalidInput(names[files.index(b"")], "expected a file, got an empty one")
    return tuple(MessageImage(data, 0, name) for name, data in zip(names, files, strict=False))


def to_conversation(messages: Sequence[FormMessage], images: Sequence[MessageImage]) -> Conversation:
    """Put the images into their places in order; without places, before the text of the last message of the user.

    Raises InvalidInput for another number of places than of images.
    """
    num_places = sum(_num_places(message) for message in messages)
    if num_places and num_places != len(images):
        raise InvalidInput(
            IMAGES,
            f'expected {num_places} files, one for each part {{"type": "image"}} of messages, got {len(images)}; send '
            "as many files as parts",
        )
    files = iter(images)
    turns = [_turn(message, index, files) for index, message in enumerate(messages)]
    if images and not num_places:
        last = next((i for i in reversed(range(len(turns))) if turns[i].role == "user"), None)
        if last is None:
            raise InvalidInput(
                IMAGES, 'expected a message with the role user for the files, got none; add parts {"type": "image"}'
            )
        turns[last] = replace(turns[last], images=(*images, *turns[last].images))
    return Conversation(tuple(turns))


def _num_places(message: FormMessage) -> int:
    return 0 if isinstance(message.content, str) else sum(isinstance(part, FilePart) for part in message.content)


def _turn(message: FormMessage, index: int, files: Iterator[MessageImage]) -> Message:
    """Return one message with its images. `files`: those that have no place yet. Raises InvalidInput."""
    if isinstance(message.content, str):
        return Message(message.role, message.content)
    found = Content()
    for place, part in enumerate(message.content):
        if isinstance(part, TextPart):
            found.add_text(part.text)
        elif isinstance(part, ImagePart):
            found.add_url(part.image_url.url, f"messages[{index}].content[{place}].image_url.url")
        elif isinstance(part, VideoPart):
            found.add_url(part.video_url.url, f"messages[{index}].content[{place}].video_url.url", is_video=True)
        else:
            file = next(files)
            found.add_file(file.data, file.field)
    return Message(message.role, found.text, images=found.images)
