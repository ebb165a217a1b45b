"""Read the headers of image files: the format by its first bytes, the size, and the orientation.

Nothing is decoded and no memory is allocated for pixels, so that the bounds of an image are checked first.
Sources: ITU T.81 (JPEG), the PNG specification, the WebP container specification, Exif 2.32.
"""

import struct

from frameworks.images.avif import is_avif, is_heic, read_avif
from frameworks.images.bitmaps import read_bmp, read_gif, read_tiff
from frameworks.images.types import DamagedHeader, ImageHeader

FORMATS = "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"
SUFFIXES = {
    ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp", ".gif": "image/gif",
    ".bmp": "image/bmp", ".tif": "image/tiff", ".tiff": "image/tiff", ".avif": "image/avif",
}  # fmt: skip
"""Media types by the suffixes of file names, which are in lower case."""

_OTHER_FORMATS = {
    b"%PDF": "PDF", b"<svg": "SVG", b"<?xm": "XML", b"\0\0\1\0": "ICO", b"\xff\x0a": "JPEG XL", b"8BPS": "PSD",
    b"\0\0\0\x0cjP": "JPEG 2000", b"<!DO": "HTML", b"<htm": "HTML",
}  # fmt: skip
_PNG = b"\x89PNG\r\n\x1a\n"
_EXIF = b"Exif\0\0"
_ORIENTATION_TAG = 0x0112
_SHORT = 3
_SCAN = b"\xff\xda"
# Of the marker SOF0 to SOF15, without the tables DHT, JPG and DAC.
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL = (0xC0, 0xC1)
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""By colour types; those of a palette are numbers of colours."""
_WEBP_COLOUR_BITS = 24
_WEBP_ALPHA_BITS = 8
_MARKERS_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
_START_OF_SCAN = 0xDA
_FILL = 0xFF
_MAX_MARKERS = 65_536
"""Pillow and this module read each marker and fill byte in Python: 64 MiB of them would take a minute."""
_MAX_CHUNKS = 65_536
"""Pillow reads each chunk in Python. A PNG file of 64 MiB has about 8,000 chunks of the usual size."""
_APP1 = 0xE1
_GIF, _BMP = (b"GIF87a", b"GIF89a"), b"BM"
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_image(data: bytes) -> bool:
    """Return whether the first bytes are those of a file in one of FORMATS."""
    if data.startswith(b"RIFF"):
        return data[8:12] == b"WEBP"
    return data.startswith((b"\xff\xd8\xff", _PNG, *_GIF, _BMP, *_TIFF)) or is_avif(data)


def read_header(data: bytes) -> ImageHeader | None:
    """Return the header of a file in one of FORMATS; None for another format. Raises DamagedHeader."""
    try:
        if data.startswith(b"\xff\xd8\xff"):
            return _read_jpeg(data)
        if data.startswith(_PNG):
            return _read_png(data)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _read_webp(data)
        if data.startswith(_GIF):
            return read_gif(data)
        if data.startswith(_BMP):
            return read_bmp(data)
        if data.startswith(_TIFF):
            return read_tiff(data)
        if is_avif(data):
            return read_avif(data)
    except (struct.error, IndexError):
        raise DamagedHeader("a file that ends in its header") from None
    return None


def name_of_format(data: bytes) -> str:
    """Return the name of another format, for messages."""
    if not data:
        return "an empty file"
    if is_heic(data):
        return "a HEIC file"
    if data[4:8] == b"ftyp":
        return "a MP4 file"
    return next((f"a {name} file" for magic, name in _OTHER_FORMATS.items() if data.startswith(magic)), "other bytes")


def read_orientation(exif: bytes) -> int:
    """Return the orientation of an Exif block, 1 to 8; 1 where it has none or is damaged, as image viewers do."""
    start = exif.removeprefix(_EXIF)
    order = {b"II": "<", b"MM": ">"}.get(start[:2])
    if order is None:
        return 1
    try:
        (offset,) = struct.unpack_from(order + "I", start, 4)
        (entries,) = struct.unpack_from(order + "H", start, offset)
        for number in range(entries):
            tag, kind, count, value = struct.unpack_from(order + "HHIH", start, offset + 2 + 12 * number)
            if tag == _ORIENTATION_TAG:
                return value if (kind, count) == (_SHORT, 1) and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def _read_jpeg(data: bytes) -> ImageHeader:
    """Read the segments to the first frame, and to the first scan for the Exif block."""
    frame: tuple[int, int, int, int] | None = None
    exif, scans, marker_of_frame = b"", 1, 0
    for marker, at in _segments(data):
        if marker == _START_OF_SCAN:
            # One scan with all channels is the only one, unless the file is progressive.
            if marker_of_frame not in _SEQUENTIAL or frame is None or data[at + 2] != frame[3]:
                # In the data of a scan 0xff is followed by 0, so this counts scans.
                scans = data.count(_SCAN, at - 2)
            break
        (length,) = struct.unpack_from(">H", data, at)
        if marker in _FRAME_MARKERS:
            if frame is not None:
                raise DamagedHeader("a JPEG file with two frames")
            frame, marker_of_frame = struct.unpack_from(">BHHB", data, at + 2), marker
        elif marker == _APP1 and not exif and data.startswith(_EXIF, at + 2):
            exif = data[at + 2 : at + length]
    if frame is None:
        raise DamagedHeader("a JPEG file without a frame before its first scan")
    bits, height, width, channels = frame
    orientation = read_orientation(exif) if exif else 1
    return ImageHeader("JPEG", height, width, bits * channels, orientation, channels, scans)


def _segments(data: bytes) -> list[tuple[int, int]]:
    """Return the markers of a JPEG file up to its first scan, and the positions after them.

    Raises DamagedHeader, IndexError.
    """
    found = []
    position = 2
    for _ in range(_MAX_MARKERS):
        # libjpeg skips bytes between two markers.
        position = data.find(b"\xff", position) + 1
        if not position:
            raise DamagedHeader("a JPEG file without an image")
        marker = data[position]
        if marker == _FILL:
            continue
        position += 1
        if marker == 0 or marker in _MARKERS_WITHOUT_LENGTH:
            continue
        found.append((marker, position))
        if marker == _START_OF_SCAN:
            return found
        (length,) = struct.unpack_from(">H", data, position)
        position += max(2, length)
    raise DamagedHeader(f"a JPEG file with more than {_MAX_MARKERS} markers and fill bytes before its image")


def _read_png(data: bytes) -> ImageHeader:
    if data[12:16] != b"IHDR":
        raise DamagedHeader("a PNG file that does not begin with its header")
    width, height, bits, colour_type = struct.unpack_from(">IIBB", data, 16)
    _check_chunks(data)
    return ImageHeader("PNG", height, width, bits * _PNG_CHANNELS.get(colour_type, 0), orientation=0)


def _check_chunks(data: bytes) -> None:
    """Raise DamagedHeader for a PNG file with too many chunks."""
    position = len(_PNG)
    for _ in range(_MAX_CHUNKS):
        if position + 8 > len(data):
            return
        (length,) = struct.unpack_from(">I", data, position)
        position += 12 + length
    raise DamagedHeader(f"a PNG file with more than {_MAX_CHUNKS} chunks")


def _read_webp(data: bytes) -> ImageHeader:
    match data[12:16]:
        case b"VP8X":
            (flags,) = struct.unpack_from("<B", data, 20)
            width = int.from_bytes(data[24:27], "little") + 1
            height = int.from_bytes(data[27:30], "little") + 1
            if len(data) < 30:
                raise DamagedHeader("a file that ends in its header")
            bits = _webp_bits(bool(flags & 0x10))
            return ImageHeader("WebP", height, width, bits, orientation=0, is_animated=bool(flags & 0x02))
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return ImageHeader("WebP", height & 0x3FFF, width & 0x3FFF, _webp_bits(False))
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            height, width = ((bits >> 14) & 0x3FFF) + 1, (bits & 0x3FFF) + 1
            return ImageHeader("WebP", height, width, _webp_bits(bool(bits >> 28 & 1)))
    raise DamagedHeader("a WebP file without an image")


def _webp_bits(has_alpha: bool) -> int:
    return _WEBP_COLOUR_BITS + has_alpha * _WEBP_ALPHA_BITS
