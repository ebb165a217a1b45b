"""Find the key that a request presents, and compare its secret."""

import hmac
import re
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from urllib.parse import unquote_to_bytes

from app.auth.errors import Forbidden, Unauthenticated
from app.auth.failed_key_limit import Slowdown
from app.auth.key_store import KeyStore, StoredKey
from app.auth.keys import split_key
from app.auth.principal import Principal, Scope
from app.auth.verifier import SignatureVerifier, UseNonce

CREDENTIAL_HEADERS = (b"authorization", b"x-api-key")

_BEARER = b"Bearer "
_NO_DIGEST = bytes(32)
# Names of parameters that clients of other servers use, and any value that looks like a key.
_KEY_IN_QUERY = re.compile(
    rb"(?i:(?:^|[&;?])(?:x-)?(?:api[-_]?key|key|access[-_]token|token|authorization)=)|rh_[a-z0-9]{12}_"
)
_EXPECTED = 'expected "Authorization: Bearer rh_<id>_<secret>" or "x-api-key: rh_<id>_<secret>"'


class Authenticator:
    """Check keys. Any thread may call its methods; of a request only the text of a valid key is kept."""

    def __init__(
        self,
        keys: KeyStore,
        slowdown: Slowdown | None = None,
        now_s: Callable[[], float] = time.time,
        use_nonce: UseNonce | None = None,
    ) -> None:
        """`now_s`: Unix time in seconds, for the expiry of keys. `use_nonce`: None for nonces of this process alone."""
        self.slowdown = slowdown or Slowdown()
        """For refused requests, on the event loop."""
        self.signatures = SignatureVerifier(keys.find, now_s=now_s, use_nonce=use_nonce)
        """For requests with a signature in place of a key."""
        self.certificates = keys.certificates
        """For connections with a client certificate."""
        self.keys = keys
        """All keys, and whether requests need one."""
        self._now_s = now_s
        # The keys of one version of the keys file, and those of them that were presented, by their texts. A hit saves
        # the digest, whose code takes a request 6 µs beside all the other code of a request.
        self._known: tuple[Mapping[str, StoredKey], dict[bytes, StoredKey]] = (keys.by_id, {})

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return self.keys.required

    def authenticate(self, presented: bytes) -> StoredKey:
        """Return the key with this text. Raises Unauthenticated.

        An unknown id takes the same steps as a wrong secret, and has the same message.
        """
        by_id, by_text = self._known
        if by_id is not self.keys.by_id:
            by_id, by_text = self._known = (self.keys.by_id, {})
        # A text is compared only with one of the same hash, which has a secret seed: the time tells nothing of others.
        stored = by_text.get(presented)
        if stored is None:
            stored = by_text[presented] = _find(presented, by_id)
        expires_s = stored.key.expires_s
        if expires_s is not None and expires_s <= self._now_s():
            raise Unauthenticated("key: expected a valid key, got an expired one; rotate it", "expired")
        if stored.key.is_signed:
            raise Unauthenticated("signature: expected a signed request, got none; sign it, or use another key")
        return stored


def _find(presented: bytes, by_id: Mapping[str, StoredKey]) -> StoredKey:
    """Return the key with this text, which may have expired. Raises Unauthenticated."""
    parts = split_key(presented)
    if parts is None:
        raise Unauthenticated(f"key: {_EXPECTED}, got another text; send a whole key", "malformed", True)
    key_id, secret = parts
    stored = by_id.get(key_id)
    digest = _NO_DIGEST if stored is None else stored.key.secret_sha256
    is_equal = hmac.compare_digest(sha256(secret).digest(), digest)
    if stored is None or not is_equal:
        raise Unauthenticated(
            "key: expected a valid key, got an unknown or revoked one; create one with `roundhouse keys create`",
            "unknown",
            True,
        )
    return stored


def read_credentials(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the text of the presented key. `headers`: only those of CREDENTIAL_HEADERS. Raises Unauthenticated."""
    if len(headers) == 1 and headers[0][0] == b"authorization" and headers[0][1][:7] == _BEARER:
        return headers[0][1][7:]  # as most clients send it
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in found:
            raise Unauthenticated(f"{name.decode()}: expected one header, got several; send one key", "repeated")
        found[name] = value
    bearer, presented = found.get(b"authorization"), found.get(b"x-api-key")
    if bearer is not None:
        if bearer[:7] != _BEARER and bearer[:7].lower() != b"bearer ":
            raise Unauthenticated(f"authorization: {_EXPECTED}, got another scheme; send a key", "malformed", True)
        bearer = bearer[7:]
        if presented is not None and presented != bearer:
            raise Unauthenticated("x-api-key: expected the key of authorization, got another; send one", "repeated")
        return bearer
    if presented is None:
        raise Unauthenticated(f"key: {_EXPECTED}, got none; send the key of your tenant", "missing")
    return presented


def check_query(query: bytes) -> None:
    """Refuse a key in the query, which proxies and browsers keep. Raises Unauthenticated."""
    if _KEY_IN_QUERY.search(unquote_to_bytes(query) if b"%" in query else query):
        raise Unauthenticated("query: expected no key, got one; send it as header, and revoke this key", "query")


def check_scope(principal: Principal, scope: Scope) -> None:
    """Raise Forbidden if the key lacks the scope."""
    if scope not in principal.scopes:
        own = ", ".join(sorted(principal.scopes))
        raise Forbidden(f"scope: expected a key with scope {scope}, got {own}; use another key")
