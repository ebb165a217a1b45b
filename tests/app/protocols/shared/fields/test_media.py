"""Audio and video of JSON: base64 or data URLs, refused by field beyond the bounds."""

import base64
from collections.abc import Callable
from typing import Any

import pytest

from app.protocols.shared.fields.media import MAX_FILES, read_audio, read_video
from frameworks.core.errors import InvalidInput
from frameworks.media.container import DEFAULT_BOUNDS

FILE = bytes(range(256))
TEXT = base64.b64encode(FILE).decode()
Read = Callable[[Any], list[bytes]]


@pytest.mark.parametrize("read", [read_audio, read_video])
def test_files_are_read_from_base64(read: Read) -> None:
    assert read(TEXT) == [FILE]
    assert read([f"data:audio/wav;base64,{TEXT}", TEXT]) == [FILE, FILE]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], f"audio: expected 1 to {MAX_FILES} files of audio, got 0"),
        ([TEXT] * (MAX_FILES + 1), f"audio: expected 1 to {MAX_FILES} files of audio, got {MAX_FILES + 1}"),
        (3, "audio: expected audio as base64 or data URL, got a number"),
        ([TEXT, None], "audio[1]: expected audio as base64 or data URL, got null"),
        ([TEXT, "?"], "audio[1]: expected base64, got other text"),
        ("", "audio: expected the audio of a file, got an empty text"),
        ("https://example.org/a.wav", "audio: expected base64 or a data URL, got a URL with the scheme https"),
        ("file:///etc/passwd", "audio: expected base64 or a data URL, got a URL with the scheme file"),
        ("A" * (DEFAULT_BOUNDS.max_bytes * 3 // 2 + 1), "audio: expected a file of at most 67108864 bytes"),
    ],
    ids=["none", "many", "number", "null", "text", "empty", "https", "file", "large"],
)
def test_other_value_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_audio(given)
    assert caught.value.message.startswith(message)
