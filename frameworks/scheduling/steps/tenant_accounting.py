"""Account the device time of steps to tenants: on the device's virtual clock, and in the counts of the version."""

from collections import Counter
from collections.abc import Callable, Sequence

from frameworks.core.fairness import TenantShare
from frameworks.core.tenants import Tenant
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.device_clock import DeviceClock

# A tenant may be this many steps ahead of another: a step runs while the charge of the one before it arrives.
_STEPS_AHEAD = 2
_NEWEST_WEIGHT = 0.2


class StepAccounting:
    """The tenants that have sequences at one model.

    A tenant counts as one unit of queued work on the clock while steps compute its sequences. Sequences that wait for
    memory do not: no other model can help them. Tenants that are ahead of other tenants of the device are held: steps
    leave their sequences out. Owned by the event loop.
    """

    def __init__(self, clock: DeviceClock, counts: BatchCounts, hold: Callable[[frozenset[str]], None]) -> None:
        """`hold` is called with the names of all held tenants, whenever they change."""
        self._clock = clock
        self._counts = counts
        self._hold = hold
        self._share_of: dict[int, TenantShare] = {}
        # By name, of the tenants that have sequences.
        self._shares: dict[str, TenantShare] = {}
        self._num_sequences: Counter[TenantShare] = Counter()
        # The tenants that count on the clock.
        self._active: set[TenantShare] = set()
        self._held: frozenset[str] = frozenset()
        # Moving average of the seconds of a step.
        self._step_s = 0.0

    def open(self, sequence_id: int, tenant: Tenant) -> None:
        """Note a new sequence."""
        share = self._share_of[sequence_id] = self._shares[tenant.name] = self._clock.share(tenant)
        self._num_sequences[share] += 1

    def end(self, sequence_id: int) -> None:
        """Note that a sequence has ended. Does nothing where that is known."""
        share = self._share_of.pop(sequence_id, None)
        if share is None:
            return
        self._num_sequences[share] -= 1
        if not self._num_sequences[share]:
            del self._num_sequences[share], self._shares[share.tenant.name]
            self._deactivate({share} & self._active)
            self._update()

    def charge(self, costs: Sequence[tuple[Tenant, float]], seconds: float) -> None:
        """Divide the seconds of a step by its costs, also among tenants whose sequences have ended since."""
        total = 0.0
        for _, cost in costs:
            total += cost
        if not total:
            return
        paid: dict[TenantShare, float] = {}
        for tenant, cost in costs:
            share = self._shares.get(tenant.name) or self._clock.share(tenant)
            paid[share] = seconds * cost / total
            if share in self._num_sequences and share not in self._active:
                self._active.add(share)
                self._clock.queue(share)
        self._clock.ran(paid)
        if unpaid := self._active - paid.keys():
            self._deactivate({share for share in unpaid if share.tenant.name not in self._held})
        self._counts.charge(paid)
        self._step_s += (_NEWEST_WEIGHT if self._step_s else 1.0) * (seconds - self._step_s)
        if self._held or self._clock.num_active > 1:
            self._update()

    def _deactivate(self, tenants: set[TenantShare]) -> None:
        self._active -= tenants
        for share in tenants:
            self._clock.unqueue(share)

    def _update(self) -> None:
        """Hold the tenants that are too far ahead, until the clock changes."""
        bound_s = _STEPS_AHEAD * self._step_s
        held = frozenset(share.tenant.name for share in self._active if self._clock.is_held(share, bound_s))
        if held:
            self._clock.hold(self._update)
        if held != self._held:
            self._held = held
            self._hold(held)
