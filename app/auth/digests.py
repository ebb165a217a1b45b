"""Check the bytes of a body against the digests of its `content-digest` header (RFC 9530)."""

import hashlib
import re
from base64 import b64encode
from hmac import compare_digest
from typing import NamedTuple

from app.auth.errors import Unauthenticated

_HASHES = {b"sha-256": hashlib.sha256, b"sha-512": hashlib.sha512}
_MEMBER = re.compile(rb"(sha-256)=:([A-Za-z0-9+/]{43}=):|(sha-512)=:([A-Za-z0-9+/]{86}==):")
_MAX_LENGTH = 256

LONG_BYTES = 128 * 1024
"""Hashing more takes longer than 0.1 ms: it is done in a thread, without the interpreter's lock."""


class BodyDigest(NamedTuple):
    """The digests of one body, as sent: pairs of algorithm and base64."""

    members: tuple[tuple[bytes, bytes], ...]

    def check(self, body: bytes | memoryview) -> None:
        """Raise Unauthenticated unless every digest is that of `body`. SHA-256 reads more than 1 GB/s.

        Run it in a thread from LONG_BYTES on.
        """
        for algorithm, expected in self.members:
            digest = _HASHES[algorithm](body, usedforsecurity=True).digest()
            # The text is compared, so that only the canonical base64 of a digest passes.
            if not compare_digest(b64encode(digest), expected):
                raise Unauthenticated(
                    f"content-digest: expected the {algorithm.decode()} of the body as sent, got that of other bytes; "
                    "sign the bytes that are sent"
                )


def parse_digest(value: bytes) -> BodyDigest:
    """Parse a content-digest of `sha-256`, `sha-512` or both. Raises Unauthenticated."""
    only = _MEMBER.fullmatch(value)
    if only is not None:
        return BodyDigest(((only[1] or only[3], only[2] or only[4]),))
    texts = value.split(b",") if len(value) <= _MAX_LENGTH else []
    matches = [_MEMBER.fullmatch(text.strip(b" \t")) for text in texts]
    members = tuple((match[1] or match[3], match[2] or match[4]) for match in matches if match)
    if not members or len(members) < len(matches) or len(dict(members)) < len(members):
        raise Unauthenticated(
            "content-digest: expected sha-256=:…: or sha-512=:…: with the digest in base64, got another form; "
            "see RFC 9530"
        )
    return BodyDigest(members)
