"""Verify signed requests: the key, the age, the signature and the nonce, in this order, before the body is read."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from app.auth.digests import BodyDigest, parse_digest
from app.auth.errors import Unauthenticated
from app.auth.key_store import StoredKey
from app.auth.nonces import MAX_AGE_S, NonceStore
from app.auth.signatures import Header, RequestSignature, SignedRequest, read_signature

MAX_SKEW_S = 30
"""Seconds by which the clock of a client may be ahead."""

UseNonce = Callable[[str, bytes, int], Awaitable[None]]
"""Note the nonce of a signature in the store that several processes share: the id of the key, the nonce, and its
created time in unix seconds. Raises Unauthenticated if it was used, Overloaded and Draining if it cannot be noted."""

_NO_SECRET = bytes(32)


class VerifiedRequest(NamedTuple):
    """A request with a valid signature.

    Nothing of it is executed before `digest` has been checked, and nothing is answered before a shared nonce is noted.
    """

    stored: StoredKey
    digest: BodyDigest


class SignatureVerifier:
    """Any thread may call `verify`. One per process: a nonce is valid once for all listeners of the server."""

    def __init__(
        self,
        find_key: Callable[[str], StoredKey | None],
        nonces: NonceStore | None = None,
        now_s: Callable[[], float] = time.time,
        use_nonce: UseNonce | None = None,
    ) -> None:
        """`nonces`: None for an empty store. `now_s`: Unix time in seconds.

        `use_nonce`: of a process that has no store of its own. `verify` then notes no nonce: await `use_nonce` for each
        request that it accepts, before anything of the request is answered.
        """
        self._find_key = find_key
        self._now_s = now_s
        self._nonces: NonceStore | None = None
        if use_nonce is None:
            self._nonces = NonceStore(int(now_s())) if nonces is None else nonces
        self._use_nonce = use_nonce
        self.shares_nonces = use_nonce is not None
        """Whether `use_nonce` has to be awaited."""

    def verify(self, request: SignedRequest) -> VerifiedRequest:
        """Return the key of a request and the digest of its body. Only keys that are marked `signed` can sign.

        Raises Unauthenticated, and Overloaded if no more nonces can be remembered. An unknown key takes the same steps
        as a wrong signature, and has the same message.
        """
        signature = read_signature(request.headers)
        body_digest = parse_digest(signature.content_digest)
        now_s = self._now_s()
        _check_times(signature, now_s)
        stored = self._find_key(signature.key_id)
        if stored is not None and not stored.key.is_signed:
            # The keys file holds what signs: a reader of the file must gain no other key by it.
            stored = None
        is_valid = signature.is_made_with(_NO_SECRET if stored is None else stored.key.secret_sha256, request)
        if stored is None or not is_valid:
            raise Unauthenticated(
                "signature: expected one by a valid key that is marked signed, over this request, got another; "
                "compare the signature base with the manual",
                is_guess=True,
            )
        expires_s = stored.key.expires_s
        if expires_s is not None and expires_s <= now_s:
            raise Unauthenticated("key: expected a valid key, got an expired one; rotate it", "expired")
        if self._nonces is not None:
            self._nonces.add(stored.key.key_id, signature.nonce, signature.created_s, now_s)
        return VerifiedRequest(stored, body_digest)

    async def use_nonce(self, headers: Sequence[Header]) -> None:
        """Note the nonce of a request that `verify` has accepted. Without shared nonces, `verify` has noted it.

        `headers`: those that were verified. Raises Unauthenticated for a nonce that was used before, in any process;
        Overloaded and Draining if it cannot be noted.
        """
        if self._use_nonce is not None:
            signature = read_signature(headers)
            await self._use_nonce(signature.key_id, signature.nonce, signature.created_s)


def _check_times(signature: RequestSignature, now_s: float) -> None:
    age_s = now_s - signature.created_s
    if age_s > MAX_AGE_S:
        raise _wrong_time(f"one of at most {MAX_AGE_S} s, got one of {age_s:.0f} s; set the clock, or sign again")
    if -age_s > MAX_SKEW_S:
        raise _wrong_time(f"a created time up to now, got one in {-age_s:.0f} s; set the clock")
    if signature.expires_s is not None and signature.expires_s < now_s:
        raise _wrong_time("one that has not expired, got an expired one; sign again")


def _wrong_time(reason: str) -> Unauthenticated:
    return Unauthenticated(f"signature: expected {reason}")
