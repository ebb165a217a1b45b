"""Detect poison requests: remember which requests crash their process, and refuse them for a while."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from frameworks.core.backoff import Elapsed

REFUSED_S = 60.0
"""Time after its last crash for which a request is refused."""

MAX_POISON_REQUESTS = 1024
"""Limit of the remembered requests; the one with the oldest crash is dropped first."""

# Two crashes with more time between them have other causes than the request that they have in common.
_FORGOTTEN_S = 600.0


@dataclass(frozen=True, slots=True)
class RefusalRule:
    """When a request is refused. `crashes`: their number; a request has as many runs, the interrupted ones included.

    `at_once_s`: crashes with less time between them have one cause, unless the request ran again in between.
    """

    crashes: int = 2
    at_once_s: float = 0.0


PROCESS_RULE = RefusalRule()
"""For a process that ends by crashes only."""


def digest_of(*parts: "bytes | bytearray | memoryview[Any]") -> bytes:
    """Return 16 bytes that identify a request. `parts`: its encoded bytes, and the contiguous bytes of its tensors."""
    digest = blake2b(digest_size=16)
    for part in parts:
        # The lengths keep apart what has the same bytes in other parts.
        digest.update(memoryview(part).nbytes.to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


class _CrashRecord:
    __slots__ = ("crashes", "last_crash")

    def __init__(self) -> None:
        self.crashes = 0
        self.last_crash: Elapsed


class PoisonRequests:
    """Digests of requests that were the only ones in execution when their process crashed. Owned by the event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        max_requests: int = MAX_POISON_REQUESTS,
        on_refused: Callable[[bytes], None] = lambda digest: None,
        rule: RefusalRule = PROCESS_RULE,
    ) -> None:
        """`clock`: seconds; it may jump. `on_refused`: called with the digest of a request that `crashed` refuses."""
        self._clock = clock
        self.rule = rule
        self._on_refused = on_refused
        self._max_requests = max_requests
        # The record of the latest crash is the last one.
        self._records: dict[bytes, _CrashRecord] = {}
        self._last_refusal: Elapsed | None = None

    def __len__(self) -> int:
        return len(self._records)

    @property
    def refuses_any(self) -> bool:
        """Whether a request may be refused. Only then is the digest of a request needed."""
        return self._last_refusal is not None and self._last_refusal.seconds() < REFUSED_S

    def crashed(self, digest: bytes, is_retry: bool = False) -> bool:
        """Note a crash with one request in execution. Returns whether the request is refused from now on.

        `is_retry`: it ran again after another crash.
        """
        record = self._records.pop(digest, None)
        if record is None or record.last_crash.seconds() >= _FORGOTTEN_S:
            record = _CrashRecord()
        has_same_cause = record.crashes and not is_retry and record.last_crash.seconds() < self.rule.at_once_s
        self._note(digest, record, record.crashes if has_same_cause else record.crashes + 1)
        if record.crashes < self.rule.crashes:
            return False
        self._on_refused(digest)
        return True

    def refuse(self, digest: bytes) -> None:
        """Refuse a request from now on: it has ended a process of the model in another worker."""
        self._note(digest, self._records.pop(digest, _CrashRecord()), self.rule.crashes)

    def completed(self, digest: bytes) -> None:
        """Forget a request that was answered when it ran alone."""
        self._records.pop(digest, None)

    def refused_for_s(self, digest: bytes) -> float:
        """Return the seconds for which the request is still refused; 0.0 where it is accepted."""
        record = self._records.get(digest)
        if record is None or record.crashes < self.rule.crashes:
            return 0.0
        return max(0.0, REFUSED_S - record.last_crash.seconds())

    def _note(self, digest: bytes, record: _CrashRecord, crashes: int) -> None:
        """Note a crash now. `record`: is not in the table."""
        record.crashes = crashes
        record.last_crash = Elapsed(self._clock)
        if len(self._records) >= self._max_requests:
            del self._records[next(iter(self._records))]
        self._records[digest] = record
        if crashes >= self.rule.crashes:
            self._last_refusal = record.last_crash
