"""Signed requests are verified with the keys that may sign, within their time, and once."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from http_message_signatures import (
    HTTPMessageSigner,
    HTTPMessageVerifier,
    InvalidSignature,
    MappingKeyResolver,
    algorithms,
)

from app.auth.errors import Unauthenticated
from app.auth.key_store import StoredKey
from app.auth.keys import Key, key_text
from app.auth.nonces import MAX_AGE_S, NonceStore
from app.auth.principal import Principal, Scope
from app.auth.signatures import SignedRequest
from app.auth.verifier import MAX_SKEW_S, SignatureVerifier
from frameworks.core.errors import Overloaded
from frameworks.core.tenants import DEFAULT_TENANT
from tests.support.clocks import Clock
from tests.support.loops import in_loop
from tests.support.signing import REQUIRED, content_digest, signed_headers

KEY_ID, SECRET = "abcdefghijk1", "s" * 43
KEY = key_text(KEY_ID, SECRET)
PLAIN_ID = "plainplain12"
BODY = b'{"input_data": [1.5]}'


@pytest.fixture
def clock() -> Clock:
    """Return Unix time that a test sets."""
    return Clock(1_700_000_000.0)


def keys(expires_s: float | None = None) -> dict[str, StoredKey]:
    digest = hashlib.sha256(SECRET.encode()).digest()
    scopes = frozenset({Scope.INFER})
    signed = Key(KEY_ID, "default", scopes, digest, 0.0, expires_s=expires_s, is_signed=True)
    plain = Key(PLAIN_ID, "default", scopes, digest, 0.0)
    return {key.key_id: StoredKey(key, Principal(DEFAULT_TENANT, key.key_id)) for key in (signed, plain)}


def signed_request(clock: Clock, key: str = KEY, age_s: float = 0, **options: object) -> SignedRequest:
    created = int(clock() - age_s)
    headers = signed_headers(key, "POST", "/infer?a=1", BODY, created=created, **options)  # type: ignore[arg-type]
    return request_with(headers)


def request_with(headers: dict[str, str]) -> SignedRequest:
    return SignedRequest(
        b"POST", b"/infer", b"a=1", [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    )


def test_signed_request_gets_its_key(clock: Clock) -> None:
    verified = SignatureVerifier(keys().get, now_s=clock).verify(signed_request(clock))
    assert verified.stored.principal.key_id == KEY_ID
    verified.digest.check(BODY)


@pytest.mark.parametrize(
    "key", [key_text("unknown12345", SECRET), key_text(KEY_ID, "t" * 43), key_text(PLAIN_ID, SECRET)]
)
def test_other_key_cannot_sign(clock: Clock, key: str) -> None:
    with pytest.raises(Unauthenticated, match="by a valid key that is marked signed") as refused:
        SignatureVerifier(keys().get, now_s=clock).verify(signed_request(clock, key))
    assert refused.value.is_guess


def test_expired_key_cannot_sign(clock: Clock) -> None:
    verifier = SignatureVerifier(keys(expires_s=clock() + 5).get, now_s=clock)
    verifier.verify(signed_request(clock))
    clock.now_s += 5
    with pytest.raises(Unauthenticated, match="got an expired one"):
        verifier.verify(signed_request(clock))


@pytest.mark.parametrize("age_s", [MAX_AGE_S + 1, -MAX_SKEW_S - 1])
def test_signature_outside_of_window_refused(clock: Clock, age_s: float) -> None:
    verifier = SignatureVerifier(keys().get, NonceStore(0), clock)
    with pytest.raises(Unauthenticated, match="signature: expected"):
        verifier.verify(signed_request(clock, age_s=age_s))


@pytest.mark.parametrize("age_s", [MAX_AGE_S, 0, -MAX_SKEW_S])
def test_signature_within_window_accepted(clock: Clock, age_s: float) -> None:
    verifier = SignatureVerifier(keys().get, NonceStore(0), clock)
    assert verifier.verify(signed_request(clock, age_s=age_s)).stored.key.key_id == KEY_ID


def test_signature_refused_after_its_expiry(clock: Clock) -> None:
    verifier = SignatureVerifier(keys().get, now_s=clock)
    expires = f";expires={int(clock()) + 10}"
    clock.now_s += 10
    verifier.verify(signed_request(clock, parameters=expires))
    clock.now_s += 1
    with pytest.raises(Unauthenticated, match="got an expired one"):
        verifier.verify(signed_request(clock, parameters=expires))


def test_concurrent_replays_accepted_once(clock: Clock) -> None:
    verifier, request = SignatureVerifier(keys().get, now_s=clock), signed_request(clock)

    def is_accepted(_: int) -> bool:
        try:
            verifier.verify(request)
        except Unauthenticated:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(is_accepted, range(64))) == 1


def test_wrong_signature_uses_no_nonce(clock: Clock) -> None:
    nonces = NonceStore(int(clock()), max_nonces=1)
    verifier = SignatureVerifier(keys().get, nonces, clock)
    with pytest.raises(Unauthenticated):
        verifier.verify(signed_request(clock, key_text(KEY_ID, "t" * 43), nonce="n" * 16))
    assert len(nonces) == 0
    verifier.verify(signed_request(clock, nonce="n" * 16))
    with pytest.raises(Overloaded):
        verifier.verify(signed_request(clock))


@in_loop
async def test_shared_nonce_is_used_by_the_caller() -> None:
    clock, used = Clock(), []

    async def use(key_id: str, nonce: bytes, created_s: int) -> None:
        used.append((key_id, nonce, created_s))

    verifier = SignatureVerifier(keys().get, now_s=clock, use_nonce=use)
    request = signed_request(clock, nonce="n" * 16)
    for _ in range(2):
        assert verifier.verify(request).stored.principal.key_id == KEY_ID
    assert (verifier.shares_nonces, used) == (True, [])
    await verifier.use_nonce(request.headers)
    assert used == [(KEY_ID, b"n" * 16, int(clock()))]


@in_loop
async def test_own_nonce_is_used_once() -> None:
    clock = Clock()
    verifier = SignatureVerifier(keys().get, now_s=clock)
    request = signed_request(clock)
    verifier.verify(request)
    await verifier.use_nonce(request.headers)
    with pytest.raises(Unauthenticated, match="nonce"):
        verifier.verify(request)


class Message:
    """A request as the library http-message-signatures takes it."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.method = "POST"
        self.url = "http://127.0.0.1:8080/infer?a=1"
        self.headers = headers


SHARED = hashlib.sha256(SECRET.encode()).digest()
RESOLVER = MappingKeyResolver(public_keys={KEY_ID: SHARED}, private_keys={KEY_ID: SHARED})


@pytest.mark.parametrize("further", [(), ("content-type", "@authority")])
def test_signature_of_library_accepted(further: tuple[str, ...]) -> None:
    # Before the signature, which is refused if it is older than the server.
    verifier = SignatureVerifier(keys().get)
    message = Message({"Content-Type": "application/json", "Host": "127.0.0.1:8080"})
    message.headers["Content-Digest"] = content_digest(BODY, "sha-512")
    signer = HTTPMessageSigner(signature_algorithm=algorithms.HMAC_SHA256, key_resolver=RESOLVER)
    components = (*REQUIRED, *further)
    signer.sign(
        message, key_id=KEY_ID, covered_component_ids=components, nonce="n" * 22, body=BODY, use_existing_digest=True
    )
    verified = verifier.verify(request_with(message.headers))
    verified.digest.check(BODY)


def test_library_accepts_signature_of_examples(clock: Clock) -> None:
    headers = signed_headers(KEY, "POST", "/infer?a=1", BODY)
    verifier = HTTPMessageVerifier(signature_algorithm=algorithms.HMAC_SHA256, key_resolver=RESOLVER)
    (result,) = verifier.verify(
        Message(headers), max_age=timedelta(seconds=MAX_AGE_S), require_components=REQUIRED, body=BODY
    )
    assert result.parameters["keyid"] == KEY_ID
    with pytest.raises(InvalidSignature):
        verifier.verify(Message(headers | {"content-digest": content_digest(b"other")}))
