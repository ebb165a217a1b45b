"""Image blocks of Anthropic's API, also in the results of tools."""

from base64 import b64encode
from typing import Any

import pytest

from extensions.clients.anthropic.messages import MESSAGES_CODEC
from frameworks.core.errors import InvalidInput, UnknownField
from frameworks.generation.types import Message, MessageImage
from frameworks.text.tokens import TokenizeRequest
from tests.app.protocols.openai.decoding import decode_error
from tests.extensions.clients.anthropic.messages import USER, ask, count, refusal

CALL = {"type": "tool_use", "id": "c1", "name": "camera", "input": {}}
CALLED = {"role": "assistant", "content": [CALL]}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def image(file: bytes, **more: Any) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(file).decode()}
    return {"type": "image", "source": source, **more}


def from_source(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source}


def result(*content: dict[str, Any], call: str = "c1") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": list(content)}


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def found(file: bytes, at: int, *path: int) -> MessageImage:
    """Return an image of a message, of a block, and of a part of the block's content."""
    message, *blocks = path
    return MessageImage(file, at, f"messages[{message}]{''.join(f'.content[{block}]' for block in blocks)}.source.data")


def turns(*messages: dict[str, Any]) -> tuple[Message, ...]:
    read: tuple[Message, ...] = ask(messages=list(messages)).request.prompts[0].messages
    return read


def test_images_stay_between_their_texts() -> None:
    content = [image(b"1"), text("ab"), image(b"2"), image(b"3"), text("c"), image(b"4")]
    images = (found(b"1", 0, 0, 0), found(b"2", 2, 0, 2), found(b"3", 2, 0, 3), found(b"4", 3, 0, 5))
    assert turns(user(*content)) == (Message("user", "abc", images=images),)
    assert turns(user(image(b"1"))) == (Message("user", "", images=(found(b"1", 0, 0, 0),)),)


def test_results_have_images() -> None:
    [*_, first, second, third, after] = turns(
        *USER,
        {"role": "assistant", "content": [CALL, {**CALL, "id": "c2"}, {**CALL, "id": "c3"}]},
        user(
            result(text("a"), image(b"1"), text("b"), image(b"2")),
            result(image(b"3"), call="c2"),
            result(text("c"), call="c3"),
            image(b"4"),
            text("Which?"),
        ),
    )
    images = (found(b"1", 1, 2, 0, 1), found(b"2", 2, 2, 0, 3))
    assert first == Message("tool", "ab", (), "c1", "camera", images=images)
    assert second == Message("tool", "", (), "c2", "camera", images=(found(b"3", 0, 2, 1, 0),))
    assert third == Message("tool", "c", (), "c3", "camera")
    assert after == Message("user", "Which?", images=(found(b"4", 0, 2, 3),))


def test_images_before_result_are_turn_of_user() -> None:
    [*_, before, answer, after] = turns(*USER, CALLED, user(image(b"1"), result(image(b"2")), image(b"3")))
    assert before == Message("user", "", images=(found(b"1", 0, 2, 0),))
    assert answer.images == (found(b"2", 0, 2, 1, 0),)
    assert after == Message("user", "", images=(found(b"3", 0, 2, 2),))


def test_neighbours_of_one_role_keep_their_fields() -> None:
    [joined] = turns(
        {"role": "user", "content": "ab"},
        user(text("c"), image(b"1")),
        user(image(b"2"), text("d")),
        user(text("e"), image(b"3")),
        {"role": "user", "content": "f"},
    )
    # An empty line is between two texts.
    assert joined.content == "ab\n\ncd\n\nef"
    assert joined.images == (found(b"1", 5, 1, 1), found(b"2", 5, 2, 0), found(b"3", 9, 3, 1))


def test_long_content_keeps_order() -> None:
    [message] = turns(user(*(part for i in range(200) for part in (text(str(i)), image(str(i).encode())))))
    assert message.content == "".join(map(str, range(200)))
    ends = [len("".join(map(str, range(i + 1)))) for i in range(200)]
    assert message.images == tuple(found(str(i).encode(), end, 0, 2 * i + 1) for i, end in enumerate(ends))


@pytest.mark.parametrize(
    "block",
    [
        image(b"img", cache_control={"type": "ephemeral"}),
        image(b"img", cache_control=None),
        from_source(type="base64", data="aW1n"),
        from_source(type="base64", media_type="text/plain", data="aW1n"),
        from_source(type="base64", data="data:image/jpeg;base64,aW1n"),
        from_source(type="base64", data="aW\n1n"),
    ],
)
def test_labels_of_image_have_no_effect(block: dict[str, Any]) -> None:
    assert turns(user(block)) == turns(user(image(b"img")))


def test_texts_alone_have_no_images() -> None:
    [message] = turns(user(text("a"), text("b")))
    assert message == Message("user", "ab")


def test_count_has_same_prompt_as_message() -> None:
    messages = [user(text("a"), image(b"1"))]
    assert count(messages=messages).request == TokenizeRequest(ask(messages=messages).request.prompts[0])


SOURCES = [
    ({"type": "base64", "data": "!"}, ".data", "expected base64, got other text"),
    ({"type": "base64", "data": ""}, ".data", "expected the image of a file, got an empty text"),
    ({"type": "base64", "data": "https://a.org/a.png"}, ".data", "the server fetches no URL"),
    ({"type": "base64", "data": 1}, ".data", "expected a string, got 1"),
    ({"type": "base64", "media_type": "image/png"}, ".data", "expected a string, got nothing"),
    ({"type": "base64", "media_type": None, "data": "aW1n"}, ".media_type", "got null"),
    ({"type": "url", "url": "ftp://a.org/a.png"}, ".url", "the server fetches no URL"),
    ({"type": "file", "file_id": "f"}, ".type", 'expected "base64" or "url", got "file"'),
    ({"data": "aW1n"}, ".type", 'expected "base64" or "url", got nothing'),
    (None, "", "expected an object, got null"),
    ("aW1n", "", "expected an object"),
]


@pytest.mark.parametrize(("source", "field", "reason"), SOURCES)
def test_other_source_is_refused_by_field(source: Any, field: str, reason: str) -> None:
    wrong = {"type": "image", "source": source}
    for message, within in (
        (user(text("a"), image(b"1"), wrong), "messages[2].content[2]"),
        (user(text("a"), result(image(b"1"), wrong)), "messages[2].content[1].content[1]"),
    ):
        error = decode_error(MESSAGES_CODEC, model="caller", max_tokens=9, messages=[*USER, CALLED, message])
        assert isinstance(error, InvalidInput)
        assert error.field == f"{within}.source{field}"
        assert reason in error.message
        assert refusal(messages=[*USER, CALLED, message])["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("messages", "field", "reason"),
    [
        ([user({"type": "image"})], "messages[0].content[0].source", "got nothing"),
        ([user({"type": "image_url", "image_url": {"url": "YQ"}})], "messages[0].content[0].type", '"image_url"'),
        ([*USER, {"role": "assistant", "content": [image(b"1")]}], "messages[1].content[0].type", 'got "image"'),
        ([*USER, {"role": "system", "content": [image(b"1")]}], "messages[1].content[0].type", 'got "image"'),
        ([user(result({"type": "image_url"}))], "messages[0].content[0].content[0].type", 'expected "text" or "image"'),
        ([user(result(result()))], "messages[0].content[0].content[0].type", 'got "tool_result"'),
    ],
)
def test_other_block_is_refused_by_field(messages: list[Any], field: str, reason: str) -> None:
    error = decode_error(MESSAGES_CODEC, model="caller", max_tokens=9, messages=messages)
    assert isinstance(error, InvalidInput)
    assert error.field == field
    assert reason in error.message


def test_unknown_field_of_image_is_refused() -> None:
    for block in (image(b"1", title="a"), from_source(type="base64", data="YQ", url="https://a.org")):
        error = decode_error(MESSAGES_CODEC, model="caller", max_tokens=9, messages=[user(block)])
        assert isinstance(error, UnknownField)


def test_images_of_system_are_refused() -> None:
    body = refusal(system=[text("a"), image(b"1")])
    assert body["error"]["message"].startswith('system[1].type: expected "text", got "image"')
