"""Read HTTP message signatures (RFC 9421) with `hmac-sha256`. The parser takes the canonical form only, within bounds.

Source: RFC 9421, sections 2 (components and signature base), 3.2 (verification) and 4 (fields).
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING, NamedTuple

from app.auth.errors import Unauthenticated

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

Header = tuple[bytes, bytes]

REQUIRED: tuple[bytes, ...] = (b"@method", b"@path", b"@query", b"content-digest")
"""Components that every signature covers. `@authority` and header fields may be added."""
MAX_INPUT_BYTES = 2048
MAX_COMPONENTS = 16

_FIELDS = (b"signature-input", b"signature", b"content-digest")
# That of the required components alone, in this order.
_USUAL_BASE = b'"@method": %b\n"@path": %b\n"@query": ?%b\n"content-digest": %b\n"@signature-params": %b'
_DERIVED = frozenset({b"@method", b"@path", b"@query", b"@authority"})
# A signature cannot cover itself.
_NOT_COVERED = frozenset({b"signature", b"signature-input"})
_MAX_CACHED_LISTS = 256
_MAX_CACHED_SECRETS = 1024

# RFC 2104: the bytes by which a key is changed for the two hashes, as tables for bytes.translate.
_HASH_BLOCK_BYTES = 64
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))

_NAME = rb"\"@?[a-z0-9!#$%&'*+.^_`|~-]{1,64}\""
_INPUT = re.compile(
    rb"([a-z*][a-z0-9_.*-]{0,31})="  # the label
    rb"((\(" + _NAME + rb"(?: " + _NAME + rb"){0,15}\))"  # the list of components
    rb"((?:;[a-z]{1,8}=(?:0|[1-9][0-9]{0,14}|\"[ !#-\[\]-~]{0,256}\")){1,8}))"  # parameters
)
# The form of most clients: one match in place of the parameters' parser.
_USUAL_INPUT = re.compile(
    rb"([a-z*][a-z0-9_.*-]{0,31})="
    rb"(\(\"@method\" \"@path\" \"@query\" \"content-digest\"\);created=(0|[1-9][0-9]{0,14})"
    rb";keyid=\"([ !#-\[\]-~]{0,256})\";nonce=\"([!#-\[\]-~]{16,128})\"(?:;alg=\"hmac-sha256\")?)"
)
_PARAMETER = re.compile(rb";([a-z]+)=(?:([0-9]+)|\"([^\"]*)\")")
_INTEGERS = frozenset({b"created", b"expires"})
_STRINGS = frozenset({b"keyid", b"nonce", b"alg", b"tag"})
_NONCE = re.compile(rb"[!#-\[\]-~]{16,128}")
_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}


class SignedRequest(NamedTuple):
    """The parts of a request that a signature covers, as sent. `query`: without `?`. Header names are lower-case."""

    method: bytes
    path: bytes
    query: bytes
    headers: Sequence[Header]
    scheme: bytes = b"http"


class RequestSignature(NamedTuple):
    """One signature of a request: the parsed `signature-input`, and the base64 of `signature`.

    `parameters`: the value of `@signature-params`, as sent. Times are in unix seconds.
    """

    components: tuple[bytes, ...]
    parameters: bytes
    key_id: str
    created_s: int
    expires_s: int | None
    nonce: bytes
    mac: bytes
    content_digest: bytes

    def is_made_with(self, secret: bytes, request: SignedRequest) -> bool:
        """Whether the holder of `secret` signed this request. Raises Unauthenticated for an absent component."""
        base = signature_base(self.components, self.parameters, request, self.content_digest)
        return compare_digest(b64encode(hmac_sha256(secret, base)), self.mac)


def hmac_sha256(secret: bytes, message: bytes) -> bytes:
    """Return the MAC, 32 bytes. `secret`: at most 64 bytes. The hashed halves of recent secrets are kept.

    Source: RFC 2104. hmac.digest sets up both halves again for each message, which takes three times as long.
    """
    keyed_inner, keyed_outer = _halves(secret)
    inner, outer = keyed_inner.copy(), keyed_outer.copy()
    inner.update(message)
    outer.update(inner.digest())
    return outer.digest()


def is_signed(headers: Iterable[Header]) -> bool:
    """Whether a request has a signature, valid or not."""
    for name, _ in headers:  # noqa: SIM110 - a generator takes three times as long, for each request without a key
        if name == b"signature-input":
            return True
    return False


def read_signature(headers: Sequence[Header]) -> RequestSignature:
    """Return the only signature of a request, unverified. Raises Unauthenticated."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _FIELDS:
            if name in found:
                raise _refusal(name.decode(), "expected one header with one signature, got several")
            found[name] = value.strip(b" \t")
    if len(found) < len(_FIELDS):
        absent = next(name for name in _FIELDS if name not in found)
        raise _refusal(absent.decode(), "expected the header of a signed request, got none")
    return _parse(found[b"signature-input"], found[b"signature"], found[b"content-digest"])


def signature_base(
    components: tuple[bytes, ...], parameters: bytes, request: SignedRequest, content_digest: bytes
) -> bytes:
    """Return the bytes that are signed (RFC 9421, section 2.5). Raises Unauthenticated for an absent component."""
    path = request.path or b"/"
    if components == REQUIRED:
        return _USUAL_BASE % (request.method, path, request.query, content_digest, parameters)
    values = {
        b"@method": request.method,
        b"@path": path,
        b"@query": b"?" + request.query,
        b"content-digest": content_digest,
    }
    lines = []
    for name in components:
        value = values[name] if name in values else _value_of(name, request)
        lines.append(b'"%b": %b\n' % (name, value))
    lines.append(b'"@signature-params": ' + parameters)
    return b"".join(lines)


@lru_cache(maxsize=_MAX_CACHED_SECRETS)
def _halves(secret: bytes) -> tuple["Hash", "Hash"]:
    assert len(secret) <= _HASH_BLOCK_BYTES
    padded = secret.ljust(_HASH_BLOCK_BYTES, b"\0")
    return sha256(padded.translate(_INNER)), sha256(padded.translate(_OUTER))


def _parse(given: bytes, mac: bytes, content_digest: bytes) -> RequestSignature:
    usual = _USUAL_INPUT.fullmatch(given) if len(given) <= MAX_INPUT_BYTES else None
    if usual is not None:
        label, parameters, created, key_id, nonce = usual.groups()
        components, created_s, expires_s = REQUIRED, int(created), None
    else:
        label, parameters, components, integers, strings = _parse_input(given)
        created_s, expires_s = integers[b"created"], integers.get(b"expires")
        key_id, nonce = strings[b"keyid"], strings[b"nonce"]
    if not mac.startswith(label + b"=:") or not mac.endswith(b":"):
        raise _refusal("signature", "expected one member with the label of signature-input, got another form")
    return RequestSignature(
        components,
        parameters,
        key_id.decode("ascii"),
        created_s,
        expires_s,
        nonce,
        mac[len(label) + 2 : -1],
        content_digest,
    )


def _parse_input(
    given: bytes,
) -> tuple[bytes, bytes, tuple[bytes, ...], dict[bytes, int], dict[bytes, bytes]]:
    """Return the label, the value, the components, the integers and the strings. Raises Unauthenticated."""
    match = _INPUT.fullmatch(given) if len(given) <= MAX_INPUT_BYTES else None
    if match is None:
        raise _refusal(
            "signature-input",
            'expected one member, label=("@method" "@path" …);created=…;keyid="…";nonce="…", in canonical form, '
            "got another form",
        )
    label, parameters, names, texts = match.groups()
    components = _components(names)
    integers, strings = _parameters(texts)
    if strings.get(b"alg", b"hmac-sha256") != b"hmac-sha256":
        raise _refusal("signature-input", "alg: expected hmac-sha256, got another algorithm")
    nonce = strings.get(b"nonce", b"")
    if b"created" not in integers or b"keyid" not in strings or not _NONCE.fullmatch(nonce):
        raise _refusal(
            "signature-input",
            "expected the parameters created, keyid and nonce (16 to 128 characters), got fewer or others",
        )
    return label, parameters, components, integers, strings


@lru_cache(maxsize=_MAX_CACHED_LISTS)
def _components(names: bytes) -> tuple[bytes, ...]:
    """Return the covered components of a list such as `("@method" "@path")`. Raises Unauthenticated."""
    components = tuple(name[1:-1] for name in names[1:-1].split(b" "))
    if len(components) > MAX_COMPONENTS or len(set(components)) < len(components):
        raise _refusal("signature-input", f"expected at most {MAX_COMPONENTS} different components, got others")
    absent = [name.decode() for name in REQUIRED if name not in components]
    if absent:
        raise _refusal("signature-input", f"expected also the components {', '.join(absent)}, got a list without them")
    for name in components:
        if name in _NOT_COVERED or (name.startswith(b"@") and name not in _DERIVED):
            raise _refusal(
                "signature-input",
                "expected @method, @path, @query, @authority and header fields as components, "
                f"got {name.decode('ascii')}",
            )
    return components


def _parameters(texts: bytes) -> tuple[dict[bytes, int], dict[bytes, bytes]]:
    """Return the integers and the strings among the parameters. Raises Unauthenticated."""
    integers: dict[bytes, int] = {}
    strings: dict[bytes, bytes] = {}
    count = 0
    for name, number, text in _PARAMETER.findall(texts):
        count += 1
        if number and name in _INTEGERS:
            integers[name] = int(number)
        elif not number and name in _STRINGS:
            strings[name] = text
        else:
            count += 1  # more than were kept
    if count != len(integers) + len(strings):
        raise _refusal(
            "signature-input",
            "expected created and expires (integers), keyid, nonce, alg and tag (strings), each once, got others",
        )
    return integers, strings


def _value_of(name: bytes, request: SignedRequest) -> bytes:
    """Return the value of `@authority` or of a header field (RFC 9421, section 2.1). Raises Unauthenticated."""
    wanted = b"host" if name == b"@authority" else name
    values = [value.strip(b" \t") for header, value in request.headers if header == wanted]
    if not values or (name == b"@authority" and len(values) > 1):
        raise _refusal("signature-input", f"expected components of this request, got {name.decode('ascii')}")
    if name == b"@authority":
        return values[0].lower().removesuffix(_DEFAULT_PORTS.get(request.scheme, b""))
    value = b", ".join(values)
    # A line break would make one value look like several components.
    if b"\n" in value or b"\r" in value:
        raise _refusal("signature-input", f"expected a value of one line in {name.decode('ascii')}, got several")
    return value


def _refusal(field: str, reason: str) -> Unauthenticated:
    return Unauthenticated(f"{field}: {reason}; see the manual, Security, Signatures")
