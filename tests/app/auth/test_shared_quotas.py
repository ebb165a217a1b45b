"""Limits of tenants over several processes, each with views of its own of the same memory."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from app.auth.errors import QuotaExceeded
from app.auth.quotas import LimitedPermit, TenantLimits, limits_by_tenant
from app.auth.token_bucket import SharedTokenBucket, TokenBucket
from app.config.auth_settings import TenantSettings
from frameworks.scheduling.admission import RequestLimit
from frameworks.scheduling.byte_limit import ByteLimit
from frameworks.scheduling.shared_limits import SharedByteLimit, SharedLimits, SharedRequestLimit
from memory.shared_pairs import SharedPairs
from tests.app.auth.test_quotas import TENANT, TwoTenants, optional_bounds
from tests.support.clocks import Clock

PROCESSES = 3


@dataclass
class View:
    """The limits of one process."""

    bytes: ByteLimit
    server: RequestLimit
    model: RequestLimit
    limits: list[TenantLimits]


class SharedTenants(TwoTenants):
    """As TwoTenants; the requests of several processes."""

    @initialize(
        server=st.tuples(optional_bounds, optional_bounds),
        bounds=st.lists(st.tuples(optional_bounds, optional_bounds, optional_bounds), min_size=2, max_size=2),
    )
    def create_limits(self, server: tuple[int | None, int | None], bounds: list[tuple[int | None, ...]]) -> None:
        super().create_limits(server, bounds)
        shared = SharedLimits(PROCESSES, ["t0", "t1"])
        row = shared.allocate_row()
        self.views: list[View] = []
        for process in range(PROCESSES):
            shared.use(process)
            all_bytes = SharedByteLimit(shared.server(), 6)
            self.views.append(
                View(
                    all_bytes,
                    SharedRequestLimit(shared.server(), "the server", *server, self.clock, all_bytes),
                    SharedRequestLimit(shared.model(row), "the model", None, None, self.clock),
                    [TenantLimits(each, all_bytes, self.clock, shared.tenant(each.name)) for each in self.settings],
                )
            )
        self.switch(0)

    @rule(process=st.integers(0, PROCESSES - 1))
    def switch(self, process: int) -> None:
        """The next requests arrive at this process."""
        view = self.views[process]
        self.bytes, self.server, self.model, self.limits = view.bytes, view.server, view.model, view.limits


SharedTenants.TestCase.settings = settings(max_examples=75, stateful_step_count=40)
TestSharedTenants = SharedTenants.TestCase


@given(
    st.integers(1, 100_000),
    st.lists(st.tuples(st.floats(0, 10), st.integers(0, 2), st.integers(0, 10_000)), min_size=1, max_size=50),
)
def test_buckets_are_one_bucket(per_minute: int, charges: list[tuple[float, int, int]]) -> None:
    clock = Clock()
    alone = TokenBucket(per_minute, clock)
    pair = SharedPairs(1).pair(0)
    shared = [SharedTokenBucket(per_minute, pair, clock) for _ in range(PROCESSES)]
    for pause_s, process, amount in charges:
        clock.now_s += pause_s
        alone.charge(amount)
        shared[process].charge(amount)
        for bucket in shared:
            assert bucket.wait_s() == pytest.approx(alone.wait_s())
            assert bucket.left() == pytest.approx(alone.left())
            assert bucket.reset_s() == pytest.approx(alone.reset_s())


def test_clock_read_before_charge_adds_no_wait() -> None:
    """Another process charges the bucket after this one has read the clock."""
    clock = Clock()
    pair = SharedPairs(1).pair(0)
    bucket = SharedTokenBucket(600, pair, clock)
    with pair:
        pair.write(59.0, clock.now_s + 1e-3)
    assert bucket.wait_s() == 0


def test_limits_by_tenant_are_those_of_all() -> None:
    tenants = [TenantSettings(name="free"), TenantSettings(name="search", max_concurrent_requests=1)]
    shared = SharedLimits(2, ["search"])
    permits = []
    for process in range(2):
        shared.use(process)
        server_bytes = SharedByteLimit(shared.server(), None)
        limits = limits_by_tenant(tenants, server_bytes, shared)
        assert list(limits) == ["search"]
        if process:
            with pytest.raises(QuotaExceeded, match="expected at most 1 requests in flight, got 1 and 1 more"):
                LimitedPermit(RequestLimit("the server", None, None), TENANT, limits["search"])
        else:
            permits.append(LimitedPermit(RequestLimit("the server", None, None), TENANT, limits["search"]))
    permits[0].release()
    LimitedPermit(RequestLimit("the server", None, None), TENANT, limits["search"]).release()
    assert limits["search"].places.inflight == 0


class Interrupted(RequestLimit):
    """A server; another process does something while it admits a request."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__("the server", None, None)
        self.meanwhile = meanwhile

    def acquire(self) -> None:
        super().acquire()
        self.meanwhile()


def test_last_request_of_minute_taken_once() -> None:
    clock = Clock()
    shared = SharedLimits(2, ["search"])
    settings = TenantSettings(name="search", requests_per_minute=10, max_concurrent_requests=9)
    limits = []
    for process in range(2):
        shared.use(process)
        limits.append(TenantLimits(settings, ByteLimit(None), clock, shared.tenant("search")))
    first, second = limits
    server = Interrupted(lambda: LimitedPermit(RequestLimit("the server", None, None), TENANT, first).release())
    with pytest.raises(QuotaExceeded, match="requests_per_minute: expected at most 10 requests") as refused:
        LimitedPermit(server, TENANT, second)
    assert (server.inflight, second.places.inflight) == (0, 0)
    assert refused.value.retry_after_s == pytest.approx(6, abs=0.002)
    clock.now_s += refused.value.retry_after_s
    LimitedPermit(RequestLimit("the server", None, None), TENANT, second).release()
