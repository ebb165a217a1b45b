"""Images in the items of /v1/responses: of messages, and of the outputs of functions."""

from base64 import b64encode
from typing import Any

import pytest

from extensions.clients.responses.codec import INPUT_TOKENS_CODEC, RESPONSES_CODEC
from frameworks.core.errors import UnknownField
from frameworks.generation.types import Message, MessageCall, MessageImage
from tests.app.protocols.openai.decoding import assert_refused, decode, decode_error

CALL = {"type": "function_call", "call_id": "c1", "name": "camera", "arguments": "{}"}
CALLED = MessageCall("c1", "camera", "{}")


def text(content: str) -> dict[str, Any]:
    return {"type": "input_text", "text": content}


def image(file: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": "data:image/png;base64," + b64encode(file).decode(), **more}


def message(*content: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def output(*content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "c1", "output": list(content)}


def found(file: bytes, at: int, item: int, part: int, content: str = "content") -> MessageImage:
    return MessageImage(file, at, f"input[{item}].{content}[{part}].image_url")


def messages(*items: dict[str, Any], **fields: Any) -> tuple[Message, ...]:
    request = decode(RESPONSES_CODEC, model="caller", input=list(items), **fields).request
    read: tuple[Message, ...] = request.prompts[0].messages
    return read


def test_images_stay_between_their_texts() -> None:
    content = [image(b"1"), text("ab"), image(b"2"), image(b"3"), text("c"), image(b"4")]
    images = (found(b"1", 0, 1, 0), found(b"2", 2, 1, 2), found(b"3", 2, 1, 3), found(b"4", 3, 1, 5))
    assert messages(message(text("Hi")), message(*content)) == (
        Message("user", "Hi"), Message("user", "abc", images=images),
    )  # fmt: skip
    assert messages(message(image(b"1"))) == (Message("user", "", images=(found(b"1", 0, 0, 0),)),)


@pytest.mark.parametrize("role", ["developer", "system"])
def test_instructions_have_images(role: str) -> None:
    item = message(text("a"), image(b"1"), role=role)
    # The field names the item: instructions are none.
    assert messages(item, instructions="Be short.") == (
        Message("system", "Be short."), Message("system", "a", images=(found(b"1", 1, 0, 1),)),
    )  # fmt: skip


def test_earlier_response_has_images() -> None:
    reasoning = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    seen = message({"type": "output_text", "text": "I see"}, image(b"1"), role="assistant")
    images = (found(b"1", 5, 1, 1),)
    assert messages(reasoning, seen, CALL) == (
        Message("assistant", "I see", (CALLED,), reasoning="Hm.", images=images),
    )
    assert messages(seen, message(image(b"2"), role="assistant")) == (
        Message("assistant", "I see", images=(found(b"1", 5, 0, 1),)),
        Message("assistant", "", images=(found(b"2", 0, 1, 0),)),
    )


def test_output_of_function_has_images() -> None:
    _, answer, after = messages(CALL, output(image(b"1"), text("ab"), image(b"2")), message(image(b"3")))
    images = (found(b"1", 0, 1, 0, "output"), found(b"2", 2, 1, 2, "output"))
    assert answer == Message("tool", "ab", (), "c1", "camera", images=images)
    assert after == Message("user", "", images=(found(b"3", 0, 2, 0),))


def test_long_content_keeps_order() -> None:
    [read] = messages(message(*(part for i in range(200) for part in (text(str(i)), image(str(i).encode())))))
    assert read.content == "".join(map(str, range(200)))
    ends = [len("".join(map(str, range(i + 1)))) for i in range(200)]
    assert read.images == tuple(found(str(i).encode(), end, 0, 2 * i + 1) for i, end in enumerate(ends))
    [one] = messages(message(*map(text, "ab" * 50), image(b"1")))
    assert one == Message("user", "ab" * 50, images=(found(b"1", 100, 0, 100),))


@pytest.mark.parametrize(
    "more", [{"detail": "high"}, {"detail": None}, {"prompt_cache_breakpoint": {"mode": "explicit"}}, {"file_id": None}]
)
def test_labels_of_image_have_no_effect(more: dict[str, Any]) -> None:
    assert messages(message(image(b"1", **more))) == messages(message(image(b"1")))


def test_base64_alone_is_read() -> None:
    assert messages(message({"type": "input_image", "image_url": "aW1n"})) == messages(message(image(b"img")))


def test_texts_alone_have_no_images() -> None:
    assert messages(message(text("a"), text("b"))) == (Message("user", "ab"),)


def test_input_tokens_has_same_prompt() -> None:
    items = [message(text("a"), image(b"1"))]
    assert decode(INPUT_TOKENS_CODEC, model="caller", input=items).request.prompt.messages == messages(*items)


PARTS = [
    ({"image_url": "!"}, ".image_url", "expected base64, got other text"),
    ({"image_url": ""}, ".image_url", "expected the image of a file, got an empty text"),
    ({"image_url": "data:image/png;base64,"}, ".image_url", "expected the image of a file, got an empty text"),
    ({"image_url": "ftp://a.org/a.png"}, ".image_url", "the server fetches no URL"),
    ({"image_url": {"url": "aW1n"}}, ".image_url", "expected a string, got an object"),
    ({"image_url": None}, ".image_url", "expected a string, got null"),
    ({"file_id": "f"}, ".file_id", 'expected null, got "f"; no file is stored: send image_url'),
    ({"file_id": "f", "image_url": None}, ".file_id", "no file is stored: send image_url"),
    ({"file_id": None}, ".image_url", "expected a string, got nothing"),
    ({}, ".image_url", "expected a string, got nothing"),
    ({"type": "input_file", "file_id": "f"}, ".type", '"input_file"; the server reads text and images'),
    ({"type": "image_url", "image_url": {"url": "aW1n"}}, ".type", '"image_url"; the server reads text and images'),
    ({"type": "computer_screenshot", "image_url": "aW1n"}, ".type", '"computer_screenshot"'),
]


@pytest.mark.parametrize(("part", "field", "reason"), PARTS)
def test_other_part_is_refused_by_field(part: dict[str, Any], field: str, reason: str) -> None:
    wrong = {"type": "input_image", **part}
    for item, content in (
        (message(text("a"), image(b"1"), wrong), "content"),
        (message(text("a"), image(b"1"), wrong, role="assistant"), "content"),
        (output(text("a"), image(b"1"), wrong), "output"),
    ):
        given = [message(text("Hi")), CALL, item]
        assert_refused(RESPONSES_CODEC, f"input[2].{content}[2]{field}", reason, model="caller", input=given)


def test_unknown_field_of_image_is_refused() -> None:
    error = decode_error(RESPONSES_CODEC, model="caller", input=[message(image(b"1", url="aW1n"))])
    assert isinstance(error, UnknownField)
