"""`messages` of vLLM on the routes that embed and classify: images, or a conversation to embed as a whole."""

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
from app.protocols.shared.fields.message_content import ImagePart, Part, TextPart, read_content
from app.protocols.shared.fields.texts import rename_text
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Conversation, Message, PromptEnding
from frameworks.types import ModelSpec

_ONLY_IMAGES = "expected an image, got a {}; send texts as input, in another request"
_EXAMPLE: Any = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,…"}}


class ImageMessage(Body):
    """A message with images. A model that embeds conversations reads texts and roles, too."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "user", "content": [_EXAMPLE]}]})

    role: str = Field("user", min_length=1, max_length=64, description="Of a conversation; else without effect.")
    content: str | Annotated[list[Part], Field(min_length=1, fail_fast=True)]


ImageMessages = Annotated[
    list[ImageMessage],
    Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        fail_fast=True,
        description="Images instead of input, for models that read images. Each image has a result of its own. A "
        "model that embeds conversations returns one vector for all messages.",
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
    contents: list[list[Part]] = []
    for number, message in enumerate(messages):
        if isinstance(message.content, str):
            raise InvalidInput(f"messages[{number}].content", _ONLY_IMAGES.format("text"))
        contents.append(message.content)
    check_num_images(sum(map(len, contents)), "messages")
    files = []
    for number, content in enumerate(contents):
        for index, part in enumerate(content):
            field = f"messages[{number}].content[{index}]"
            if isinstance(part, ImagePart):
                files.append(decode_image(part.image_url.url, f"{field}.image_url.url"))
            elif not isinstance(part, TextPart) or part.text:
                raise InvalidInput(field, _ONLY_IMAGES.format("text" if isinstance(part, TextPart) else "video"))
    check_num_images(len(files), "messages")
    return files


def check_no_ending(begins_response: bool | None, continues_last: bool | None) -> None:
    """Raise InvalidInput for the end of a conversation in a request without one."""
    for field, given in (("add_generation_prompt", begins_response), ("continue_final_message", continues_last)):
        if given:
            raise InvalidInput(
                field, "expected messages for a model that embeds conversations, got others; omit the field"
            )


def read_conversation(messages: Sequence[ImageMessage]) -> Conversation:
    """Return the conversation of a model that embeds it as a whole. Raises InvalidInput."""
    turns = []
    for number, message in enumerate(messages):
        text, images = read_content(message.content, f"messages[{number}].content")
        turns.append(Message(message.role, text, images=images))
    return Conversation(tuple(turns))


def ending_of(
    begins_response: bool | None, continues_last: bool | None, messages: Sequence[ImageMessage]
) -> PromptEnding | None:
    """Return where the prompt of a conversation ends; None: as the model's files say. Raises InvalidInput.

    The last message, which continues, may be empty: vLLM's examples begin the model's turn by it.
    """
    if not continues_last:
        return None if begins_response is None else "response" if begins_response else "messages"
    if begins_response:
        raise InvalidInput(
            "add_generation_prompt", "expected false with continue_final_message, got true; send one of them"
        )
    if messages[-1].role != "assistant":
        raise InvalidInput(
            "messages",
            f'expected a last message of the role "assistant", got "{messages[-1].role}"; omit continue_final_message',
        )
    return "last_message"


def read_input(given: Any, spec: ModelSpec) -> list[bytes]:
    """Return the files of `input` beside `"modality": "image"`, one or a list. Raises InvalidInput."""
    check_reads_images(spec, "modality")
    if given is None:
        raise InvalidInput("input", "expected an image or a list of images, got nothing; send data URLs")
    return decode_images(given if isinstance(given, list) else [given], "input", isinstance(given, list))


def rename_content(field: str) -> str:
    """Return the field of a text as the bodies with `input` name it. An image may be of `messages` or of `input`."""
    return rename_text(field, "input")
