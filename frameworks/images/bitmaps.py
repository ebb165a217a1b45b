"""Read the headers of GIF, BMP and TIFF files.

Sources: GIF89a, the bitmap headers of Windows, TIFF 6.0 and BigTIFF.
"""

import struct

from frameworks.images.types import DamagedHeader, ImageHeader

_MAX_BLOCKS = 4_096
"""Pillow joins the blocks of a comment in Python, in quadratic time."""
_MAX_ENTRIES = 256
_MAX_SEGMENTS = 65_536
"""Pillow lists each strip and each tile in Python."""
_MAX_TILE_PIXELS = 4_096 * 4_096
_BMP_OS2_BYTES = 12
_BMP_PLAIN = (0, 3)
"""Without compression, and with masks of the colours. Pillow decodes the runs of others in Python."""
# None, three of CCITT, LZW, Deflate twice, PackBits.
_TIFF_COMPRESSIONS = frozenset({1, 2, 3, 4, 5, 8, 32_946, 32_773})
_TIFF_KINDS = {1: "B", 3: "H", 4: "I", 16: "Q"}
_WIDTH, _LENGTH, _BITS, _COMPRESSION, _STRIPS, _ORIENTATION = 256, 257, 258, 259, 273, 274
_SAMPLES, _ROWS, _PLANES, _TILE_WIDTH, _TILE_LENGTH, _TILES = 277, 278, 284, 322, 323, 324


def read_gif(data: bytes) -> ImageHeader:
    """Return the header of the first frame, on its screen. Raises DamagedHeader, struct.error, IndexError."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + _bytes_of_palette(flags)
    for _ in range(_MAX_BLOCKS):
        mark = data[at]
        if mark == 0x2C:
            left, top, own_width, own_height = struct.unpack_from("<HHHH", data, at + 1)
            # Pillow widens the screen to its first frame.
            return ImageHeader("GIF", max(height, top + own_height), max(width, left + own_width), (flags & 7) + 1)
        if mark == 0x3B:
            break
        at += 2 if mark == 0x21 else 1
        while mark == 0x21 and data[at]:
            at += 1 + data[at]
            if (at_most := _MAX_BLOCKS * 256) < at:
                raise DamagedHeader(f"a GIF file with more than {at_most} bytes before its first frame")
        at += mark == 0x21
    raise DamagedHeader("a GIF file without a frame at its beginning")


def _bytes_of_palette(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def read_bmp(data: bytes) -> ImageHeader:
    """Return the header. Raises DamagedHeader, struct.error."""
    (size,) = struct.unpack_from("<I", data, 14)
    if size == _BMP_OS2_BYTES:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
        return ImageHeader("BMP", height, width, bits)
    width, height, _, bits, compression = struct.unpack_from("<iiHHI", data, 18)
    if compression not in _BMP_PLAIN:
        raise DamagedHeader(f"a BMP file with the compression {compression}, which is not read")
    # A negative height: the rows begin at the top.
    return ImageHeader("BMP", abs(height), max(width, 0), bits)


def read_tiff(data: bytes) -> ImageHeader:
    """Return the header of the first page, `is_animated` if there are more. Raises DamagedHeader, struct.error."""
    order = "<" if data.startswith(b"II") else ">"
    tags, has_more = _read_tags(data, order)

    def first(tag: int, default: int) -> int:
        return tags[tag][0] if tag in tags else default

    width, height, samples = first(_WIDTH, 0), first(_LENGTH, 0), first(_SAMPLES, 1)
    compression = first(_COMPRESSION, 1)
    if compression not in _TIFF_COMPRESSIONS:
        raise DamagedHeader(f"a TIFF file with the compression {compression}, which is not read")
    if not 1 <= samples <= 8:
        raise DamagedHeader(f"a TIFF file with {samples} samples a pixel")
    planes = samples if first(_PLANES, 1) == 2 else 1
    if _TILES in tags or _TILE_WIDTH in tags:
        wide, long, given = first(_TILE_WIDTH, 0), first(_TILE_LENGTH, 0), tags.get(_TILES, (0, 0))[1]
        if not (wide and long) or wide * long > _MAX_TILE_PIXELS:
            raise DamagedHeader(f"a TIFF file with tiles of {wide} x {long} pixels")
        expected = planes * -(-width // wide) * -(-height // long)
    else:
        rows, given = first(_ROWS, height), tags.get(_STRIPS, (0, 0))[1]
        expected = planes * -(-height // max(1, rows))
    if given > expected or expected > _MAX_SEGMENTS:
        raise DamagedHeader(f"a TIFF file of {given} strips or tiles, whose size has {expected}")
    bits = first(_BITS, 1) * samples
    orientation = first(_ORIENTATION, 1)
    return ImageHeader("TIFF", height, width, bits, orientation if 1 <= orientation <= 8 else 1, is_animated=has_more)


def _read_tags(data: bytes, order: str) -> tuple[dict[int, tuple[int, int]], bool]:
    """Return the first value and the count of each number of the first page, and whether there is another page."""
    is_big = struct.unpack_from(order + "H", data, 2)[0] == 43
    (at,) = struct.unpack_from(order + ("Q" if is_big else "I"), data, 8 if is_big else 4)
    (entries,) = struct.unpack_from(order + ("Q" if is_big else "H"), data, at)
    if entries > _MAX_ENTRIES:
        raise DamagedHeader(f"a TIFF file with {entries} tags; at most {_MAX_ENTRIES} are read")
    at += 8 if is_big else 2
    head, step, room = ("HHQ", 20, 8) if is_big else ("HHI", 12, 4)
    tags: dict[int, tuple[int, int]] = {}
    for number in range(entries):
        start = at + step * number
        tag, kind, count = struct.unpack_from(order + head, data, start)
        if tag in tags:
            raise DamagedHeader(f"a TIFF file with two tags {tag}")
        value = (0, count)
        code = _TIFF_KINDS.get(kind)
        if code is not None and count:
            place = start + step - room
            if count * struct.calcsize(code) > room:
                (place,) = struct.unpack_from(order + ("Q" if is_big else "I"), data, place)
            value = (struct.unpack_from(order + code, data, place)[0], count)
        tags[tag] = value
    (following,) = struct.unpack_from(order + ("Q" if is_big else "I"), data, at + step * entries)
    return tags, following != 0
