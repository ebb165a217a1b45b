"""Compressed bodies: exact round trips, bounds while they are decompressed, and the encoding of a response."""

import gzip
import random
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.protocols.shared import compression
from app.protocols.shared.compression import Encoding, Grow, body_encoding, choose_encoding, compress, parse_encoding
from app.protocols.shared.errors import EmptyBody, TooLarge, UnsupportedMediaType
from frameworks.core.errors import InvalidInput, Overloaded

zstd = pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}
"""The encodings of requests, by the libraries that clients use."""


def uncounted(_: int) -> None:
    """Count nothing."""


def decompress(body: bytes, name: str, max_body_bytes: int, grow: Grow, lead_bytes: int = 0) -> bytes:
    encoding = parse_encoding(name.encode())
    assert isinstance(encoding, Encoding)
    return compression.decompress(body, encoding, max_body_bytes, grow, lead_bytes)


@given(st.binary(min_size=1, max_size=3000), st.sampled_from(sorted(PACK)))
def test_decompress_of_whole_body_is_exact(body: bytes, encoding: str) -> None:
    assert decompress(PACK[encoding](body), encoding, len(body), uncounted) == body
    assert decompress(PACK[encoding](body), encoding, len(body), uncounted, lead_bytes=7) == bytes(7) + body


@given(st.binary(max_size=3000))
def test_compress_round_trip_is_exact(body: bytes) -> None:
    assert gzip.decompress(compress(body, "gzip")) == body
    assert zlib.decompress(compress(body, "deflate")) == body


@pytest.mark.parametrize("encoding", PACK)
def test_decompress_of_empty_body_is_refused(encoding: str) -> None:
    with pytest.raises(EmptyBody, match=f"^body: expected a JSON object, got an empty body in {encoding}; "):
        decompress(PACK[encoding](b""), encoding, 10, uncounted, lead_bytes=3)


@pytest.mark.parametrize("encoding", PACK)
def test_decompress_stops_at_the_limit(encoding: str) -> None:
    bomb = PACK[encoding](bytes(10**7))
    assert len(bomb) < 10**5
    with pytest.raises(TooLarge, match="max_body_bytes, 1000000 bytes"):
        decompress(bomb, encoding, 10**6, uncounted)
    assert len(decompress(bomb, encoding, 10**7, uncounted)) == 10**7


@pytest.mark.parametrize("encoding", PACK)
def test_decompress_counts_each_step(encoding: str) -> None:
    body = random.Random(1).randbytes(300_000) + bytes(9_700_000)
    steps: list[int] = []
    assert decompress(PACK[encoding](body), encoding, 10**7, steps.append) == body
    assert sum(steps) == 10**7
    assert max(steps) <= 1024 * 1024
    steps.clear()

    def grow(more: int) -> None:
        steps.append(more)
        if sum(steps) > 3_000_000:
            raise Overloaded("full", 1)

    with pytest.raises(Overloaded):
        decompress(PACK[encoding](body), encoding, 10**7, grow)
    assert sum(steps) <= 3_000_000 + 1024 * 1024


@given(st.integers(0, 3), st.integers(-2, 2))
@settings(max_examples=20)
def test_decompress_of_whole_steps_is_exact(steps: int, more: int) -> None:
    body = bytes(max(1, steps * 1024 * 1024 + more))
    for name, pack in PACK.items():
        assert decompress(pack(body), name, len(body), uncounted) == body


@pytest.mark.parametrize("encoding", PACK)
def test_decompress_refuses_invalid_data(encoding: str) -> None:
    whole = PACK[encoding](random.Random(2).randbytes(600))
    other = PACK["deflate" if encoding == "gzip" else "gzip"](b"a")
    for body, words in (
        (b"{}", f"expected a body in {encoding}, got invalid data"),
        (whole[:-1], f"expected a whole body in {encoding}, got a truncated one"),
        (b"", f"expected a whole body in {encoding}, got a truncated one"),
        (whole + b"!!", f"expected the end of the body after its {encoding}, got 2 more bytes"),
        (whole[:1] + b"\0" + whole[2:], f"expected a body in {encoding}, got invalid data"),
        (other, f"expected a body in {encoding}, got invalid data"),
    ):
        with pytest.raises(InvalidInput, match=f"^content-encoding: {words}"):
            decompress(body, encoding, 1000, uncounted)


def test_zstd_with_large_window_is_refused() -> None:
    """A window of 128 MiB would take memory that no bound counts."""
    level = zstd.CompressionParameter
    body = bytes(10**6)
    options = {level.window_log: 27, level.content_size_flag: 0}
    packer = zstd.ZstdCompressor(options=options)
    large = packer.compress(body) + packer.flush()
    with pytest.raises(InvalidInput, match=r"^content-encoding: expected a body in zstd, got invalid data"):
        decompress(large, "zstd", 10**7, uncounted)
    packer = zstd.ZstdCompressor(options=options | {level.window_log: 23})
    assert decompress(packer.compress(body) + packer.flush(), "zstd", 10**7, uncounted) == body


@given(st.binary(max_size=60), st.sampled_from(sorted(PACK)))
def test_decompress_decodes_or_refuses_any_bytes(body: bytes, encoding: str) -> None:
    for candidate in (body, PACK[encoding](body)[:-3] + body[:4]):
        with suppress(InvalidInput, TooLarge, EmptyBody):
            assert len(decompress(candidate, encoding, 50, uncounted)) <= 50


@pytest.mark.parametrize(
    ("value", "encoding"),
    [
        (b"gzip", "gzip"),
        (b" X-GZIP ", "gzip"),
        (b"deflate", "deflate"),
        (b"zstd", "zstd"),
        (b"identity", None),
        (b"", None),
    ],
)
def test_body_encoding_accepts_known_names(value: bytes, encoding: str | None) -> None:
    found = body_encoding([(b"host", b"x"), (b"content-encoding", value)])
    assert (found and found.name) == encoding
    assert body_encoding([(b"host", b"x")]) is None


@pytest.mark.parametrize("value", [b"br", b"gzip, gzip", b"\xff"])
def test_body_encoding_refuses_unknown_names(value: bytes) -> None:
    words = r"^content-encoding: expected gzip, deflate, zstd or identity, got .*; send the body in one of these$"
    with pytest.raises(UnsupportedMediaType, match=words):
        body_encoding([(b"content-encoding", value)])


def test_body_encoding_of_two_headers_is_refused() -> None:
    with pytest.raises(UnsupportedMediaType, match=r'got "gzip, gzip"'):
        body_encoding([(b"content-encoding", b"gzip"), (b"content-encoding", b"gzip")])


def test_zstd_without_its_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_ZSTD_MODULES", ("compression.no_zstd",))
    compression._encodings.cache_clear()
    try:
        with pytest.raises(UnsupportedMediaType, match=r'expected gzip, deflate or identity, got "zstd"'):
            parse_encoding(b"zstd")
    finally:
        compression._encodings.cache_clear()


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        (b"gzip", "gzip"),
        (b"deflate", "deflate"),
        (b"gzip, deflate, br", "gzip"),
        (b"deflate, GZIP", "gzip"),
        (b"gzip;q=0.5, deflate;q=0.8", "deflate"),
        (b"gzip ; q=0.5 , deflate; q=0.2", "gzip"),
        (b"*", "gzip"),
        (b"gzip;q=0, *", "deflate"),
        (b"*;q=0", None),
        (b"gzip;q=0", None),
        (b"gzip;q=0.5, identity", None),
        (b"identity;q=0.5, gzip", "gzip"),
        (b"br, zstd", None),
        (b"", None),
        (b"gzip;q=much, deflate;q=nan", None),
        (b"gzip;q=7", None),
        (b"gzip;level=9", "gzip"),
        (b"\xff;;,;q=1", None),
    ],
)
def test_choose_encoding_follows_qualities(accepted: bytes, encoding: str | None) -> None:
    assert choose_encoding(accepted) == encoding
