"""Content digests are parsed strictly and compared with the bytes of the body."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth.digests import parse_digest
from app.auth.errors import Unauthenticated
from tests.support.signing import content_digest

BODY = b'{"hello": "world"}'
# RFC 9421, appendix B.2 and section 2.
SHA_512 = b"sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:"
SHA_256 = b"sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"


@pytest.mark.parametrize("value", [SHA_256, SHA_512, SHA_256 + b", " + SHA_512, SHA_512 + b",\t" + SHA_256])
def test_digest_of_rfc_example_matches(value: bytes) -> None:
    digest = parse_digest(value)
    digest.check(BODY)
    digest.check(memoryview(b"\0\0" + BODY)[2:])
    with pytest.raises(Unauthenticated, match="the body as sent"):
        digest.check(BODY + b"\n")


def test_each_of_two_digests_is_checked() -> None:
    other = content_digest(b"other", "sha-512").encode()
    with pytest.raises(Unauthenticated, match="sha-512"):
        parse_digest(SHA_256 + b", " + other).check(BODY)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b",",
        SHA_256 + b",",
        SHA_256 + b", " + SHA_256,
        SHA_256 + b", md5=:XUFAKrxLKna5cZ2REBfFkg==:",
        b"md5=:XUFAKrxLKna5cZ2REBfFkg==:",
        SHA_256.upper(),
        SHA_256.replace(b"=:", b"=", 1),
        SHA_256.replace(b"=:", b":", 1),
        SHA_256 + b";a=1",
        SHA_256.replace(b"sha-256", b"sha-512"),
        SHA_256 + b"\n",
        SHA_256 + b", " + SHA_512 + b" " * 200,
    ],
)
def test_digest_of_other_form_refused(value: bytes) -> None:
    with pytest.raises(Unauthenticated, match="content-digest: expected"):
        parse_digest(value)


def test_base64_with_other_trailing_bits_refused() -> None:
    # The last character of base64 holds two bits that no byte has.
    other = SHA_256.replace(b"E=:", b"F=:")
    with pytest.raises(Unauthenticated):
        parse_digest(other).check(BODY)


@given(st.binary(max_size=300))
def test_any_bytes_parse_or_are_refused(value: bytes) -> None:
    try:
        digest = parse_digest(value)
    except Unauthenticated:
        return
    assert {algorithm for algorithm, _ in digest.members} <= {b"sha-256", b"sha-512"}


@given(st.binary(max_size=200), st.binary(max_size=200), st.sampled_from(["sha-256", "sha-512"]))
def test_digest_accepts_its_own_body_only(body: bytes, other: bytes, algorithm: str) -> None:
    digest = parse_digest(content_digest(body, algorithm).encode())
    digest.check(body)
    if other != body:
        with pytest.raises(Unauthenticated):
            digest.check(other)
