"""Decompress request bodies within the limit of bodies, and compress responses.

Encodings: `gzip`, `deflate` (zlib's form, RFC 9110) and, where its library is installed, `zstd` (RFC 9659) of requests.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from importlib import import_module
from io import BytesIO
from typing import Any, NamedTuple

from app.protocols.shared.errors import EmptyBody, TooLarge, UnsupportedMediaType
from frameworks.core.errors import InvalidInput

MIN_COMPRESSED_BYTES = 1024
"""Shorter responses are sent uncompressed."""

Grow = Callable[[int], None]
"""Count more bytes of a request. Raises Overloaded if they do not fit."""

# zlib's `wbits`: the container, with the largest window.
_WINDOW_BITS = {"gzip": 31, "deflate": 15}
_UNCOMPRESSED = ("", "identity")
# The standard library has it from Python 3.14 on, the package backports.zstd before.
_ZSTD_MODULES = ("compression.zstd", "backports.zstd")
# RFC 9659: a decoder has to support windows up to 8 MiB. Larger ones would take memory that nothing counts.
_ZSTD_WINDOW_LOG = 23
# Compressed bytes that are read, and decompressed bytes that are made, at a time.
_PIECE_BYTES = 64 * 1024
_STEP_BYTES = 1024 * 1024
# The fastest level: higher ones hardly make tensors smaller.
_LEVEL = 1


class Encoding(NamedTuple):
    """A content-encoding of requests. `decompressor`: returns an object with the methods of zlib's."""

    name: str
    decompressor: Callable[[], Any]
    error: type[Exception]
    """Of invalid data."""


def body_encoding(headers: Sequence[tuple[bytes, bytes]]) -> Encoding | None:
    """Return the encoding of a body; None for an uncompressed one. Raises UnsupportedMediaType for an unknown one."""
    found = None
    for name, value in headers:
        if name == b"content-encoding":
            # Several headers are one list (RFC 9110, 5.3).
            found = value if found is None else b"%b, %b" % (found, value)
    return None if found is None else parse_encoding(found)


def parse_encoding(value: bytes) -> Encoding | None:
    """Return the encoding that a content-encoding names. As `body_encoding`."""
    name = value.decode("latin-1").strip().lower()
    if name in _UNCOMPRESSED:
        return None
    known = _encodings()
    if name not in known:
        names = ", ".join(each for each in known if not each.startswith("x-"))
        raise UnsupportedMediaType(
            f'content-encoding: expected {names} or identity, got "{name[:100]}"; send the body in one of these'
        )
    return known[name]


@lru_cache(maxsize=1)
def _encodings() -> dict[str, Encoding]:
    """Return the encodings by the names of headers. Imports the library of zstd, if there is one."""
    gzip, deflate = (
        Encoding(name, partial(zlib.decompressobj, _WINDOW_BITS[name]), zlib.error) for name in ("gzip", "deflate")
    )
    found = {"gzip": gzip, "x-gzip": gzip, "deflate": deflate}
    for module in _ZSTD_MODULES:
        try:
            zstd = import_module(module)
        except ImportError:
            continue
        options = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
        return found | {"zstd": Encoding("zstd", partial(zstd.ZstdDecompressor, options=options), zstd.ZstdError)}
    return found


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


def decompress(body: bytes, encoding: Encoding, max_body_bytes: int, grow: Grow, lead_bytes: int = 0) -> bytes:
    """Decompress a body in steps, behind `lead_bytes` bytes of padding; `grow` counts each step, and may raise.

    Raises InvalidInput for invalid data, EmptyBody for an empty result, and TooLarge as soon as it exceeds the limit.
    """
    name = encoding.name
    inflater = encoding.decompressor()
    # Its buffer becomes the result without a copy, unlike a joined list.
    inflated = BytesIO()
    inflated.write(bytes(lead_bytes))
    most_bytes = lead_bytes + max_body_bytes
    unread = len(body)
    try:
        for start in range(0, len(body), _PIECE_BYTES):
            if inflater.eof:
                break
            piece = body[start : start + _PIECE_BYTES]
            unread -= len(piece)
            for part in _inflate(inflater, piece):
                grow(len(part))
                if inflated.tell() + len(part) > most_bytes:
                    raise TooLarge(max_body_bytes)
                inflated.write(part)
    except encoding.error as error:
        raise InvalidInput("content-encoding", f"expected a body in {name}, got invalid data: {error}") from None
    if not inflater.eof:
        raise InvalidInput("content-encoding", f"expected a whole body in {name}, got a truncated one")
    unread += len(inflater.unused_data)
    if unread:
        raise InvalidInput(
            "content-encoding", f"expected the end of the body after its {name}, got {unread} more bytes"
        )
    if inflated.tell() == lead_bytes:
        raise EmptyBody(f"body: expected a JSON object, got an empty body in {name}; send the request as JSON")
    return inflated.getvalue()


def _inflate(inflater: Any, piece: bytes) -> Iterator[bytes]:
    """Yield what a piece of the body inflates to, in steps."""
    part = inflater.decompress(piece, _STEP_BYTES)
    yield part
    # A full step may have more behind it, also when all of the piece is consumed.
    while not inflater.eof and (len(part) == _STEP_BYTES or _tail(inflater)):
        part = inflater.decompress(_tail(inflater), _STEP_BYTES)
        yield part


def _tail(inflater: Any) -> bytes:
    """Return the part of a piece that is not consumed yet. The decompressor of zstd keeps it itself."""
    tail: bytes = getattr(inflater, "unconsumed_tail", b"")
    return tail


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
