"""Images in the messages of /v1/chat/completions and /v1/tokenize."""

from base64 import b64encode
from typing import Any

import pytest

from app.protocols.openai.chat import CHAT_CODEC
from app.protocols.openai.tokens import TOKENIZE_CODEC
from frameworks.generation.types import Conversation, Message, MessageCall, MessageImage
from tests.app.protocols.openai.decoding import assert_refused, decode

CALL = {"id": "c1", "type": "function", "function": {"name": "camera", "arguments": "{}"}}
CALLED = MessageCall("c1", "camera", "{}")


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def image(file: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + b64encode(file).decode()}}


def found(file: bytes, at: int, message: int, part: int) -> MessageImage:
    return MessageImage(file, at, f"messages[{message}].content[{part}].image_url.url")


def conversation(*messages: dict[str, Any], **fields: Any) -> Conversation:
    (prompt,) = decode(CHAT_CODEC, model="caller", messages=list(messages), **fields).request.prompts
    assert isinstance(prompt, Conversation)
    return prompt


def turns(*messages: dict[str, Any]) -> tuple[Message, ...]:
    return conversation(*messages).messages


def refused(field: str, *words: str, messages: list[dict[str, Any]]) -> None:
    assert_refused(CHAT_CODEC, field, *words, model="caller", messages=messages)


def test_images_stay_between_their_texts() -> None:
    content = [image(b"1"), text("ab"), image(b"2"), image(b"3"), text("c"), image(b"4")]
    assert turns({"role": "user", "content": "Hi"}, {"role": "user", "content": content}) == (
        Message("user", "Hi"),
        Message("user", "abc", images=(found(b"1", 0, 1, 0), found(b"2", 2, 1, 2), found(b"3", 2, 1, 3),
                                       found(b"4", 3, 1, 5))),
    )  # fmt: skip


def test_every_role_may_have_images() -> None:
    roles = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
    sent = [{"role": role, "content": [text("a"), image(b"1")]} for role in roles]
    assert turns(*sent) == tuple(
        Message(role, "a", images=(found(b"1", 1, i, 1),)) for i, role in enumerate(roles.values())
    )


def test_result_and_response_have_images() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [text("I look."), image(b"1")], "tool_calls": [CALL], "reasoning": "Hm."},
        {"role": "tool", "content": [image(b"2"), text("seen")], "tool_call_id": "c1"},
    ]
    assert turns(*messages)[1:] == (
        Message("assistant", "I look.", (CALLED,), reasoning="Hm.", images=(found(b"1", 7, 1, 1),)),
        Message("tool", "seen", (), "c1", "camera", images=(found(b"2", 0, 2, 0),)),
    )


def test_other_fields_of_message_change_no_image() -> None:
    plain = {"role": "user", "content": [text("a"), image(b"1")]}
    assert turns(plain | {"name": None}) == turns(plain)
    [named] = turns(plain | {"name": "Ann"})
    assert (named.name, named.images) == ("Ann", turns(plain)[0].images)


def test_long_conversation_keeps_images_of_each_message() -> None:
    messages = [
        {"role": "user", "content": [text(str(i)), image(str(i).encode())]} | ({"name": "Ann"} if i % 3 else {})
        for i in range(100)
    ]
    for i, message in enumerate(turns(*messages)):
        assert message.images == (found(str(i).encode(), len(str(i)), i, 1),)


def test_last_message_with_image_is_continued() -> None:
    last = {"role": "assistant", "content": [image(b"1"), text("I see")]}
    prompt = conversation(
        {"role": "user", "content": "Hi"}, last, continue_final_message=True, add_generation_prompt=False
    )
    assert prompt.ending == "last_message"
    assert prompt.messages[-1] == Message("assistant", "I see", images=(found(b"1", 0, 1, 0),))


def test_texts_alone_are_unchanged() -> None:
    content = [text("a"), text("b")]
    assert turns({"role": "user", "content": content}) == turns({"role": "user", "content": "ab"})
    assert conversation({"role": "user", "content": content}).images == ()


def test_tokenize_has_same_prompt_as_chat() -> None:
    messages = [{"role": "user", "content": [text("a"), image(b"1")]}]
    prompt = decode(TOKENIZE_CODEC, model="caller", messages=messages).request.prompt
    assert prompt == conversation(*messages)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("", "got an empty text"),
        ("data:image/png;base64,", "got an empty text"),
        ("x", "expected base64"),
        ("data:image/png;base64,YQ!", "expected base64"),
        ("ftp://a.org/a.png", "the server fetches no URL"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"tool_call_id": "c1"}], ids=["plain", "read alone"])
def test_other_url_is_refused_by_field(url: str, word: str, more: dict[str, Any]) -> None:
    content = [image(b"1"), {"type": "image_url", "image_url": {"url": url}}]
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": content} | more]
    refused("messages[1].content[1].image_url.url", word, messages=messages)


@pytest.mark.parametrize(
    ("part", "field", "word"),
    [
        ({"type": "image_url", "image_url": "YQ"}, "image_url", "expected an object"),
        ({"type": "image_url", "image_url": {"file_id": "f"}}, "image_url.url", "nothing"),
        (
            {"type": "input_image", "image_url": "YQ"},
            "type",
            'expected "image_url", "text" or "video_url", got "input_image"',
        ),
        ({"type": "input_audio", "input_audio": {"data": "YQ", "format": "wav"}}, "type", '"input_audio"'),
        ({"type": "file", "file": {"file_id": "f"}}, "type", '"file"'),
        ({"image_url": {"url": "YQ"}}, "type", "nothing"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"tool_calls": [CALL]}, {"name": "a"}], ids=["plain", "calling", "named"])
def test_other_part_is_refused_by_field(part: dict[str, Any], field: str, word: str, more: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [text("a"), part]} | more]
    refused(f"messages[1].content[1].{field}", word, messages=messages)


def test_model_without_template_refuses_messages() -> None:
    messages = [{"role": "user", "content": [image(b"1")]}]
    assert_refused(CHAT_CODEC, "messages", "chat template", model="no-template", messages=messages)
