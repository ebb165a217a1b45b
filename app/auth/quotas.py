"""The limits of a tenant, and the permits of requests that are counted by them."""

import time
from collections.abc import Callable, Iterable
from math import floor

from app.auth.errors import QuotaExceeded
from app.auth.token_bucket import TokenBucket, token_bucket
from app.config.auth_settings import TenantSettings
from frameworks.core.errors import Overloaded
from frameworks.core.tenants import Tenant
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.byte_limit import ByteHold, ByteLimit
from frameworks.scheduling.shared_limits import SharedLimits, TenantShare, byte_limit, request_limit


class TenantLimits:
    """The limits of one tenant, and what its requests use of them. Owned by the event loop, except `byte_limit`.

    Requests and sequences are counted before they are checked: two processes cannot both take the last slot.
    """

    def __init__(
        self,
        settings: TenantSettings,
        server_bytes: ByteLimit,
        clock: Callable[[], float] = time.monotonic,
        share: TenantShare | None = None,
    ) -> None:
        """`server_bytes`: counts the tenant's bytes too. `clock`: in seconds. `share`: the counts of all processes;
        None: of this one.
        """
        self.owner = f'tenant "{settings.name}"'
        row, requests, tokens = (None, None, None) if share is None else (share.row, share.requests, share.tokens)
        self.requests = token_bucket(requests, settings.requests_per_minute, clock)
        self.tokens = token_bucket(tokens, settings.tokens_per_minute, clock)
        self.byte_limit = server_bytes
        if settings.max_buffered_bytes is not None:
            name = f"{self.owner}: max_buffered_bytes"
            self.byte_limit = byte_limit(row, settings.max_buffered_bytes, name, QuotaExceeded, server_bytes)
        self.places = request_limit(row, self.owner, None, settings.max_concurrent_requests, clock)
        """The tenant's requests in flight, how fast they complete, and how many of their sequences wait."""
        self._max_waiting_sequences = settings.max_waiting_sequences

    @property
    def waiting_sequences(self) -> int:
        """The sequences that wait, of all processes that share the count."""
        return self.places.waiting

    def enter(self) -> None:
        """Count a request. Raises QuotaExceeded if it has to be refused, for the limit that refuses it longest."""
        self.places.acquire()
        waits = [self._wait_for_place()] if self._is_beyond() else []
        for bucket, unit in ((self.requests, "requests"), (self.tokens, "tokens")):
            if bucket is not None and (wait_s := bucket.wait_s()):
                waits.append((wait_s, _rate_reason(bucket, unit)))
        if waits:
            self.places.release(completed=False)
            raise self._refusal(*max(waits))

    def rate_refusal(self, wait_s: float) -> QuotaExceeded:
        """Return the error of a request if another process has taken the last one of the minute since `enter`."""
        assert self.requests is not None
        return self._refusal(wait_s, _rate_reason(self.requests, "requests"))

    def enter_again(self) -> None:
        """Count a request that was suspended. Raises QuotaExceeded if too many are in flight."""
        self.places.acquire()
        if self._is_beyond():
            wait = self._wait_for_place()
            self.places.release(completed=False)
            raise self._refusal(*wait)

    def add_sequences(self, sequences: int) -> None:
        """Count sequences that wait. Raises QuotaExceeded if they are too many; never if no others wait."""
        self.places.own_waiting += sequences
        most, waiting = self._max_waiting_sequences, self.waiting_sequences - sequences
        if most is not None and waiting and waiting + sequences > most:
            self.drop_sequences(sequences)
            reason = (
                f"max_waiting_sequences: expected at most {most} waiting sequences, got {waiting} and {sequences} more"
            )
            to_complete = min(waiting + sequences - most, self.places.inflight)
            raise self._refusal(self.places.seconds_to_drain(to_complete), reason)

    def drop_sequences(self, sequences: int) -> None:
        """Count sequences that do not wait any more."""
        self.places.own_waiting -= sequences

    async def start(self, tokens: int) -> None:
        """Count the tokens of a request that is about to run. Raises QuotaExceeded if the tenant has none left."""
        assert self.tokens is not None
        if wait_s := self.tokens.wait_s() or self.tokens.take(tokens):
            raise self._refusal(wait_s, _rate_reason(self.tokens, "tokens"))

    def use(self, tokens: int) -> None:
        """Count generated tokens."""
        assert self.tokens is not None
        self.tokens.charge(tokens)

    def _is_beyond(self) -> bool:
        """Return whether more requests are in flight than the tenant may have."""
        limit = self.places
        return limit.own_inflight > limit.own_concurrency_bound and limit.inflight > limit.concurrency_bound

    def _wait_for_place(self) -> tuple[float, str]:
        most, inflight = self.places.max_concurrent_requests, self.places.inflight - 1
        reason = f"max_concurrent_requests: expected at most {most} requests in flight, got {inflight} and 1 more"
        return self.places.seconds_to_drain(1), reason

    def _refusal(self, wait_s: float, reason: str) -> QuotaExceeded:
        # Rounded up: a request at that time is accepted.
        wait_s = (floor(wait_s * 1000) + 1) / 1000
        return QuotaExceeded(f"{self.owner}: {reason}; try again in {wait_s:.3f} s", wait_s)


def _rate_reason(bucket: TokenBucket, unit: str) -> str:
    return f"{unit}_per_minute: expected at most {bucket.per_minute} {unit} a minute, got more"


class LimitedPermit(Permit):
    """The permit of a request whose tenant has limits; it counts for the server and for the tenant."""

    __slots__ = ("_limits", "_sequences", "token_budget")

    def __init__(self, server: RequestLimit, tenant: Tenant, limits: TenantLimits) -> None:
        """Raises QuotaExceeded, and Overloaded if the server is full. A refused request counts for no limit."""
        limits.enter()
        try:
            super().__init__(server, tenant)
        except Overloaded:
            limits.places.release(completed=False)
            raise
        self.token_budget = None if limits.tokens is None else limits
        self._limits = limits
        # Waiting ones, which the tenant's limit counts.
        self._sequences = 0
        if limits.requests is not None and (wait_s := limits.requests.take(1)):
            self.release()
            raise limits.rate_refusal(wait_s)

    def hold_bytes(self) -> ByteHold:
        if self.held_bytes is None:
            self.held_bytes = self._limits.byte_limit.hold()
        return self.held_bytes

    def suspend(self) -> None:
        super().suspend()
        self._limits.places.release(completed=False)

    def resume(self) -> None:
        """Count among those in flight again. Raises QuotaExceeded, and Overloaded if the server is full."""
        self._limits.enter_again()
        try:
            super().resume()
        except Overloaded:
            self._limits.places.release(completed=False)
            raise

    def queue_sequences(self, model: RequestLimit, sequences: int) -> None:
        """Queue a request for generated text. Raises QuotaExceeded, and Overloaded if the queue is full."""
        self._limits.add_sequences(sequences)
        try:
            super().queue_sequences(model, sequences)
        except Overloaded:
            self._limits.drop_sequences(sequences)
            raise
        self._sequences = sequences

    def begin_text(self) -> None:
        super().begin_text()
        if self._sequences:
            self._sequences -= 1
            self._limits.drop_sequences(1)

    def release(self) -> None:
        super().release()
        if self._sequences:
            self._limits.drop_sequences(self._sequences)
            self._sequences = 0
        if not self._is_suspended:
            self._limits.places.release(self._has_begun)


def limits_by_tenant(
    tenants: Iterable[TenantSettings], server_bytes: ByteLimit, shared: SharedLimits | None = None
) -> dict[str, TenantLimits]:
    """Return the limits of the tenants that have any, by name.

    `server_bytes`: counts the bytes of all requests. `shared`: the counts of all processes, which was created with the
    names of these tenants; None: those of this process.
    """
    return {
        tenant.name: TenantLimits(tenant, server_bytes, share=None if shared is None else shared.tenant(tenant.name))
        for tenant in tenants
        if tenant.has_limits
    }
