"""Headers of image files: what they say, floods of them, and bombs in their metadata."""

import io
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from frameworks.core.errors import InvalidInput
from frameworks.images.decode import decode_image
from frameworks.images.headers import read_header
from tests.frameworks.images.test_decode import SMALL, chunk
from tests.support.images import encoded


def flooded(form: str, part: bytes, count: int) -> bytes:
    """Return a file with `part` so many times behind its first header."""
    data, at = encoded(SMALL, form), 2 if form == "JPEG" else 33
    return data[:at] + part * count + data[at:]


@pytest.mark.parametrize(
    ("mode", "form", "options", "bits"),
    [
        ("RGB", "JPEG", {}, 24),
        ("RGB", "JPEG", {"progressive": True}, 24),
        ("L", "JPEG", {}, 8),
        ("CMYK", "JPEG", {}, 32),
        ("RGB", "PNG", {}, 24),
        ("RGBA", "PNG", {}, 32),
        ("LA", "PNG", {}, 16),
        ("L", "PNG", {}, 8),
        ("I;16", "PNG", {}, 16),
        ("P", "PNG", {}, 1),
        ("1", "PNG", {}, 1),
        ("RGB", "WebP", {}, 24),
        ("RGB", "WebP", {"lossless": True}, 24),
        ("RGBA", "WebP", {"lossless": True}, 32),
        ("RGBA", "WebP", {"quality": 50}, 32),
    ],
)
def test_bits_of_pixel_are_read(mode: str, form: str, options: dict[str, Any], bits: int) -> None:
    picture, file = Image.new(mode, (6, 4)), io.BytesIO()
    if mode == "RGBA":
        picture.putpixel((1, 1), (9, 8, 7, 6))
    picture.save(file, form, **options)
    header = read_header(file.getvalue())
    assert header is not None
    assert (header.format, header.width, header.height, header.bits_per_pixel) == (form, 6, 4, bits)


FLOODS = [
    ("JPEG", b"\xff\xfe\0\2"), ("JPEG", b"\xff"), ("JPEG", b"\xff\0"), ("JPEG", b"\xff\xd0"),
    ("PNG", chunk(b"teXt", b"")), ("PNG", chunk(b"IDAT", b"")),
]  # fmt: skip


@pytest.mark.parametrize(("form", "part"), FLOODS)
def test_flood_of_markers_refused(form: str, part: bytes) -> None:
    """A file of 64 MiB, whose parts are each read in Python, would take minutes."""
    with pytest.raises(InvalidInput, match="with more than 65536"):
        decode_image(flooded(form, part, 65_537), "image")


@pytest.mark.parametrize(("form", "part"), FLOODS)
def test_some_markers_decoded(form: str, part: bytes) -> None:
    assert np.array_equal(decode_image(flooded(form, part, 500), "image"), decode_image(encoded(SMALL, form), "image"))


def test_flood_behind_the_pixels_refused() -> None:
    data = encoded(SMALL, "PNG")
    end = data.index(b"IEND") - 4
    with pytest.raises(InvalidInput, match="with more than 65536 chunks"):
        decode_image(data[:end] + chunk(b"teXt", b"") * 65_537 + data[end:], "image")


@pytest.mark.parametrize("name", [b"iCCP", b"zTXt", b"iTXt"])
def test_bomb_of_metadata_refused(name: bytes) -> None:
    """64 MiB of zeros in a chunk of 64 kB."""
    data = encoded(SMALL, "PNG")
    head = b"a\0\1\0\0\0" if name == b"iTXt" else b"a\0\0"
    bomb = chunk(name, head + zlib.compress(bytes(64 * 1024**2)))
    with pytest.raises(InvalidInput, match="expected a whole image file"):
        decode_image(data[:33] + bomb + data[33:], "image")
