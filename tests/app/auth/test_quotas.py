"""Limits of a tenant, compared with plain counts, with an injected clock."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from app.auth.errors import QuotaExceeded
from app.auth.quotas import LimitedPermit, TenantLimits, limits_by_tenant
from app.config.auth_settings import TenantSettings
from frameworks.core.errors import Overloaded
from frameworks.core.tenants import Tenant
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.byte_limit import ByteLimit
from tests.support.clocks import Clock
from tests.support.loops import in_loop

TENANT = Tenant("search")
optional_bounds = st.none() | st.integers(1, 4)


def limits_of(clock: Clock, server_bytes: ByteLimit | None = None, **limits: Any) -> TenantLimits:
    return TenantLimits(TenantSettings(name="search", **limits), server_bytes or ByteLimit(None), clock)


def admit(limits: TenantLimits, server: RequestLimit | None = None) -> LimitedPermit:
    return LimitedPermit(server or RequestLimit("the server", None, None), TENANT, limits)


@dataclass(eq=False)
class Holder:
    """A permit of one of the two tenants, and its expected state."""

    permit: Permit
    tenant: int
    is_queued: bool = False
    sequences: int = 0
    held_bytes: int = 0
    is_suspended: bool = False


class TwoTenants(RuleBasedStateMachine):
    """Requests of two tenants with limits share a bounded server and a language model, in any order."""

    holders: "Bundle[Holder]" = Bundle("holders")

    @initialize(
        server=st.tuples(optional_bounds, optional_bounds),
        bounds=st.lists(st.tuples(optional_bounds, optional_bounds, optional_bounds), min_size=2, max_size=2),
    )
    def create_limits(self, server: tuple[int | None, int | None], bounds: list[tuple[int | None, ...]]) -> None:
        self.clock = Clock()
        self.bytes = ByteLimit(6)
        self.server = RequestLimit("the server", *server, self.clock, self.bytes)
        self.model = RequestLimit("the model", None, None, self.clock)
        self.settings = [
            TenantSettings(
                name=f"t{i}",
                max_concurrent_requests=concurrent,
                max_waiting_sequences=sequences,
                max_buffered_bytes=most_bytes,
                requests_per_minute=60,
            )
            for i, (concurrent, sequences, most_bytes) in enumerate(bounds)
        ]
        self.limits = [TenantLimits(each, self.bytes, self.clock) for each in self.settings]
        self.buckets = [6.0, 6.0]
        self.admitted: list[Holder] = []

    def inflight(self, tenant: int | None = None) -> int:
        return sum(tenant in (None, each.tenant) and not each.is_suspended for each in self.admitted)

    def sequences(self, tenant: int | None = None) -> int:
        return sum(each.sequences for each in self.admitted if tenant in (None, each.tenant))

    def held_bytes(self, tenant: int | None = None) -> int:
        return sum(each.held_bytes for each in self.admitted if tenant in (None, each.tenant))

    def tenant_is_full(self, tenant: int) -> bool:
        most = self.settings[tenant].max_concurrent_requests
        return most is not None and self.inflight(tenant) >= most

    def server_is_full(self) -> bool:
        most, most_waiting = self.server.max_concurrent_requests, self.server.max_queue_size
        if most is not None and self.inflight() >= most:
            return True
        return most_waiting is not None and self.sequences() >= most_waiting

    @rule(target=holders, tenant=st.integers(0, 1))
    def admit(self, tenant: int) -> MultipleResults[Holder]:
        def create() -> Permit:
            return LimitedPermit(self.server, Tenant(f"t{tenant}"), self.limits[tenant])

        if self.tenant_is_full(tenant) or self.buckets[tenant] < 1 - 1e-9:
            with pytest.raises(QuotaExceeded, match=f'tenant "t{tenant}": ') as refused:
                create()
            assert 0 < refused.value.retry_after_s <= 601
            return multiple()
        if self.server_is_full():
            with pytest.raises(Overloaded, match="the server: "):
                create()
            return multiple()
        self.buckets[tenant] -= 1
        holder = Holder(create(), tenant)
        self.admitted.append(holder)
        return multiple(holder)

    @rule(holder=holders, sequences=st.sampled_from([1, 1, 2, 6]))
    def queue_sequences(self, holder: Holder, sequences: int) -> None:
        if holder not in self.admitted or holder.is_queued or holder.is_suspended:
            return
        most = self.settings[holder.tenant].max_waiting_sequences
        own, of_all = self.sequences(holder.tenant), self.sequences()
        if most is not None and own and own + sequences > most:
            with pytest.raises(QuotaExceeded, match="max_waiting_sequences"):
                holder.permit.queue_sequences(self.model, sequences)
        elif self.server.max_queue_size is not None and of_all and of_all + sequences > self.server.max_queue_size:
            with pytest.raises(Overloaded):
                holder.permit.queue_sequences(self.model, sequences)
        else:
            holder.permit.queue_sequences(self.model, sequences)
            holder.is_queued, holder.sequences = True, sequences

    @rule(holder=holders, more=st.integers(1, 4), is_forced=st.booleans())
    def hold_bytes(self, holder: Holder, more: int, is_forced: bool) -> None:
        if holder not in self.admitted:
            return
        hold = holder.permit.hold_bytes()
        most = self.settings[holder.tenant].max_buffered_bytes
        own, all_bytes = self.held_bytes(holder.tenant), self.held_bytes()
        if is_forced:
            hold.add(more)
        elif most is not None and own != holder.held_bytes and own + more > most:
            with pytest.raises(QuotaExceeded, match="max_buffered_bytes"):
                hold.grow(more)
            return
        elif all_bytes != holder.held_bytes and all_bytes + more > 6:
            with pytest.raises(Overloaded, match="max_buffered_bytes"):
                hold.grow(more)
            return
        else:
            hold.check_room(more)
            hold.grow(more)
        holder.held_bytes += more

    @rule(holder=holders)
    def suspend(self, holder: Holder) -> None:
        if holder in self.admitted and not holder.is_queued and not holder.is_suspended:
            holder.permit.suspend()
            holder.is_suspended = True

    @rule(holder=holders)
    def resume(self, holder: Holder) -> None:
        if holder not in self.admitted or not holder.is_suspended:
            return
        if self.tenant_is_full(holder.tenant):
            with pytest.raises(QuotaExceeded, match="max_concurrent_requests"):
                holder.permit.resume()
        elif self.server_is_full():
            with pytest.raises(Overloaded):
                holder.permit.resume()
        else:
            holder.permit.resume()
            holder.is_suspended = False

    @rule(holder=holders)
    def begin_text(self, holder: Holder) -> None:
        if holder in self.admitted and holder.is_queued:
            holder.permit.begin_text()
            holder.sequences = max(0, holder.sequences - 1)

    @rule(holder=consumes(holders))
    def release(self, holder: Holder) -> None:
        if holder in self.admitted:
            holder.permit.release()
            self.admitted.remove(holder)

    @rule(seconds=st.integers(0, 5))
    def time_passes(self, seconds: int) -> None:
        self.clock.now_s += seconds
        self.buckets = [min(6.0, level + seconds) for level in self.buckets]

    @invariant()
    def counts_match(self) -> None:
        if not hasattr(self, "admitted"):
            return
        assert (self.server.inflight, self.server.waiting) == (self.inflight(), self.sequences())
        assert self.bytes.held_bytes == self.held_bytes()
        for tenant, limits in enumerate(self.limits):
            assert limits.places.inflight == self.inflight(tenant)
            assert limits.waiting_sequences == self.sequences(tenant)
            if limits.byte_limit is not self.bytes:
                assert limits.byte_limit.held_bytes == self.held_bytes(tenant)

    def teardown(self) -> None:
        for holder in getattr(self, "admitted", []):
            holder.permit.release()
        self.admitted = []
        if hasattr(self, "server"):
            self.counts_match()


TwoTenants.TestCase.settings = settings(max_examples=75, stateful_step_count=40)
TestTwoTenants = TwoTenants.TestCase


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.integers(1, 50_000), st.floats(0, 60))
def test_retry_after_is_when_request_is_accepted(
    requests_per_minute: int, tokens_per_minute: int, tokens: int, idle_s: float
) -> None:
    """A request after that time is accepted, and one that arrives 2 ms earlier is refused."""
    clock = Clock()
    limits = limits_of(clock, requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute)
    clock.now_s += idle_s

    def flood() -> None:
        for _ in range(20_000):
            permit = admit(limits)
            assert permit.token_budget is not None
            permit.token_budget.use(tokens)
            permit.release()

    with pytest.raises(QuotaExceeded) as refused:
        flood()
    refused_at_s = clock.now_s
    clock.now_s = refused_at_s + refused.value.retry_after_s - 0.002
    if clock.now_s > refused_at_s:
        with pytest.raises(QuotaExceeded):
            admit(limits)
    clock.now_s = refused_at_s + refused.value.retry_after_s
    admit(limits)


def test_longest_wait_is_reported() -> None:
    limits = limits_of(Clock(), requests_per_minute=60, tokens_per_minute=600)
    for _ in range(6):
        admit(limits)
    with pytest.raises(QuotaExceeded, match="requests_per_minute: expected at most 60 requests") as refused:
        admit(limits)
    assert refused.value.retry_after_s == pytest.approx(1, abs=0.002)
    limits.use(660)
    with pytest.raises(QuotaExceeded, match="tokens_per_minute: expected at most 600 tokens") as refused:
        admit(limits)
    assert refused.value.retry_after_s == pytest.approx(60.1, abs=0.002)


def test_refused_request_is_not_charged() -> None:
    limits = limits_of(Clock(), requests_per_minute=600)
    assert limits.requests is not None
    full = RequestLimit("the server", None, 1)
    admit(limits, full)
    for _ in range(100):
        with pytest.raises(Overloaded):
            admit(limits, full)
    assert limits.requests.left() == pytest.approx(59)
    assert limits.places.inflight == 1


@in_loop
async def test_prompt_refused_once_others_used_tokens() -> None:
    """Several requests were admitted before the tokens of the first were known."""
    clock = Clock()
    limits = limits_of(clock, tokens_per_minute=600)
    first, second = admit(limits), admit(limits)
    assert first.token_budget is not None
    assert second.token_budget is not None
    await first.token_budget.start(500)
    with pytest.raises(QuotaExceeded, match="tokens_per_minute") as refused:
        await second.token_budget.start(1)
    clock.now_s += refused.value.retry_after_s
    await second.token_budget.start(1)


def test_limit_of_tenant_spares_others() -> None:
    clock = Clock()
    server = RequestLimit("the server", None, None, clock)
    one, other = limits_of(clock, max_concurrent_requests=1), limits_of(clock, max_concurrent_requests=1)
    admit(one, server)
    with pytest.raises(QuotaExceeded):
        admit(one, server)
    admit(other, server)
    Permit(server)


def test_only_tenants_with_limits_are_listed() -> None:
    tenants = [TenantSettings(name="free"), TenantSettings(name="bound", max_waiting_sequences=1)]
    assert list(limits_by_tenant(tenants, ByteLimit(None))) == ["bound"]
