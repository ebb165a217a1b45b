"""Budget against a plain sum of reservations."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from memory.budget import Budget, BudgetExceeded

OWNERS = st.sampled_from("abcd")
DEVICES = st.sampled_from(["cpu", "cuda:0", "absent"])
SIZES = st.integers(-1, 12)


class BudgetMachine(RuleBasedStateMachine):
    """A refused reservation changes nothing, and a device is never over-reserved."""

    @initialize(cpu=st.integers(0, 20), cuda=st.integers(0, 20))
    def create(self, cpu: int, cuda: int) -> None:
        self.limits = {"cpu": cpu, "cuda:0": cuda, "absent": 0}
        self.budget = Budget({"cpu": cpu, "cuda:0": cuda})
        self.held: dict[tuple[str, str], int] = {}

    def free(self, device: str) -> int:
        return self.limits[device] - sum(size for (_, where), size in self.held.items() if where == device)

    @rule(owner=OWNERS, device=DEVICES, size=SIZES)
    def reserve(self, owner: str, device: str, size: int) -> None:
        if (owner, device) in self.held or size < 0:
            with pytest.raises(ValueError, match=r"expected no reservation|expected 0 or more"):
                self.budget.reserve(owner, device, size)
        elif size > self.free(device):
            with pytest.raises(BudgetExceeded) as refusal:
                self.budget.reserve(owner, device, size)
            assert (refusal.value.device, refusal.value.requested_bytes) == (device, size)
            assert refusal.value.free_bytes == self.free(device)
        else:
            self.budget.reserve(owner, device, size)
            self.held[owner, device] = size

    @rule(owner=OWNERS, device=DEVICES, size=SIZES)
    def correct(self, owner: str, device: str, size: int) -> None:
        if (owner, device) not in self.held:
            with pytest.raises(KeyError):
                self.budget.correct(owner, device, size)
            return
        before = self.held[owner, device]
        if size < 0:
            with pytest.raises(ValueError, match="expected 0 or more"):
                self.budget.correct(owner, device, size)
        elif size - before > self.free(device):
            with pytest.raises(BudgetExceeded) as refusal:
                self.budget.correct(owner, device, size)
            assert refusal.value.requested_bytes == size - before
        else:
            self.budget.correct(owner, device, size)
            self.held[owner, device] = size

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        assert self.budget.release(owner) == sum(self.held.pop(each) for each in list(self.held) if each[0] == owner)

    @invariant()
    def sums_match(self) -> None:
        if not hasattr(self, "budget"):
            return
        for device, limit in self.limits.items():
            owners = {owner for owner, where in self.held if where == device}
            assert set(self.budget.owners(device)) == owners
            assert self.budget.used(device) == sum(self.held[owner, device] for owner in owners)
            assert all(self.budget.held_by(owner, device) == self.held[owner, device] for owner in owners)
            assert self.budget.free(device) == self.free(device) == limit - self.budget.used(device)
            assert self.budget.limit(device) == limit
            assert 0 <= self.budget.used(device) <= limit
        for owner in "abcd":
            assert self.budget.held_by(owner) == sum(size for (who, _), size in self.held.items() if who == owner)


TestBudget = BudgetMachine.TestCase


def test_unknown_device_has_limit_zero() -> None:
    budget = Budget({"cpu": 1})
    assert budget.devices == ["cpu"]
    assert budget.limit("cuda:0") == 0
    with pytest.raises(BudgetExceeded, match="cuda:0: expected at most 0 free bytes, got a reservation of 1"):
        budget.reserve("a", "cuda:0", 1)
