"""Compress and decompress bodies with `gzip` and `deflate` (zlib's form, RFC 9110), within the limit of bodies."""

import zlib

from app.protocols.errors import TooLarge, UnsupportedMediaType
from frameworks.errors import InvalidInput

MIN_COMPRESSED_BYTES = 1024
"""Shorter responses are sent uncompressed."""

# zlib's `wbits`: the container, with the largest window.
_WINDOW_BITS = {"gzip": 31, "deflate": 15}
_NAMES = {"": None, "identity": None, "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
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


def decompress(body: bytes, encoding: str, max_body_bytes: int) -> bytes:
    """Decompress a body. Raises InvalidInput for invalid data, and TooLarge as soon as the result exceeds the limit."""
    inflater = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        inner = inflater.decompress(body, max_body_bytes + 1)
    except zlib.error as error:
        raise InvalidInput("content-encoding", f"expected a body in {encoding}, got invalid data: {error}") from None
    if len(inner) > max_body_bytes:
        raise TooLarge(max_body_bytes)
    if not inflater.eof:
        raise InvalidInput("content-encoding", f"expected a whole body in {encoding}, got a truncated one")
    if inflater.unused_data:
        raise InvalidInput(
            "content-encoding",
            f"expected the end of the body after its {encoding}, got {len(inflater.unused_data)} more bytes",
        )
    return inner


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
