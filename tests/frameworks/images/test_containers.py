"""Headers of GIF, BMP, TIFF and AVIF files: sizes that are bombs, floods, and lies about strips and tiles."""

from io import BytesIO
from struct import pack

import numpy as np
import pytest
from PIL import Image

from frameworks.images.decode import decode_image
from tests.frameworks.images.test_decode import SMALL, refusal
from tests.support.images import encoded


def tiff(*tags: tuple[int, int, int]) -> bytes:
    """Return a TIFF file of one page with these tags: number, count, value of 32 bits."""
    entries = b"".join(pack("<HHII", tag, 4, count, value) for tag, count, value in tags)
    return b"II*\0" + pack("<IH", 8, len(tags)) + entries + bytes(4)


def sized_avif(width: int, height: int) -> bytes:
    data = encoded(SMALL, "AVIF")
    return data.replace(pack(">II", 31, 20), pack(">II", width, height))


BOMB = 60_000


@pytest.mark.parametrize(
    "bomb",
    [
        b"GIF89a" + pack("<HHBBB", BOMB, BOMB, 0, 0, 0) + b"\x2c" + bytes(9),
        b"GIF89a" + pack("<HHBBB", 1, 1, 0, 0, 0) + b"\x2c" + pack("<HHHHB", 0, 0, BOMB, BOMB, 0),
        b"BM" + bytes(12) + pack("<IiiHHI", 40, BOMB, BOMB, 1, 24, 0) + bytes(20),
        b"BM" + bytes(12) + pack("<IHHHH", 12, BOMB, BOMB, 1, 24),
        tiff((256, 1, BOMB), (257, 1, BOMB), (273, 1, 8)),
        sized_avif(BOMB, BOMB),
    ],
    ids=["gif", "gif frame", "bmp", "bmp of os/2", "tiff", "avif"],
)
def test_bomb_refused_by_its_size(bomb: bytes) -> None:
    assert f"got an image of {BOMB} x {BOMB}" in refusal(bomb)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (tiff((256, 1, 8), (257, 1, 8), (278, 1, 8), (273, 60_000, 8)), "60000 strips or tiles, whose size has 1"),
        (tiff((256, 1, 30_000), (257, 1, 1_000), (322, 1, 16), (323, 1, 1), (324, 1, 8)), "whose size has 1875000"),
        (tiff((256, 1, 8), (257, 1, 8), (322, 1, 65_000), (323, 1, 65_000), (324, 1, 8)), "tiles of 65000 x 65000"),
        (tiff((256, 1, 8), (257, 1, 8), (259, 1, 34_712)), "compression 34712, which is not read"),
        (tiff((256, 1, 8), (256, 1, 9)), "two tags 256"),
        (tiff(*((300 + tag, 1, 1) for tag in range(257))), "257 tags; at most 256"),
        (b"BM" + bytes(12) + pack("<IiiHHI", 40, 8, 8, 1, 8, 1) + bytes(20), "compression 1, which is not read"),
        (b"GIF89a" + pack("<HHBBB", 8, 8, 0, 0, 0) + b"\x21\xfe" + b"\xffx" * 2**20, "before its first frame"),
        (b"GIF89a" + pack("<HHBBB", 8, 8, 0, 0, 0) + b"\x3b", "without a frame"),
        (encoded(SMALL, "AVIF")[:40] + b"\0\0\0\x08free" * 5_000, "ends in a box"),
    ],
)
def test_lying_header_refused(data: bytes, found: str) -> None:
    assert found in refusal(data)


def test_animated_gif_stands_for_first_frame() -> None:
    frames = [Image.fromarray(SMALL), Image.fromarray(255 - SMALL)]
    data = BytesIO()
    frames[0].save(data, "GIF", save_all=True, append_images=frames[1:])
    expected = np.asarray(Image.open(BytesIO(data.getvalue())).convert("RGB"))
    np.testing.assert_array_equal(decode_image(data.getvalue(), "image"), expected)


@pytest.mark.parametrize("options", [{"compression": "tiff_lzw"}, {"compression": "packbits"}, {"big_tiff": True}])
def test_tiff_pixels_equal_pillow(options: dict[str, str]) -> None:
    np.testing.assert_array_equal(decode_image(encoded(SMALL, "TIFF", **options), "image"), SMALL)
