"""Refuse the second use of a signature: remember each nonce for as long as its signature is valid."""

from heapq import heappop, heappush
from threading import Lock

from app.auth.errors import Unauthenticated
from frameworks.core.errors import Overloaded

MAX_AGE_S = 300
"""Age above which a signature is refused; its nonce is kept until then."""

# The number of nonces that one call forgets, so that no call is long.
_MAX_FORGOTTEN = 64


class NonceStore:
    """The nonces of valid signatures, by key and by created time. Thread-safe.

    A nonce is forgotten when its signature is too old, and never before. The clock may be set back: a signature that is
    not newer than any forgotten one is refused.
    """

    def __init__(self, started_s: int, max_nonces: int = 1_000_000, max_of_key: int = 500_000) -> None:
        """`started_s`: unix time; older signatures may have been used before this process started.

        `max_nonces`: in all; one takes about 200 bytes. `max_of_key`: so that one key cannot fill the store.
        """
        self._forgotten_s = started_s - 1
        self._max_nonces = max_nonces
        self._max_of_key = max_of_key
        self._live: set[bytes] = set()
        self._of_key: dict[bytes, int] = {}
        self._by_second: dict[int, list[bytes]] = {}
        # A heap of the keys of `_by_second`.
        self._seconds: list[int] = []
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._live)

    def add(self, key_id: str, nonce: bytes, created_s: int, now_s: float) -> None:
        """Remember the nonce of a signature whose MAC and age were checked.

        Raises Unauthenticated if it was used, and Overloaded if the store is full.
        """
        key = key_id.encode("ascii")
        used = b"%b:%b" % (key, nonce)
        with self._lock:
            self._forget(now_s)
            if created_s <= self._forgotten_s:
                raise Unauthenticated(
                    "signature: expected one that was created after the server started, got an older one; "
                    "sign the request again"
                )
            if used in self._live:
                raise Unauthenticated(
                    "signature: expected a new nonce, got one that was used before; sign each request with its own"
                )
            self._check_room(key, now_s)
            self._live.add(used)
            self._of_key[key] = self._of_key.get(key, 0) + 1
            bucket = self._by_second.get(created_s)
            if bucket is None:
                bucket = self._by_second[created_s] = []
                heappush(self._seconds, created_s)
            bucket.append(used)

    def _check_room(self, key: bytes, now_s: float) -> None:
        if len(self._live) < self._max_nonces and self._of_key.get(key, 0) < self._max_of_key:
            return
        retry_after_s = max(1.0, self._seconds[0] + MAX_AGE_S + 1 - now_s)
        raise Overloaded(
            f"signature: expected at most {self._max_of_key} signed requests of a key and {self._max_nonces} in all "
            f"within {MAX_AGE_S} s, got one more; send it later",
            retry_after_s,
        )

    def _forget(self, now_s: float) -> None:
        """Forget nonces whose signatures are too old, the oldest first."""
        left = _MAX_FORGOTTEN
        while self._seconds and self._seconds[0] + MAX_AGE_S < now_s:
            second = self._seconds[0]
            self._forgotten_s = max(self._forgotten_s, second)
            bucket = self._by_second[second]
            while bucket and left:
                self._forget_one(bucket.pop())
                left -= 1
            if bucket:
                return
            heappop(self._seconds)
            del self._by_second[second]

    def _forget_one(self, used: bytes) -> None:
        self._live.discard(used)
        key = used.partition(b":")[0]
        self._of_key[key] -= 1
        if not self._of_key[key]:
            del self._of_key[key]
