"""Images of Ollama's messages, and of /api/generate: they precede the text."""

from base64 import b64encode
from typing import Any

import pytest

from extensions.clients.ollama.texts import CHAT_CODEC, GENERATE_CODEC
from frameworks.generation.types import Conversation, Message, MessageImage
from tests.app.protocols.openai.decoding import assert_refused, decode

MODEL = "caller"


def file(content: bytes) -> str:
    return b64encode(content).decode()


def call(name: str) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {}}}


def conversation(codec: Any, **fields: Any) -> Conversation:
    (prompt,) = decode(codec, model=MODEL, **fields).request.prompts
    assert isinstance(prompt, Conversation)
    return prompt


def turns(*messages: dict[str, Any]) -> tuple[Message, ...]:
    return conversation(CHAT_CODEC, messages=list(messages)).messages


def answered(**fields: Any) -> tuple[Message, ...]:
    return conversation(GENERATE_CODEC, **{"prompt": "What is it?", **fields}).messages


def found(content: bytes, field: str) -> MessageImage:
    return MessageImage(content, 0, field)


def test_images_of_message_precede_its_text() -> None:
    first, second = turns(
        {"role": "user", "content": "Hi"}, {"role": "user", "content": "ab", "images": [file(b"1"), file(b"2")]}
    )
    assert first == Message("user", "Hi")
    images = (found(b"1", "messages[1].images[0]"), found(b"2", "messages[1].images[1]"))
    assert second == Message("user", "ab", images=images)


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_message_may_be_images_alone(role: str, content: dict[str, Any]) -> None:
    [message] = turns({"role": role, "images": [file(b"1")], **content})
    assert message == Message(role, "", images=(found(b"1", "messages[0].images[0]"),))


def test_result_has_images() -> None:
    response, second, first = turns(
        {"role": "assistant", "tool_calls": [call("first"), call("second")], "images": [file(b"1")]},
        {"role": "tool", "content": "2", "tool_name": "second", "images": [file(b"2")]},
        {"role": "tool", "content": "1", "images": [file(b"3"), file(b"4")]},
    )
    assert response.images == (found(b"1", "messages[0].images[0]"),)
    assert (second.name, second.tool_call_id) == ("second", response.tool_calls[1].id)
    assert second.images == (found(b"2", "messages[1].images[0]"),)
    assert (first.name, first.tool_call_id) == ("first", response.tool_calls[0].id)
    assert first.images == (found(b"3", "messages[2].images[0]"), found(b"4", "messages[2].images[1]"))


def test_images_of_prompt_are_those_of_user() -> None:
    images = (found(b"1", "images[0]"), found(b"2", "images[1]"))
    user = Message("user", "What is it?", images=images)
    files = [file(b"1"), file(b"2")]
    assert answered(images=files) == (user,)
    assert answered(images=files, system="Be short.") == (Message("system", "Be short."), user)


@pytest.mark.parametrize("images", [None, []])
def test_no_images_change_nothing(images: Any) -> None:
    assert turns({"role": "user", "content": "a", "images": images}) == (Message("user", "a"),)
    assert answered(images=images) == (Message("user", "What is it?"),)
    raw = decode(GENERATE_CODEC, model=MODEL, prompt="a", raw=True, images=images).request
    assert raw == decode(GENERATE_CODEC, model=MODEL, prompt="a", raw=True).request


def test_data_url_is_read_as_base64() -> None:
    given = [file(b"1"), "data:image/png;base64," + file(b"1"), file(b"1").rstrip("=")]
    [message] = turns({"role": "user", "content": "a", "images": given})
    assert [each.data for each in message.images] == [b"1"] * 3


WRONG = [
    ("!", "expected base64, got other text"),
    ("", "expected the image of a file, got an empty text"),
    ("https://a.org/a.png", "the server fetches no URL"),
    ("/home/user/a.png", "expected base64"),
    (1, "expected a string, got 1"),
    (None, "expected a string, got null"),
    ({"url": "YQ"}, "expected a string, got an object"),
]


@pytest.mark.parametrize(("image", "reason"), WRONG)
def test_other_image_is_refused_by_field(image: Any, reason: str) -> None:
    images = [file(b"1"), image]
    assert_refused(GENERATE_CODEC, "images[1]", reason, model=MODEL, prompt="a", images=images)
    for role in ("user", "tool"):
        messages = [{"role": "user", "content": "a"}, {"role": role, "content": "a", "images": images}]
        assert_refused(CHAT_CODEC, "messages[1].images[1]", reason, model=MODEL, messages=messages)


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        ("YQ", 'expected a list of at most 256 strings, got "YQ"'),
        (["YQ"] * 257, "expected a list of at most 256 strings, got 257 items"),
    ],
)
def test_other_list_is_refused(images: Any, reason: str) -> None:
    assert_refused(GENERATE_CODEC, "images", reason, model=MODEL, prompt="a", images=images)
    messages = [{"role": "user", "content": "a", "images": images}]
    assert_refused(CHAT_CODEC, "messages[0].images", reason, model=MODEL, messages=messages)


@pytest.mark.parametrize(
    "fields", [{"model": MODEL, "raw": True}, {"model": "no-template"}, {"model": "coder", "suffix": "b"}]
)
def test_prompt_without_template_refuses_images(fields: dict[str, Any]) -> None:
    assert_refused(GENERATE_CODEC, "images", "omit the field", prompt="a", images=[file(b"1")], **fields)


def test_field_of_image_is_named_as_sent() -> None:
    for field in ("images[0]", "messages[1].images[0]"):
        assert GENERATE_CODEC.rename(field) == CHAT_CODEC.rename(field) == field
