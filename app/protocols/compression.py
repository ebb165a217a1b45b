"""Compress and decompress bodies with `gzip` and `deflate` (zlib's form, RFC 9110), within the limit of bodies."""

import zlib
from collections.abc import Callable, Iterator
from io import BytesIO

from app.protocols.errors import TooLarge, UnsupportedMediaType
from frameworks.errors import InvalidInput

MIN_COMPRESSED_BYTES = 1024
"""Shorter responses are sent uncompressed."""

Grow = Callable[[int], None]
"""Count more bytes of a request. Raises Overloaded if they do not fit."""

# zlib's `wbits`: the container, with the largest window.
_WINDOW_BITS = {"gzip": 31, "deflate": 15}
_NAMES = {"": None, "identity": None, "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
# Compressed bytes that are read, and decompressed bytes that are made, at a time.
_PIECE_BYTES = 64 * 1024
_STEP_BYTES = 1024 * 1024
# The fastest level: higher ones hardly make tensors smaller.
_LEVEL = 1


def parse_encoding(value: bytes) -> str | None:
    """Return `gzip`, `deflate`, or None for an uncompressed body. Raises UnsupportedMediaType for any other."""
    name = value.decode("latin-1").strip().lower()
    if name not in _NAMES:
        raise UnsupportedMediaType(f'content-encoding: expected gzip, deflate or identity, got "{name[:100]}"')
    return _NAMES[name]


def choose_encoding(accepted: bytes) -> str | None:
    """Choose the encoding that an accept-encoding prefers, gzip before deflate; None: do not compress the response."""
    qualities: dict[str, float] = {}
    for item in accepted.decode("latin-1").lower().split(","):
        name, _, parameter = item.partition(";")
        qualities[name.strip()] = _quality(parameter)
    rest = qualities.get("*", 0.0)
    gzip, deflate = qualities.get("gzip", qualities.get("x-gzip", rest)), qualities.get("deflate", rest)
    best = max(gzip, deflate)
    if best <= 0.0 or best < qualities.get("identity", 0.0):
        return None
    return "gzip" if gzip >= deflate else "deflate"


def decompress(body: bytes, encoding: str, max_body_bytes: int, grow: Grow) -> bytes:
    """Decompress a body in steps; `grow` counts the bytes of each step, and may raise.

    Raises InvalidInput for invalid data, and TooLarge as soon as the result exceeds the limit.
    """
    inflater = zlib.decompressobj(_WINDOW_BITS[encoding])
    # Its buffer becomes the result without a copy, unlike a joined list.
    inflated = BytesIO()
    unread = len(body)
    try:
        for start in range(0, len(body), _PIECE_BYTES):
            if inflater.eof:
                break
            piece = body[start : start + _PIECE_BYTES]
            unread -= len(piece)
            for part in _inflate(inflater, piece):
                grow(len(part))
                if inflated.tell() + len(part) > max_body_bytes:
                    raise TooLarge(max_body_bytes)
                inflated.write(part)
    except zlib.error as error:
        raise InvalidInput("content-encoding", f"expected a body in {encoding}, got invalid data: {error}") from None
    if not inflater.eof:
        raise InvalidInput("content-encoding", f"expected a whole body in {encoding}, got a truncated one")
    unread += len(inflater.unused_data)
    if unread:
        raise InvalidInput(
            "content-encoding", f"expected the end of the body after its {encoding}, got {unread} more bytes"
        )
    return inflated.getvalue()


def _inflate(inflater: "zlib._Decompress", piece: bytes) -> Iterator[bytes]:
    """Yield what a piece of the body inflates to, in steps."""
    part = inflater.decompress(piece, _STEP_BYTES)
    yield part
    # A full step may have more behind it, also when all of the piece is consumed.
    while not inflater.eof and (len(part) == _STEP_BYTES or inflater.unconsumed_tail):
        part = inflater.decompress(inflater.unconsumed_tail, _STEP_BYTES)
        yield part


def compress(body: bytes, encoding: str) -> bytes:
    """Compress a body."""
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[encoding])
    return deflater.compress(body) + deflater.flush()


def _quality(parameter: str) -> float:
    name, _, value = parameter.partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        quality = float(value)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0
