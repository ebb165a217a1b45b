"""The virtual clock: shares follow weights, no tenant starves, an idle tenant saves up nothing."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from frameworks.core.fairness import FairClock, TenantShare
from frameworks.core.tenants import Tenant

TENANTS = (Tenant("a", 1.0), Tenant("b", 3.0), Tenant("c", 0.5), Tenant("d", 1.0))
MAX_COST = 8.0
ROUNDING = 1e-6

tenants = st.sampled_from(TENANTS)
costs = st.floats(0.125, MAX_COST)
estimates = st.sampled_from([0.0, 1.0, 2.0])


class OneServer(RuleBasedStateMachine):
    """Tenants queue jobs; one server runs the first tenant's oldest job. Served cost is counted beside the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FairClock()
        self.jobs: dict[str, list[float]] = {tenant.name: [] for tenant in TENANTS}
        # For each pair of tenants with queued jobs: what each was served since both have had some.
        self.served: dict[tuple[str, str], list[float]] = {}

    @rule(tenant=tenants, cost=st.sampled_from([0.125, 1.0, MAX_COST]) | costs, times=st.sampled_from([1, 1, 2, 50]))
    def queue(self, tenant: Tenant, cost: float, times: int) -> None:
        for _ in range(times):
            self.clock.queue(self.clock.share(tenant))
            self.jobs[tenant.name].append(cost)
        self._track_pairs()

    @rule(tenant=tenants)
    def cancel(self, tenant: Tenant) -> None:
        if self.jobs[tenant.name]:
            self.jobs[tenant.name].pop()
            self.clock.unqueue(self.clock.share(tenant))
        self._track_pairs()

    @precondition(lambda self: any(self.jobs.values()))
    @rule(runs=st.sampled_from([1, 2, 40]), estimate=estimates, meanwhile=st.none() | tenants)
    def run(self, runs: int, estimate: float, meanwhile: Tenant | None) -> None:
        """`estimate`: of the expected cost, as a multiple of the actual one. `meanwhile`: queues a job in each run."""
        for _ in range(runs):
            queued = [self.clock.share(tenant) for tenant in TENANTS if self.jobs[tenant.name]]
            if not queued:
                break
            share = self.clock.first(queued)
            name = share.tenant.name
            cost = self.jobs[name].pop(0)
            expected = {share: cost * estimate}
            self.clock.start(expected)
            self.clock.unqueue(share)
            self._track_pairs()
            if meanwhile is not None:
                self.queue(meanwhile, 1.0, 1)
            self.clock.finish(expected, {share: cost})
            for pair, served in self.served.items():
                if name in pair:
                    served[pair.index(name)] += cost / share.tenant.weight

    @invariant()
    def shares_follow_weights(self) -> None:
        weights = {tenant.name: tenant.weight for tenant in TENANTS}
        for (one, other), (first, second) in self.served.items():
            # The paper's bound, and the run in which the later of both queued its first job.
            bound = 2 * (MAX_COST / weights[one] + MAX_COST / weights[other])
            assert abs(first - second) <= bound + ROUNDING, f"{one} was served {first}, {other} {second}"

    @invariant()
    def active_tenants_match_queued_jobs(self) -> None:
        assert self.clock.num_active == sum(bool(jobs) for jobs in self.jobs.values())

    def _track_pairs(self) -> None:
        names = [name for name, jobs in self.jobs.items() if jobs]
        self.served = {pair: self.served.get(pair, [0.0, 0.0]) for pair in itertools.combinations(names, 2)}


OneServer.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestOneServer = OneServer.TestCase


def serve(clock: FairClock, shares: list[TenantShare], cost: float) -> TenantShare:
    """Run one job of the first tenant, which queues the next one at once."""
    share = clock.first(shares)
    clock.start({share: cost})
    clock.finish({share: cost}, {share: cost})
    return share


@given(st.lists(st.sampled_from([0.5, 1.0, 3.0, 10.0]), min_size=2, max_size=5), costs)
def test_flooding_tenants_are_served_by_weight(weights: list[float], cost: float) -> None:
    clock = FairClock()
    shares = [clock.share(Tenant(str(i), weight)) for i, weight in enumerate(weights)]
    for share in shares:
        clock.queue(share)
    served = [serve(clock, shares, cost) for _ in range(400)]
    for share in shares:
        expected = 400 * share.tenant.weight / sum(weights)
        assert served.count(share) == pytest.approx(expected, abs=len(weights) + 1)


@given(st.lists(costs, min_size=1, max_size=50))
def test_idle_tenant_saves_up_nothing(while_idle: list[float]) -> None:
    clock = FairClock()
    busy, idle = clock.share(TENANTS[0]), clock.share(TENANTS[3])
    clock.queue(busy)
    for cost in while_idle:
        serve(clock, [busy], cost)
    clock.queue(idle)
    assert serve(clock, [busy, idle], MAX_COST) is idle
    # Its only advantage is the run that was in service when its work was queued.
    assert idle.time >= busy.time - while_idle[-1] + MAX_COST - ROUNDING


def test_new_tenant_is_next_despite_corrections() -> None:
    clock = FairClock()
    busy, other, late = (clock.share(TENANTS[i]) for i in (0, 3, 1))
    clock.queue(busy)
    clock.queue(other)
    expected = {busy: 4.0}
    clock.start(expected)
    clock.queue(late)
    clock.finish(expected, {busy: 0.5})
    serve(clock, [other, busy], 1.0)
    assert clock.first([busy, late]) is late


def test_lead_counts_active_tenants_only() -> None:
    clock = FairClock()
    one, other = clock.share(TENANTS[0]), clock.share(TENANTS[1])
    clock.queue(one)
    clock.queue(other)
    serve(clock, [one], 6.0)
    assert (clock.lead(one), clock.lead(other)) == (6.0, 0.0)
    clock.start({other: 3.0})
    clock.unqueue(other)
    assert clock.lead(one) == 5.0, "running work counts as queued work does"
    clock.finish({other: 3.0}, {other: 3.0})
    assert clock.lead(one) == 0.0


def test_idle_clock_forgets_leads() -> None:
    clock = FairClock()
    one, other = clock.share(TENANTS[0]), clock.share(TENANTS[3])
    clock.queue(one)
    clock.start({one: 5.0})
    clock.unqueue(one)
    clock.finish({one: 5.0}, {one: 5.0})
    clock.queue(one)
    clock.queue(other)
    assert one.time == other.time == 5.0


def test_cancelled_run_costs_nothing() -> None:
    clock = FairClock()
    share = clock.share(TENANTS[1])
    clock.queue(share)
    clock.start({share: 3.0})
    clock.finish({share: 3.0}, {})
    assert (share.time, share.running, share.queued) == (0.0, 0, 1)


def test_share_of_tenant_is_one_object() -> None:
    clock = FairClock()
    assert clock.share(TENANTS[0]) is clock.share(Tenant("a", 1.0))
    assert clock.share(TENANTS[0]) is not clock.share(TENANTS[1])
