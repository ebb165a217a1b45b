"""The limits of a tenant, and the permits of requests that are counted by them."""

import time
from collections.abc import Callable, Iterable
from math import floor

from app.auth.errors import QuotaExceeded
from app.auth.token_bucket import TokenBucket
from app.config.auth_settings import TenantSettings
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.byte_limit import ByteHold, ByteLimit
from frameworks.tenants import Tenant


class TenantLimits:
    """The limits of one tenant, and what its requests use of them. Owned by the event loop, except `byte_limit`."""

    def __init__(
        self, settings: TenantSettings, server_bytes: ByteLimit, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`server_bytes`: counts the tenant's bytes too. `clock`: in seconds."""
        self.owner = f'tenant "{settings.name}"'
        self.requests = TokenBucket(settings.requests_per_minute, clock) if settings.requests_per_minute else None
        self.tokens = TokenBucket(settings.tokens_per_minute, clock) if settings.tokens_per_minute else None
        self.byte_limit = server_bytes
        if settings.max_buffered_bytes is not None:
            name = f"{self.owner}: max_buffered_bytes"
            self.byte_limit = ByteLimit(settings.max_buffered_bytes, name, QuotaExceeded, server_bytes)
        self.places = RequestLimit(self.owner, None, settings.max_concurrent_requests, clock)
        """The tenant's requests in flight, and how fast they complete."""
        self.waiting_sequences = 0
        self._max_waiting_sequences = settings.max_waiting_sequences

    def check_room(self) -> None:
        """Raise QuotaExceeded if the next request has to be refused, for the limit that refuses it longest."""
        waits = [self._wait_for_place()] if self.places.inflight >= self.places.concurrency_bound else []
        for bucket, unit in ((self.requests, "requests"), (self.tokens, "tokens")):
            if bucket is not None and (wait_s := bucket.wait_s()):
                waits.append((wait_s, _rate_reason(bucket, unit)))
        if waits:
            raise self._refusal(*max(waits))

    def check_places(self) -> None:
        """Raise QuotaExceeded if as many requests are in flight as the tenant may have."""
        if self.places.inflight >= self.places.concurrency_bound:
            raise self._refusal(*self._wait_for_place())

    def check_sequences(self, sequences: int) -> None:
        """Raise QuotaExceeded if the tenant may not queue that many more. It may if none of its sequences waits."""
        most, waiting = self._max_waiting_sequences, self.waiting_sequences
        if most is not None and waiting and waiting + sequences > most:
            reason = (
                f"max_waiting_sequences: expected at most {most} waiting sequences, got {waiting} and {sequences} more"
            )
            to_complete = min(waiting + sequences - most, self.places.inflight)
            raise self._refusal(self.places.seconds_to_drain(to_complete), reason)

    async def start(self, tokens: int) -> None:
        """Count the tokens of a request that is about to run. Raises QuotaExceeded if the tenant has none left."""
        assert self.tokens is not None
        wait_s = self.tokens.wait_s()
        if wait_s:
            raise self._refusal(wait_s, _rate_reason(self.tokens, "tokens"))
        self.tokens.charge(tokens)

    def use(self, tokens: int) -> None:
        """Count generated tokens."""
        assert self.tokens is not None
        self.tokens.charge(tokens)

    def _wait_for_place(self) -> tuple[float, str]:
        most, inflight = self.places.max_concurrent_requests, self.places.inflight
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
        limits.check_room()
        super().__init__(server, tenant)
        limits.places.acquire()
        if limits.requests is not None:
            limits.requests.charge(1)
        self.token_budget = None if limits.tokens is None else limits
        self._limits = limits
        # Waiting ones, which the tenant's limit counts.
        self._sequences = 0

    def hold_bytes(self) -> ByteHold:
        if self.held_bytes is None:
            self.held_bytes = self._limits.byte_limit.hold()
        return self.held_bytes

    def suspend(self) -> None:
        super().suspend()
        self._limits.places.release(completed=False)

    def resume(self) -> None:
        """Take a place again. Raises QuotaExceeded, and Overloaded if the server is full."""
        self._limits.check_places()
        super().resume()
        self._limits.places.acquire()

    def queue_sequences(self, model: RequestLimit, sequences: int) -> None:
        """Queue a request for generated text. Raises QuotaExceeded, and Overloaded if the queue is full."""
        self._limits.check_sequences(sequences)
        super().queue_sequences(model, sequences)
        self._sequences = sequences
        self._limits.waiting_sequences += sequences

    def begin_text(self) -> None:
        super().begin_text()
        if self._sequences:
            self._sequences -= 1
            self._limits.waiting_sequences -= 1

    def release(self) -> None:
        super().release()
        self._limits.waiting_sequences -= self._sequences
        self._sequences = 0
        if not self._is_suspended:
            self._limits.places.release(self._has_begun)


def limits_by_tenant(tenants: Iterable[TenantSettings], server_bytes: ByteLimit) -> dict[str, TenantLimits]:
    """Return the limits of the tenants that have any, by name. `server_bytes`: counts the bytes of all requests."""
    return {tenant.name: TenantLimits(tenant, server_bytes) for tenant in tenants if tenant.has_limits}
