"""Divide a device among tenants by weight: the virtual clock of start-time fair queueing. Pure: it reads no clock.

Source: P. Goyal, H. M. Vin, H. Cheng, "Start-time Fair Queueing", SIGCOMM 1996, section 3. Runs may overlap, as in
SFQ(D): W. Jin, J. S. Chase, J. Kaur, "Interposed Proportional Sharing", SIGMETRICS 2004.
"""

from collections.abc import Iterable, Mapping

from frameworks.core.tenants import Tenant


class TenantShare:
    """One tenant on one clock. Its clock is the only writer.

    `time`: the start tag of the tenant's next run, its cost so far divided by its weight. `pending`: the part of it
    that is expected of runs in progress. `queued`, `running`: units of work, as the callers of the clock count them.
    `last_run`: the number of the run that it was in last.
    """

    __slots__ = ("last_run", "pending", "queued", "running", "tenant", "time")

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.time = 0.0
        self.pending = 0.0
        self.queued = 0
        self.running = 0
        self.last_run = 0

    @property
    def is_active(self) -> bool:
        """Whether the tenant has queued or running work."""
        return self.queued > 0 or self.running > 0

    def __repr__(self) -> str:
        return f'<share of "{self.tenant.name}" at {self.time:.6g}, {self.queued} queued, {self.running} running>'


class FairClock:
    """The virtual times of all tenants of one device, or of one model. Used by one thread.

    The caller always runs work of the tenant that is `first`, and reports work that is queued, runs and ends. Costs are
    in one unit, such as device seconds or tokens. Compare the costs of two tenants with queued work, each divided by
    its weight: they differ by at most one run of each, apart from errors of the estimates of runs in progress. A tenant
    without queued work gains no credit: its next work starts at the virtual time. That is the least start tag among
    the tenants with queued work; for a tenant in a run, the tag of that run.
    """

    def __init__(self) -> None:
        self._shares: dict[str, TenantShare] = {}
        self._active: dict[str, TenantShare] = {}
        self._num_runs = 0
        # The largest time of any tenant: where the next busy period starts.
        self._latest = 0.0
        self.num_active = 0
        """The number of tenants with queued or running work. An attribute, as it is read for each short run."""

    def share(self, tenant: Tenant) -> TenantShare:
        """Return the share of a tenant on this clock, always the same object."""
        share = self._shares.get(tenant.name)
        if share is None:
            share = self._shares[tenant.name] = TenantShare(tenant)
        return share

    def queue(self, share: TenantShare) -> None:
        """Note a unit of queued work. The first one starts at the virtual time, or at the tenant's own later time."""
        if not share.queued:
            self._advance(share)
        share.queued += 1
        self._note_active(share)

    def unqueue(self, share: TenantShare) -> None:
        """Note that a unit is not queued any more: it was cancelled, or `start` was called with it."""
        assert share.queued > 0, f"unit was not queued: {share}"
        share.queued -= 1
        self._forget_inactive(share)

    def start(self, costs: Mapping[TenantShare, float]) -> None:
        """Note that a run starts, and charge each tenant of it the expected cost. Call it before `unqueue`."""
        self._num_runs += 1
        for share, cost in costs.items():
            share.running += 1
            share.last_run = self._num_runs
            share.pending += cost / share.tenant.weight
            self.charge(share, cost)
            self._note_active(share)

    def finish(self, costs: Mapping[TenantShare, float], actual: Mapping[TenantShare, float]) -> None:
        """Note that a run ended. `costs`: as passed to `start`. `actual`: the cost to charge instead, absent: none."""
        for share, cost in costs.items():
            assert share.running > 0, f"unit was not running: {share}"
            self.charge(share, actual.get(share, 0.0) - cost)
            share.running -= 1
            # Exactly zero without a run, as the differences of floats add up.
            share.pending = share.pending - cost / share.tenant.weight if share.running else 0.0
            self._forget_inactive(share)

    def ran(self, costs: Mapping[TenantShare, float]) -> None:
        """Note a run that has ended, and charge each tenant of it its cost: `start` and `finish` at once."""
        self._num_runs += 1
        for share, cost in costs.items():
            share.last_run = self._num_runs
            share.time += cost / share.tenant.weight
            self._latest = max(self._latest, share.time)

    def charge(self, share: TenantShare, cost: float) -> None:
        """Charge a tenant a cost; a negative one corrects an estimate."""
        share.time += cost / share.tenant.weight
        self._latest = max(self._latest, share.time)

    def lead(self, share: TenantShare) -> float:
        """Return how far a tenant's time is ahead of the least time of the active tenants; 0 if there is none."""
        return max(0.0, share.time - min((each.time for each in self._active.values()), default=share.time))

    @staticmethod
    def first(candidates: Iterable[TenantShare]) -> TenantShare:
        """Return the share with the least time; of equal ones that of the least recent run. Needs at least one."""
        return min(candidates, key=lambda share: (share.time, share.last_run))

    def _advance(self, share: TenantShare) -> None:
        """Move a tenant that had no queued work to the virtual time."""
        others = [each for each in self._active.values() if each is not share]
        if others:
            backlogged = [each for each in others if each.queued] or others
            share.time = max(share.time, min(each.time - each.pending for each in backlogged))
        elif not share.running:
            # A busy period begins: no tenant is ahead of another.
            share.time = self._latest

    def _note_active(self, share: TenantShare) -> None:
        self._active[share.tenant.name] = share
        self.num_active = len(self._active)

    def _forget_inactive(self, share: TenantShare) -> None:
        if not share.is_active:
            del self._active[share.tenant.name]
            self.num_active = len(self._active)
