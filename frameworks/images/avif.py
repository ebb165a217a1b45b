"""Read the headers of AVIF files: the boxes of ISO/IEC 14496-12 and 23008-12 that tell sizes."""

import struct
from collections.abc import Iterator

from frameworks.images.types import DamagedHeader, ImageHeader

_MAX_BOXES = 4_096
_MAX_BRANDS = 64
_HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
_STILL, _SEQUENCE = b"avif", b"avis"
_FULL_BOX_BYTES = 4
_BITS = 24


def brands_of(data: bytes) -> tuple[bytes, ...]:
    """Return the brands of a file in the ISO base media format, its own first; none for another file."""
    if data[4:8] != b"ftyp":
        return ()
    end = min(int.from_bytes(data[:4], "big"), 16 + 4 * _MAX_BRANDS, len(data))
    return (data[8:12], *(data[at : at + 4] for at in range(16, end - 3, 4)))


def is_avif(data: bytes) -> bool:
    """Return whether the brands name AVIF."""
    brands = brands_of(data)
    return _STILL in brands or _SEQUENCE in brands


def is_heic(data: bytes) -> bool:
    """Return whether the brands name HEIF, and not AVIF."""
    return not _HEIF_BRANDS.isdisjoint(brands_of(data)) and not is_avif(data)


def read_avif(data: bytes) -> ImageHeader:
    """Return the header; its size is the largest of all items. Raises DamagedHeader, struct.error."""
    top = dict(_boxes(data, 0, len(data)))
    if b"meta" not in top:
        raise DamagedHeader("an AVIF file without the box meta")
    start, end = top[b"meta"]
    properties = dict(_boxes(data, start + _FULL_BOX_BYTES, end)).get(b"iprp", (0, 0))
    container = dict(_boxes(data, *properties)).get(b"ipco", (0, 0))
    height = width = 0
    for kind, (at, _) in _boxes(data, *container):
        if kind == b"ispe":
            own_width, own_height = struct.unpack_from(">II", data, at + _FULL_BOX_BYTES)
            if own_width * own_height >= height * width:
                height, width = own_height, own_width
    return ImageHeader("AVIF", height, width, _BITS, orientation=0, is_animated=data[8:12] == _SEQUENCE)


def _boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield the kinds of boxes, and where their contents begin and end."""
    for _ in range(_MAX_BOXES):
        if start + 8 > end:
            return
        size, kind = struct.unpack_from(">I4s", data, start)
        content = start + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, content)
            content += 8
        last = end if size == 0 else start + size
        if last < content or last > end:
            raise DamagedHeader("an AVIF file that ends in a box")
        yield kind, (content, last)
        start = last
    raise DamagedHeader(f"an AVIF file with more than {_MAX_BOXES} boxes")
