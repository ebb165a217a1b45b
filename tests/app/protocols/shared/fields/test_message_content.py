"""Contents of messages with texts and images: their order, their offsets and the fields of errors."""

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.shared.bodies import Body, read_body
from app.protocols.shared.fields.generation import Messages, to_conversation
from app.protocols.shared.fields.message_content import (
    Content,
    ImagePart,
    ImageUrl,
    TextPart,
    VideoPart,
    read_content,
)
from frameworks.core.errors import InvalidInput, RequestError, UnknownField
from frameworks.generation.types import Conversation, Message, MessageImage

HEAD = "data:image/png;base64,"


class Talk(Body):
    """A body with messages."""

    messages: Messages


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def image(file: bytes, head: str = HEAD, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": head + b64encode(file).decode()}, **more}


def conversation(*contents: Any) -> Conversation:
    messages = [{"role": "user", "content": content} for content in contents]
    return to_conversation(read_body(Talk, {"messages": messages}).messages)


def refusal(*contents: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        conversation(*contents)
    return caught.value


def found(content: Any) -> tuple[str, list[tuple[bytes, int]]]:
    """Return the text of a content, and the file and the offset of each of its images."""
    [message] = conversation(content).messages
    return message.content, [(each.data, each.at) for each in message.images]


@pytest.mark.parametrize(
    ("parts", "content", "images"),
    [
        ([image(b"1")], "", [(b"1", 0)]),
        ([image(b"1"), text("after")], "after", [(b"1", 0)]),
        ([text("before"), image(b"1")], "before", [(b"1", 6)]),
        ([text("ab"), image(b"1"), text("c")], "abc", [(b"1", 2)]),
        ([image(b"1"), image(b"2"), text("a"), image(b"3"), image(b"4")], "a", [(b"1", 0), (b"2", 0), (b"3", 1),
         (b"4", 1)]),
        ([text("a"), text(""), image(b"1"), text(""), image(b"1"), text("b")], "ab", [(b"1", 1), (b"1", 1)]),
        ([text("é你🚂"), image(b"1"), text("b")], "é你🚂b", [(b"1", 3)]),
        ([text("a"), text("b")], "ab", []),
        ([], "", []),
        ("a", "a", []),
        ("", "", []),
    ],
)  # fmt: skip
def test_images_stay_between_their_texts(parts: Any, content: str, images: list[tuple[bytes, int]]) -> None:
    assert found(parts) == (content, images)


@given(st.lists(st.text(max_size=4) | st.binary(min_size=1, max_size=4), max_size=80))
def test_content_has_all_texts_and_files_in_order(given: list[str | bytes]) -> None:
    content, images = found([text(each) if isinstance(each, str) else image(each) for each in given])
    cut = [content[start:end] for start, end in zip([0, *_ends(images)], [*_ends(images), len(content)], strict=True)]
    expected: list[str | bytes] = [""]
    for each in given:
        if isinstance(each, str):
            expected[-1] = f"{expected[-1]!s}{each}"
        else:
            expected += [each, ""]
    assert cut == expected[::2]
    assert [file for file, _ in images] == expected[1::2]


def _ends(images: list[tuple[bytes, int]]) -> list[int]:
    return [at for _, at in images]


def test_field_names_part_of_each_image() -> None:
    fields = [
        each.field for each in conversation("a", [text("b"), image(b"1"), image(b"2")], [image(b"3"), text("c")]).images
    ]
    assert fields == [
        "messages[1].content[1].image_url.url",
        "messages[1].content[2].image_url.url",
        "messages[2].content[0].image_url.url",
    ]


def test_images_of_conversation_are_in_order() -> None:
    talk = conversation([image(b"1"), image(b"2")], "a", [text("b"), image(b"3")])
    assert [each.data for each in talk.images] == [b"1", b"2", b"3"]
    assert [len(each.images) for each in talk.messages] == [2, 0, 1]
    assert conversation("a", [text("b")]).images == ()


@pytest.mark.parametrize("head", ["", "data:;base64,", "data:image/jpeg;base64,", "data:application/pdf;base64,"])
def test_head_of_data_url_has_no_effect(head: str) -> None:
    assert found([image(b"file", head)]) == ("", [(b"file", 0)])


def test_labels_of_image_are_accepted_without_effect() -> None:
    part = image(b"1", uuid="a")
    part["image_url"]["detail"] = "high"
    assert conversation([part]) == conversation([image(b"1")])
    assert conversation([image(b"1", uuid=None)]) == conversation([image(b"1")])


def test_texts_alone_have_no_images() -> None:
    assert conversation("a", [text("b"), text("c")]) == Conversation((Message("user", "a"), Message("user", "bc")))
    assert read_content("a", "content") == ("a", ())
    assert read_content([], "content") == ("", ())


def test_content_of_one_message() -> None:
    content = Content()
    assert (content.text, content.images) == ("", ())
    content.add_text("ab")
    content.add_image("YQ", "first")
    content.add_text("c")
    content.add_image("Yg", "second")
    assert content.text == "abc"
    assert content.images == (MessageImage(b"a", 2, "first"), MessageImage(b"b", 3, "second"))
    with pytest.raises(InvalidInput, match=r"^third: expected an image as base64 or data URL, got null"):
        content.add_image(None, "third")
    assert len(content.images) == 2


def test_field_of_content_is_within_that_of_image() -> None:
    part = read_body(ImagePart, {"type": "image_url", "image_url": {"url": "YQ"}})
    _, [image] = read_content([TextPart(type="text", text="a"), part], "turns[3].content")
    assert image == MessageImage(b"a", 1, "turns[3].content[1].image_url.url")


URLS = [
    ("", "expected the image of a file, got an empty text"),
    (HEAD, "expected the image of a file, got an empty text"),
    ("!", "expected base64, got other text"),
    ("abcde", "expected base64, got other text"),
    (HEAD + "a b", "expected base64, got other text"),
    ("data:image/png,abc", "expected a data URL in base64, got another one"),
    ("ftp://a.org/a.png", "got a URL with the scheme ftp; the server fetches no URL"),
    ("file:///etc/passwd", "got a URL with the scheme file; the server fetches no URL"),
]


@pytest.mark.parametrize(("url", "reason"), URLS)
def test_other_url_is_refused_by_field(url: str, reason: str) -> None:
    wrong = {"type": "image_url", "image_url": {"url": url}}
    error = refusal("a", [text("b"), image(b"1"), wrong])
    assert isinstance(error, InvalidInput)
    assert error.field == "messages[1].content[2].image_url.url"
    assert reason in error.message


@pytest.mark.parametrize(
    ("part", "field", "reason"),
    [
        ({"type": "image_url"}, ".image_url", "got nothing"),
        ({"type": "image_url", "image_url": None}, ".image_url", "got null"),
        ({"type": "image_url", "image_url": "YQ"}, ".image_url", 'expected an object, got "YQ"'),
        ({"type": "image_url", "image_url": {}}, ".image_url.url", "expected a string, got nothing"),
        ({"type": "image_url", "image_url": {"url": 1}}, ".image_url.url", "expected a string, got 1"),
        ({"type": "image_url", "image_url": {"file_id": "f"}}, ".image_url.url", "expected a string, got nothing"),
        ({"type": "image"}, ".type", 'expected "image_url", "text" or "video_url", got "image"'),
        ({"type": "input_image", "image_url": "YQ"}, ".type", '"text" or "video_url", got "input_image"'),
        ({"type": "input_audio", "input_audio": {"data": "YQ"}}, ".type", 'got "input_audio"'),
        ({"type": "file", "file": {"file_id": "f"}}, ".type", 'got "file"'),
        ({"image_url": {"url": "YQ"}}, ".type", "got nothing"),
        ({"type": "text", "image_url": {"url": "YQ"}}, ".text", "got nothing"),
        ("YQ", "", "expected an object"),
    ],
)
@pytest.mark.parametrize("before", [0, 100])
def test_other_part_is_refused_by_field(part: Any, field: str, reason: str, before: int) -> None:
    error = refusal("a", [*[text("b")] * before, image(b"1"), part])
    assert isinstance(error, InvalidInput)
    assert error.field == f"messages[1].content[{before + 1}]{field}"
    assert reason in error.message


def test_unknown_field_of_image_is_refused() -> None:
    unknown = {"type": "image_url", "image_url": {"url": "YQ", "urls": []}}
    assert isinstance(refusal([unknown]), UnknownField)
    assert isinstance(refusal([image(b"1", file_id="f")]), UnknownField)


@pytest.mark.parametrize("count", [3, 63, 64, 500])
def test_long_content_is_read_as_short_one(count: int) -> None:
    parts = [part for i in range(count) for part in (text(str(i)), image(str(i).encode()))]
    content, images = found(parts)
    assert content == "".join(map(str, range(count)))
    ends = [len("".join(map(str, range(i + 1)))) for i in range(count)]
    assert images == [(str(i).encode(), end) for i, end in enumerate(ends)]


def test_images_of_long_conversation_keep_their_messages() -> None:
    talk = conversation(*([text(str(i)), image(str(i).encode())] if i % 2 else str(i) for i in range(200)))
    for i, message in enumerate(talk.messages):
        field = f"messages[{i}].content[1].image_url.url"
        images = (MessageImage(str(i).encode(), len(str(i)), field),) if i % 2 else ()
        assert message == Message("user", str(i), images=images)


@pytest.mark.parametrize("url", ["http://a.org/a.png", "HTTPS://a.org/a.png"])
def test_url_of_host_is_kept(url: str) -> None:
    image = ImagePart(type="image_url", image_url=ImageUrl(url=url, detail=None), uuid=None)
    assert read_content([TextPart(type="text", text="ab"), image], "m") == (
        "ab",
        (MessageImage(b"", 2, "m[1].image_url.url", url),),
    )


def test_videos_are_read_among_images() -> None:
    video = read_body(VideoPart, {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,YQ=="}})
    image = read_body(ImagePart, {"type": "image_url", "image_url": {"url": "Yg"}})
    assert read_content([video, TextPart(type="text", text="ab"), image], "m") == (
        "ab",
        (
            MessageImage(b"a", 0, "m[0].video_url.url", is_video=True),
            MessageImage(b"b", 2, "m[2].image_url.url"),
        ),
    )


def test_url_of_video_is_kept() -> None:
    video = read_body(VideoPart, {"type": "video_url", "video_url": {"url": "https://a.org/a.mp4"}})
    _, [file] = read_content([video], "m")
    assert file == MessageImage(b"", 0, "m[0].video_url.url", "https://a.org/a.mp4", is_video=True)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "expected the video of a file, got an empty text"),
        ("!", "expected base64, got other text"),
        ("ftp://a.org/a.mp4", "got a URL with the scheme ftp"),
        ("A" * (64 * 1024**2 * 3 // 2 + 1), "expected a file of at most 67108864 bytes, got more"),
    ],
)
def test_wrong_video_is_refused(url: str, message: str) -> None:
    video = VideoPart.model_construct(type="video_url", video_url=ImageUrl.model_construct(url=url))
    with pytest.raises(InvalidInput, match=message) as raised:
        read_content([video], "m")
    assert raised.value.field == "m[0].video_url.url"
