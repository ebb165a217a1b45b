"""Signatures are parsed strictly and verified over the parts of the request that they cover."""

import base64
import hashlib
import hmac
import re
from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth import signatures
from app.auth.errors import Unauthenticated
from app.auth.signatures import (
    MAX_INPUT_BYTES,
    Header,
    RequestSignature,
    SignedRequest,
    hmac_sha256,
    read_signature,
    signature_base,
)
from tests.support.signing import signed_headers

KEY = "rh_abcdefghijk1_" + "s" * 43
SECRET = hashlib.sha256(b"s" * 43).digest()
CREATED = 1_618_884_473
BODY = b'{"hello": "world"}'
RFC_REQUEST = SignedRequest(
    b"POST",
    b"/foo",
    b"param=Value&Pet=dog",
    [
        (b"host", b"example.com"),
        (b"date", b"Tue, 20 Apr 2021 02:07:55 GMT"),
        (b"content-type", b"application/json"),
        (b"content-length", b"18"),
    ],
)


def headers(**changes: str) -> list[Header]:
    """Return the headers of a signed `POST /infer?a=1`; `changes`: other values, by name with underscores."""
    signed = signed_headers(KEY, "POST", "/infer?a=1", BODY, created=CREATED, nonce="n" * 16)
    signed |= {name.replace("_", "-"): value for name, value in changes.items()}
    return [(name.encode(), value.encode("latin-1")) for name, value in signed.items()]


def request_of(given: list[Header]) -> SignedRequest:
    return SignedRequest(b"POST", b"/infer", b"a=1", given)


def with_parameters(text: str) -> str:
    return f'sig=("@method" "@path" "@query" "content-digest"){text}'


def test_mac_agrees_with_rfc_vector() -> None:
    # RFC 9421, appendix B.2.5.
    key = base64.b64decode("uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ==")
    parameters = b'("date" "@authority" "content-type");created=1618884473;keyid="test-shared-secret"'
    base = signature_base((b"date", b"@authority", b"content-type"), parameters, RFC_REQUEST, b"")
    assert base == (
        b'"date": Tue, 20 Apr 2021 02:07:55 GMT\n"@authority": example.com\n"content-type": application/json\n'
        b'"@signature-params": ("date" "@authority" "content-type");created=1618884473;keyid="test-shared-secret"'
    )
    mac = hmac_sha256(key, base)
    assert base64.b64encode(mac) == b"pxcQw6G3AjtMBQjwo8XzkZf/bws5LelbaMk5rGIGtE8="


@given(secret=st.binary(max_size=64), message=st.binary(max_size=300))
def test_mac_agrees_with_library(secret: bytes, message: bytes) -> None:
    assert hmac_sha256(secret, message) == hmac.digest(secret, message, "sha256")


@given(
    created=st.from_regex(r"[0-9]{1,16}", fullmatch=True),
    key_id=st.text('a1 "\\;é', max_size=6),
    nonce=st.text('aZ0 "\\;', min_size=14, max_size=20),
    end=st.sampled_from(["", ';alg="hmac-sha256"', ';alg="hmac-sha512"', ";expires=5", ' ;tag="t"', "\n"]),
)
def test_usual_input_reads_as_any_other(created: str, key_id: str, nonce: str, end: str) -> None:
    text = with_parameters(f';created={created};keyid="{key_id}";nonce="{nonce}"{end}')
    usual = _outcome(headers(signature_input=text))
    with patch.object(signatures, "_USUAL_INPUT", re.compile(b"(?!)")):
        assert _outcome(headers(signature_input=text)) == usual


def _outcome(given: list[Header]) -> RequestSignature | str:
    try:
        return read_signature(given)
    except Unauthenticated as error:
        return str(error)


def test_base_agrees_with_rfc_example() -> None:
    # RFC 9421, appendix B.2.3: the same components, with another algorithm.
    digest = b"sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:"
    names = b"date @method @path @query @authority content-type content-digest content-length".split()
    text = b" ".join(b'"%b"' % name for name in names)
    parameters = b'(%b);created=1618884473;keyid="test-key-rsa-pss"' % text
    assert signature_base(tuple(names), parameters, RFC_REQUEST, digest).split(b"\n") == [
        b'"date": Tue, 20 Apr 2021 02:07:55 GMT',
        b'"@method": POST',
        b'"@path": /foo',
        b'"@query": ?param=Value&Pet=dog',
        b'"@authority": example.com',
        b'"content-type": application/json',
        b'"content-digest": ' + digest,
        b'"content-length": 18',
        b'"@signature-params": ' + parameters,
    ]


def test_signature_of_client_is_valid() -> None:
    signature = read_signature(headers())
    assert signature.key_id == "abcdefghijk1"
    assert signature.created_s == CREATED
    assert signature.expires_s is None
    assert signature.nonce == b"n" * 16
    assert signature.is_made_with(SECRET, request_of(headers()))
    assert not signature.is_made_with(hashlib.sha256(b"other").digest(), request_of(headers()))


def test_order_of_components_and_parameters_is_free() -> None:
    names = '("content-digest" "@query" "x-a" "@path" "@method")'
    parameters = f'{names};nonce="{"n" * 16}";tag="t";keyid="abcdefghijk1";expires={CREATED + 5};created={CREATED}'
    given = [*headers(signature_input=f"*a-b.c_1={parameters}"), (b"x-a", b" one\t"), (b"x-a", b"two")]
    digest = dict(given)[b"content-digest"]
    base = b'"content-digest": %b\n"@query": ?a=1\n"x-a": one, two\n"@path": /infer\n"@method": POST\n' % digest
    base += b'"@signature-params": ' + parameters.encode()
    mac = base64.b64encode(hmac.digest(SECRET, base, "sha256"))
    given = [(name, b"*a-b.c_1=:%b:" % mac if name == b"signature" else value) for name, value in given]
    signature = read_signature(given)
    assert signature.expires_s == CREATED + 5
    assert signature.is_made_with(SECRET, request_of(given))


@pytest.mark.parametrize(
    ("scheme", "host", "authority"),
    [
        (b"http", b"Example.COM", b"example.com"),
        (b"http", b"example.com:80", b"example.com"),
        (b"https", b"example.com:443", b"example.com"),
        (b"https", b"example.com:80", b"example.com:80"),
        (b"http", b"[::1]:8080", b"[::1]:8080"),
    ],
)
def test_authority_is_normalised(scheme: bytes, host: bytes, authority: bytes) -> None:
    request = SignedRequest(b"GET", b"/", b"", [(b"host", host)], scheme)
    assert signature_base((b"@authority",), b"()", request, b"").startswith(b'"@authority": %b\n' % authority)


@pytest.mark.parametrize("name", ["signature-input", "signature", "content-digest"])
def test_missing_or_repeated_header_refused(name: str) -> None:
    given = headers()
    with pytest.raises(Unauthenticated, match=f"{name}: expected the header"):
        read_signature([each for each in given if each[0] != name.encode()])
    with pytest.raises(Unauthenticated, match=f"{name}: expected one header"):
        read_signature([*given, *(each for each in given if each[0] == name.encode())])


PARAMETERS = f';created={CREATED};keyid="abcdefghijk1";nonce="{"n" * 16}"'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sig",
        "sig=()",
        "sig=?1",
        'sig="@method"',
        with_parameters(""),
        with_parameters(PARAMETERS) + ",",
        with_parameters(PARAMETERS) + ", other=()",
        with_parameters(PARAMETERS) + ";unknown=1",
        with_parameters(PARAMETERS) + ";unknown",
        with_parameters(PARAMETERS) + f";created={CREATED}",
        with_parameters(PARAMETERS) + ';alg="hmac-sha512"',
        with_parameters(PARAMETERS) + ";alg=hmac-sha256",
        with_parameters(PARAMETERS) + ";expires=1.5",
        with_parameters(PARAMETERS) + ";expires=-1",
        with_parameters(PARAMETERS) + ';tag="a\\"b"',
        with_parameters(PARAMETERS.replace(";keyid", "; keyid")),
        with_parameters(PARAMETERS.replace("created=", "created=0")),
        with_parameters(PARAMETERS.replace(f"created={CREATED}", f'created="{CREATED}"')),
        with_parameters(PARAMETERS.replace("n" * 16, "n" * 15)),
        with_parameters(PARAMETERS.replace("n" * 16, "n" * 129)),
        with_parameters(PARAMETERS.replace("n" * 16, "n" * 15 + " ")),
        with_parameters(PARAMETERS.replace("n" * 16, "n" * 15 + "\xe4")),
        with_parameters(PARAMETERS.replace(";keyid", ";kid")),
        with_parameters(PARAMETERS).replace('"@path" ', ""),
        with_parameters(PARAMETERS).replace('"@method" ', ""),
        with_parameters(PARAMETERS).replace('"@query" ', ""),
        with_parameters(PARAMETERS).replace(' "content-digest"', ""),
        with_parameters(PARAMETERS).replace('"@path"', '"@path" "@path"'),
        with_parameters(PARAMETERS).replace('"@path"', '"@path";req'),
        with_parameters(PARAMETERS).replace('"@path"', '"@path"  '),
        with_parameters(PARAMETERS).replace('"@path"', '"@path" "signature"'),
        with_parameters(PARAMETERS).replace('"@path"', '"@path" "@status"'),
        with_parameters(PARAMETERS).replace('"@path"', '"@path" "@target-uri"'),
        with_parameters(PARAMETERS).replace('"@path"', '"@path" "Date"'),
        with_parameters(PARAMETERS).replace('"@path"', '"@path" ' + " ".join(f'"x-{i}"' for i in range(13))),
        with_parameters(PARAMETERS) + f';tag="{"t" * MAX_INPUT_BYTES}"',
        with_parameters(PARAMETERS).replace("sig=", "Sig="),
        with_parameters(PARAMETERS).replace("sig=", "s" * 33 + "="),
    ],
)
def test_signature_input_of_other_form_refused(text: str) -> None:
    with pytest.raises(Unauthenticated, match=r"signature-input: .*expected"):
        read_signature(headers(signature_input=text))


@pytest.mark.parametrize(
    "text", ["", "sig=", "sig=:", "other=:AAAA:", "sig=AAAA", "sig=:AAAA:;a=1", "sig=:AAAA:, b=:AAAA:"]
)
def test_signature_of_other_form_refused(text: str) -> None:
    try:
        signature = read_signature(headers(signature=text))
    except Unauthenticated:
        return
    assert not signature.is_made_with(SECRET, request_of(headers()))


@pytest.mark.parametrize("change", [lambda mac: mac.rstrip(":") + "=:", lambda mac: mac[:5] + " " + mac[5:], str.lower])
def test_mac_in_other_base64_refused(change: object) -> None:
    assert callable(change)
    given = headers(signature=change(dict(headers())[b"signature"].decode()))
    assert not read_signature(given).is_made_with(SECRET, request_of(given))


@pytest.mark.parametrize("given", [[], [(b"x-a", b'one\n"@path": /other')], [(b"x-a", b"one\rtwo")]])
def test_covered_header_absent_or_broken_refused(given: list[Header]) -> None:
    with pytest.raises(Unauthenticated, match="x-a"):
        signature_base((b"x-a",), b"()", request_of(given), b"")


@pytest.mark.parametrize("given", [[], [(b"host", b"a"), (b"host", b"b")]])
def test_authority_without_one_host_refused(given: list[Header]) -> None:
    with pytest.raises(Unauthenticated, match="@authority"):
        signature_base((b"@authority",), b"()", request_of(given), b"")


TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='?"\\\\'), max_size=20)


class Parts(NamedTuple):
    """The signed parts of a request."""

    method: str
    path: str
    query: str
    body: bytes
    created: int
    nonce: str
    key_id: str

    def sign(self) -> list[Header]:
        signed = signed_headers(
            f"rh_{self.key_id}_{'s' * 43}",
            self.method,
            f"{self.path}?{self.query}",
            self.body,
            created=self.created,
            nonce=self.nonce,
        )
        return [(name.encode(), value.encode()) for name, value in signed.items()]

    def request(self) -> SignedRequest:
        return SignedRequest(self.method.encode(), self.path.encode(), self.query.encode(), [])


PARTS = st.builds(
    Parts,
    st.sampled_from(["GET", "POST", "DELETE"]),
    TEXT.map("/{}".format),
    TEXT,
    st.binary(max_size=20),
    st.integers(0, 10**12),
    TEXT.map("{}nnnnnnnnnnnnnnnn".format),
    st.from_regex(r"[a-z0-9]{12}", fullmatch=True),
)


@given(PARTS, PARTS, st.sampled_from(Parts._fields))
def test_any_change_makes_signature_invalid(one: Parts, other: Parts, changed: str) -> None:
    first = one.sign()
    assert read_signature(first).is_made_with(SECRET, one.request())
    second = one._replace(**{changed: getattr(other, changed)})
    if second == one:
        return
    # The MAC of the first request with all else of the second.
    mac = (b"signature", dict(first)[b"signature"])
    mixed = [mac if pair[0] == b"signature" else pair for pair in second.sign()]
    assert not read_signature(mixed).is_made_with(SECRET, second.request())


@given(st.binary(max_size=400), st.binary(max_size=100), st.binary(max_size=100))
def test_any_bytes_are_refused_as_signature(given_input: bytes, mac: bytes, digest: bytes) -> None:
    given = [(b"signature-input", given_input), (b"signature", mac), (b"content-digest", digest)]
    with pytest.raises(Unauthenticated):
        read_signature(given)


VALID = dict(headers())[b"signature-input"]


@given(st.integers(0, len(VALID)), st.integers(0, 3), st.binary(max_size=4))
def test_edited_signature_input_never_verifies(start: int, removed: int, added: bytes) -> None:
    edited = VALID[:start] + added + VALID[start + removed :]
    if edited.strip(b" \t") == VALID:
        return
    given = [(name, edited if name == b"signature-input" else value) for name, value in headers()]
    try:
        signature = read_signature(given)
    except Unauthenticated:
        return
    assert not signature.is_made_with(SECRET, request_of(given))
