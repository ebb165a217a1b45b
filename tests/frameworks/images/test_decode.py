"""Decoding of image files: the same pixels as Pillow, and a refusal that names the reason for every other file."""

import zlib
from io import BytesIO
from struct import pack

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from frameworks.core.errors import InvalidInput
from frameworks.images.decode import ImageBounds, decode_image
from frameworks.images.headers import read_header, read_orientation
from tests.support.images import encoded, photo

SMALL = photo(20, 31)


def refusal(data: bytes, bounds: ImageBounds | None = None) -> str:
    with pytest.raises(InvalidInput) as raised:
        decode_image(data, "image[2]", bounds or ImageBounds())
    assert raised.value.field == "image[2]"
    return raised.value.reason


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_decoded_pixels_equal_libjpeg_turbo(subsampling: int, progressive: bool) -> None:
    data = encoded(photo(37, 50), "JPEG", subsampling=subsampling, progressive=progressive)
    decoded = decode_image(data, "image")
    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, simplejpeg.decode_jpeg(data, "RGB"))
    np.testing.assert_array_equal(decoded, np.asarray(Image.open(BytesIO(data))))


@pytest.mark.parametrize(
    ("mode", "form"),
    [
        *(("L", form) for form in ("JPEG", "PNG")),
        ("CMYK", "JPEG"),
        *((mode, "PNG") for mode in ("1", "P", "LA", "RGBA", "I;16", "RGB")),
        *((mode, "WEBP") for mode in ("RGB", "RGBA")),
        *((mode, "GIF") for mode in ("RGB", "P", "L")),
        *((mode, "BMP") for mode in ("1", "P", "L", "RGB", "RGBA")),
        *((mode, "TIFF") for mode in ("1", "P", "L", "LA", "RGB", "RGBA", "CMYK", "I;16", "F", "YCbCr")),
        *((mode, "AVIF") for mode in ("L", "RGB", "RGBA")),
    ],
)
def test_mode_converted_as_pillow_does(mode: str, form: str) -> None:
    image = Image.fromarray(SMALL)
    if mode == "I;16":
        image = Image.fromarray((np.arange(600, dtype=np.uint16).reshape(20, 30) * 109).astype(np.uint16))
    elif mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(SMALL[:, :, 0]))
        image = image.convert(mode)
    else:
        image = image.convert(mode)
    data = BytesIO()
    image.save(data, form, **({"lossless": True} if form == "WEBP" else {}))
    expected = np.asarray(Image.open(BytesIO(data.getvalue())).convert("RGB"))
    np.testing.assert_array_equal(decode_image(data.getvalue(), "image"), expected)


def test_palette_with_transparency_keeps_its_colours() -> None:
    image = Image.fromarray(SMALL).convert("P")
    data = BytesIO()
    image.save(data, "PNG", transparency=bytes(range(256)))
    np.testing.assert_array_equal(decode_image(data.getvalue(), "image"), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_orientation_applied_as_pillow_does(orientation: int, form: str) -> None:
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    exif[0x0112] = orientation
    data = encoded(SMALL, form, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(BytesIO(data)))
    assert upright is not None
    np.testing.assert_array_equal(decode_image(data, "image"), np.asarray(upright.convert("RGB")))


@pytest.mark.parametrize("exif", [b"", b"Exif\0\0", b"II*\0", b"MM\0*\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff"])
def test_damaged_exif_means_upright(exif: bytes) -> None:
    assert read_orientation(exif) == 1


def test_bytes_between_markers_decoded_as_pillow_does() -> None:
    data = encoded(SMALL, "JPEG")
    at = data.index(b"\xff\xc4")
    odd = data[:at] + b"\1\2\3" + data[at:]
    with pytest.raises(ValueError, match="extraneous"):
        simplejpeg.decode_jpeg(odd)
    np.testing.assert_array_equal(decode_image(odd, "image"), decode_image(data, "image"))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"),
        (b"<svg xmlns='x'/>", "a SVG file"),
        (bytes(4) + b"ftypheic" + bytes(20), "a HEIC file"),
        (b"hello", "other bytes"),
    ],
)
def test_other_format_refused_by_name(data: bytes, found: str) -> None:
    assert refusal(data) == f"expected a file in JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF, got {found}; convert it"


def chunk(kind: bytes, content: bytes) -> bytes:
    return pack(">I", len(content)) + kind + content + pack(">I", zlib.crc32(kind + content))


def tiny_png(width: int, height: int) -> bytes:
    header = chunk(b"IHDR", pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


def tiny_jpeg(width: int, height: int) -> bytes:
    data = bytearray(encoded(SMALL, "JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = pack(">HH", height, width)
    return bytes(data)


def tiny_webp(width: int, height: int) -> bytes:
    body = b"VP8X" + pack("<I", 10) + bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + pack("<I", len(body) + 4) + b"WEBP" + body


@pytest.mark.parametrize(
    "bomb", [tiny_png(60_000, 60_000), tiny_jpeg(65_000, 65_000), tiny_webp(60_000, 60_000), tiny_png(2**31 - 1, 1)]
)
def test_bomb_refused_by_its_header(bomb: bytes) -> None:
    assert "expected at most 50000000 pixels and sides of 32768" in refusal(bomb)


def test_bounds_checked_before_decoding() -> None:
    data = encoded(SMALL, "PNG")
    assert "at most 10 bytes" in refusal(data, ImageBounds(max_bytes=10))
    assert "got an image of 31 x 20" in refusal(data, ImageBounds(max_pixels=31 * 20 - 1))
    assert "sides of 30" in refusal(data, ImageBounds(max_side=30))
    assert decode_image(data, "image", ImageBounds(len(data), 31 * 20, 31)).shape == (20, 31, 3)


def test_jpeg_with_many_scans_refused() -> None:
    data = encoded(SMALL, "JPEG", progressive=True)
    at = data.rindex(b"\xff\xda")
    assert "at most 100 scans for 31 x 20" in refusal(data[:at] + data[at:-2] * 101)
    large = bytearray(data[:at] + data[at:-2] * 20)
    frame = large.index(b"\xff\xc2")
    large[frame + 5 : frame + 9] = pack(">HH", 7000, 7000)
    assert "at most 20 scans for 7000 x 7000" in refusal(bytes(large))


@pytest.mark.parametrize("form", ["PNG", "WEBP", "TIFF", "AVIF"])
def test_several_frames_refused(form: str) -> None:
    data = BytesIO()
    frames = [Image.fromarray(SMALL), Image.fromarray(255 - SMALL)]
    frames[0].save(data, form, save_all=True, append_images=frames[1:])
    assert refusal(data.getvalue()) == "expected an image of one frame, got several; send its frames as images"


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_truncated_file_refused_at_every_length(form: str) -> None:
    data = encoded(SMALL, form)
    for length in range(1, len(data) - 20, 7):
        assert refusal(data[:length]).startswith("expected a ")


FILES = [
    encoded(SMALL, "JPEG"), encoded(SMALL, "JPEG", progressive=True), encoded(SMALL, "PNG"), encoded(SMALL, "WEBP"),
    encoded(SMALL, "WEBP", lossless=True), encoded(SMALL, "JPEG", exif=Image.Exif()),
    encoded(SMALL, "GIF"), encoded(SMALL, "BMP"), encoded(SMALL, "TIFF"),
    encoded(SMALL, "TIFF", compression="tiff_lzw"), encoded(SMALL, "AVIF"),
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(FILES),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8),
    st.floats(0, 1),
)
def test_damaged_file_decoded_or_refused(data: bytes, changes: list[tuple[float, int]], keep: float) -> None:
    damaged = bytearray(data)
    for position, value in changes:
        damaged[int(position * len(damaged))] = value
    _decode_or_refuse(bytes(damaged))
    _decode_or_refuse(bytes(damaged[: int(keep * len(damaged))]))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(
        [
            b"\xff\xd8\xff",
            b"\x89PNG\r\n\x1a\n",
            b"RIFF\0\0\0\0WEBPVP8X",
            b"RIFF\0\0\0\0WEBPVP8 ",
            b"GIF89a",
            b"BM",
            b"II*\0",
            b"MM\0+",
            b"\0\0\0\x10ftypavif\0\0\0\0avif",
        ]
    ),
    st.binary(),
)
def test_random_bytes_decoded_or_refused(magic: bytes, data: bytes) -> None:
    _decode_or_refuse(magic + data)


def _decode_or_refuse(data: bytes) -> None:
    try:
        pixels = decode_image(data, "image", ImageBounds(max_pixels=100_000))
    except InvalidInput as refused:
        error = refused
    else:
        header = read_header(data)
        assert header is not None
        assert pixels.shape in {(header.height, header.width, 3), (header.width, header.height, 3)}
        return
    assert error.field == "image"
    assert ", got " in error.reason
    assert "; " in error.reason
