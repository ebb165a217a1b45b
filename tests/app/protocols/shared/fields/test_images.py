"""Read images out of base64 and data URLs; refuse every other URL."""

import re
from base64 import b64encode, urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.shared.fields.images import MAX_IMAGES, decode_image, decode_images
from frameworks.core.errors import InvalidInput

FILE = bytes(range(256))


def refusal(text: Any) -> str:
    with pytest.raises(InvalidInput, match=r"^image: expected ") as caught:
        decode_image(text, "image")
    return caught.value.message


@given(st.binary(min_size=1, max_size=200), st.sampled_from(["", "data:;base64,", "data:image/webp;x=1;base64,"]))
def test_decode_image_returns_encoded_bytes(file: bytes, head: str) -> None:
    for encode in (b64encode, urlsafe_b64encode):
        encoded = encode(file).decode()
        assert decode_image(head + encoded, "image") == file
        assert decode_image(head + encoded.rstrip("="), "image") == file
        assert decode_image(head + encoded[:4] + "\r\n" + encoded[4:] + "\n", "image") == file


@given(st.text(max_size=60))
def test_decode_image_any_text_is_file_or_refused(text: str) -> None:
    try:
        file = decode_image(text, "image")
    except InvalidInput as refused:
        message = refused.message
    else:
        assert file
        return
    assert re.match("image: expected ", message)
    assert len(message.encode()) < 500


@pytest.mark.parametrize(
    "url",
    [
        "http://a.org/x.jpg",
        "HTTPS://a.org/x.jpg",
        "file:///etc/passwd",
        "ftp://a/b",
        "s3://b/k",
        "javascript:1",
        "blob:x",
    ],
)
def test_decode_image_url_is_never_fetched(url: str) -> None:
    message = refusal(url)
    assert f"a URL with the scheme {url.partition(':')[0].lower()}; the server fetches no URL" in message


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, "got null"),
        (3, "got a number"),
        (["a"], "got an array"),
        ("", "got an empty text"),
        ("data:image/png;base64,", "got an empty text"),
        ("data:image/png,abc", "got another one; send data:image/jpeg;base64,"),
        ("a b", "got other text"),
        ("ab:c", "the scheme ab"),
        (":abcd", "got other text"),
        ("====", "got other text"),
        ("abcd=abcd", "got other text"),
        ("ž", "got other text"),
    ],
)
def test_decode_image_other_value_is_refused(text: Any, found: str) -> None:
    assert found in refusal(text)


def test_decode_images_names_wrong_one() -> None:
    good = b64encode(FILE).decode()
    assert decode_images([good, good], "image") == [FILE, FILE]
    with pytest.raises(InvalidInput, match=r"^image\[1\]: expected base64"):
        decode_images([good, "!"], "image")
    with pytest.raises(InvalidInput, match=rf"^image: expected 1 to {MAX_IMAGES} images, got 0"):
        decode_images([], "image")
    with pytest.raises(InvalidInput, match=rf"got {MAX_IMAGES + 1}; split the request"):
        decode_images([good] * (MAX_IMAGES + 1), "image")
