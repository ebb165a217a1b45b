"""The kind of a file by its first bytes."""

import pytest

from frameworks.media.kinds import Kind, kind_of
from tests.support.images import encoded, photo
from tests.support.media import encoded_audio, encoded_video, moving_square, tone, wav

PIXELS = photo(20, 31)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_image_is_told_by_its_bytes(form: str) -> None:
    assert kind_of(encoded(PIXELS, form)) == "image"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (wav(tone(100)), "audio"),
        (encoded_audio(tone(4_000), "flac", "flac"), "audio"),
        (encoded_audio(tone(4_000), "mp3", "libmp3lame"), "audio"),
        (encoded_audio(tone(4_000), "adts", "aac"), "audio"),
        (encoded_audio(tone(4_000), "ipod", "aac"), "audio"),
        (encoded_audio(tone(4_800, rate=48_000), "ogg", "libopus", 48_000), "audio"),
        (encoded_video(moving_square(3)), "video"),
        (encoded_video(moving_square(3), "mov"), "video"),
        (encoded_video(moving_square(3), "webm", "libvpx"), "video"),
        (encoded_video(moving_square(3), "avi"), "video"),
        (b"\0\0\0\x18ftypheic" + bytes(20), "image"),
        (b"", None),
        (b"\xff", None),
        (b"\xff\xff\xff\xff", None),
        (b'{"text": "a"}', None),
        (b"%PDF-1.7", None),
        (b"<svg/>", None),
    ],
    # Some containers have random bytes, which would be part of the names of the tests.
    ids=lambda value: str(value) if value is None or isinstance(value, str) else f"{len(value)} bytes",
)
def test_kind_is_told_by_first_bytes(data: bytes, kind: Kind | None) -> None:
    assert kind_of(data) == kind
    assert kind_of(data[:64]) == kind
