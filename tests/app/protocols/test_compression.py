"""Compressed bodies: what comes is what went, bounded while it is decompress; which encoding an answer gets."""

import gzip
import random
import zlib
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.protocols.compression import choose_encoding, compress, decompress, parse_encoding
from app.protocols.errors import TooLarge, UnsupportedMediaType
from frameworks.errors import InvalidInput, Overloaded


def uncounted(_: int) -> None:
    """Count nothing."""


@given(st.binary(max_size=3000), st.sampled_from(["gzip", "deflate"]))
def test_compress_round_trip_is_exact(body: bytes, encoding: str) -> None:
    compressed = compress(body, encoding)
    assert decompress(compressed, encoding, len(body), uncounted) == body
    if encoding == "gzip":
        assert gzip.decompress(compressed) == body
        others = gzip.compress(body)
    else:
        assert zlib.decompress(compressed) == body
        others = zlib.compress(body)
    assert decompress(others, encoding, len(body), uncounted) == body


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_decompress_stops_at_the_limit(encoding: str) -> None:
    bomb = compress(bytes(10**7), encoding)
    assert len(bomb) < 10**5
    with pytest.raises(TooLarge, match="max_body_bytes, 1000000 bytes"):
        decompress(bomb, encoding, 10**6, uncounted)
    assert len(decompress(bomb, encoding, 10**7, uncounted)) == 10**7


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_decompress_counts_each_step(encoding: str) -> None:
    body = random.Random(1).randbytes(300_000) + bytes(9_700_000)
    steps: list[int] = []
    assert decompress(compress(body, encoding), encoding, 10**7, steps.append) == body
    assert sum(steps) == 10**7
    assert max(steps) <= 1024 * 1024
    steps.clear()

    def grow(more: int) -> None:
        steps.append(more)
        if sum(steps) > 3_000_000:
            raise Overloaded("full", 1)

    with pytest.raises(Overloaded):
        decompress(compress(body, encoding), encoding, 10**7, grow)
    assert sum(steps) <= 3_000_000 + 1024 * 1024


@given(st.integers(0, 3), st.integers(-2, 2))
@settings(max_examples=20)
def test_decompress_of_whole_steps_is_exact(steps: int, more: int) -> None:
    body = bytes(max(0, steps * 1024 * 1024 + more))
    assert decompress(gzip.compress(body), "gzip", len(body), uncounted) == body


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_decompress_refuses_invalid_data(encoding: str) -> None:
    whole = compress(b"a body" * 100, encoding)
    for body, words in (
        (b"{}", f"expected a body in {encoding}, got invalid data"),
        (whole[:-1], f"expected a whole body in {encoding}, got a truncated one"),
        (b"", f"expected a whole body in {encoding}, got a truncated one"),
        (whole + b"!!", f"expected the end of the body after its {encoding}, got 2 more bytes"),
        (whole[:20] + b"\0" + whole[21:], f"expected a body in {encoding}, got invalid data"),
        (
            compress(b"a", "deflate" if encoding == "gzip" else "gzip"),
            f"expected a body in {encoding}, got invalid data",
        ),
    ):
        with pytest.raises(InvalidInput, match=f"^content-encoding: {words}"):
            decompress(body, encoding, 1000, uncounted)


@given(st.binary(max_size=60), st.sampled_from(["gzip", "deflate"]))
def test_decompress_decodes_or_refuses_any_bytes(body: bytes, encoding: str) -> None:
    for candidate in (body, compress(body, encoding)[:-3] + body[:4]):
        with suppress(InvalidInput, TooLarge):
            assert len(decompress(candidate, encoding, 50, uncounted)) <= 50


@pytest.mark.parametrize(
    ("header", "encoding"),
    [(b"gzip", "gzip"), (b" X-GZIP ", "gzip"), (b"deflate", "deflate"), (b"identity", None), (b"", None)],
)
def test_parse_encoding_accepts_known_names(header: bytes, encoding: str | None) -> None:
    assert parse_encoding(header) == encoding


@pytest.mark.parametrize("header", [b"br", b"gzip, gzip", b"zstd", b"\xff"])
def test_parse_encoding_refuses_unknown_names(header: bytes) -> None:
    with pytest.raises(UnsupportedMediaType, match=r"^content-encoding: expected gzip, deflate or identity, got "):
        parse_encoding(header)


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
