"""Bodies that travel compressed: `gzip` and `deflate` (zlib's form, RFC 9110), within the bound that bodies have."""

import zlib

from app.protocols.errors import TooLarge, UnsupportedMediaType
from frameworks.errors import InvalidInput

MIN_COMPRESSED_BYTES = 1024
"""An answer below this is not worth compressing."""

# zlib's window_bits: which of its forms, with the largest window.
_FORMS = {"gzip": 31, "deflate": 15}
_NAMES = {"": None, "identity": None, "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
# The fastest: tensors are hardly made smaller by more work.
_LEVEL = 1


def parse_encoding(value: bytes) -> str | None:
    """What a content-encoding says: `gzip`, `deflate`, or None for a body that is as it is. Raises
    UnsupportedMediaType for any other.
    """
    name = value.decode("latin-1").strip().lower()
    if name not in _NAMES:
        raise UnsupportedMediaType(
            f'content-encoding "{name[:100]}" is not read; send gzip, deflate, or the body as it is'
        )
    return _NAMES[name]


def choose_encoding(accepted: bytes) -> str | None:
    """The best that an accept-encoding takes, gzip where it takes both alike; None: the answer goes as it is."""
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
    """What was compressed. Raises InvalidInput where it was not, or not so; TooLarge as soon as it gets too long."""
    inflater = zlib.decompressobj(_FORMS[encoding])
    try:
        inner = inflater.decompress(body, max_body_bytes + 1)
    except zlib.error as error:
        raise InvalidInput("content-encoding", f"the body is no {encoding}: {error}") from None
    if len(inner) > max_body_bytes:
        raise TooLarge(max_body_bytes)
    if not inflater.eof:
        raise InvalidInput("content-encoding", f"the body ends within its {encoding}")
    if inflater.unused_data:
        raise InvalidInput(
            "content-encoding", f"{len(inflater.unused_data)} bytes come after the end of the body's {encoding}"
        )
    return inner


def compress(body: bytes, encoding: str) -> bytes:
    """The body, compressed."""
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _FORMS[encoding])
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
